#!/usr/bin/env bash
# Makes .cache/examples-env, an environment of its own for the examples that need large libraries, from
# examples/requirements.lock. Torch is the one of .venv: the files are shared by hard links, so they take no more disk.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { printf 'examples-env: %s\n' "$*"; }
env="$PWD/.cache/examples-env"
stamp="$env/.ready-$(cksum <examples/requirements.lock | tr ' ' -)"
[ ! -e "$stamp" ] || exit 0
mkdir -p .cache
# Two tests may want it at once.
exec 9>.cache/examples-env.lock
flock 9
[ ! -e "$stamp" ] || exit 0

started=$SECONDS
say "installing the packages of examples/requirements.lock into .cache/examples-env"
rm -rf "$env"
.venv/bin/python -m venv --without-pip "$env"
export UV_LINK_MODE="${UV_LINK_MODE:-hardlink}"
.venv/bin/uv pip install -q --compile-bytecode --python "$env/bin/python" -r examples/requirements.lock
touch "$stamp"
say "done in $((SECONDS - started)) s: .cache/examples-env/bin/python"
