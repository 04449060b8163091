#!/usr/bin/env bash
# Makes .cache/NAME, an environment of its own beside .venv, from a lock:
#   bash tools/environment.sh NAME LOCK [LOCK-WITHOUT-DEPENDENCIES]
# The packages of the second lock are installed without what they require. Torch is the one of .venv: the files are
# shared by hard links, so they take no more disk.
set -euo pipefail
name=$1 lock=$2 bare=${3:-}
cd "$(dirname "$0")/.."
say() { printf '%s: %s\n' "$name" "$*"; }
env="$PWD/.cache/$name"
stamp="$env/.ready-$(cat "$lock" ${bare:+"$bare"} | cksum | tr ' ' -)"
[ ! -e "$stamp" ] || exit 0
mkdir -p .cache
# Two tests may want it at once.
exec 9>".cache/$name.lock"
flock 9
[ ! -e "$stamp" ] || exit 0

started=$SECONDS
say "installing the packages of $lock${bare:+ and $bare} into .cache/$name"
rm -rf "$env"
.venv/bin/python -m venv --without-pip "$env"
export UV_LINK_MODE="${UV_LINK_MODE:-hardlink}"
install() { .venv/bin/uv pip install -q --compile-bytecode --python "$env/bin/python" "$@"; }
install -r "$lock"
[ -z "$bare" ] || install --no-deps --require-hashes -r "$bare"
touch "$stamp"
say "done in $((SECONDS - started)) s: .cache/$name/bin/python"
