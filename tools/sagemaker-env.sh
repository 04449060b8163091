#!/usr/bin/env bash
# Makes .cache/sagemaker-env, an environment of its own with AWS's training toolkit, which runs in the containers of
# SageMaker. Torch is the one of .venv: the files are shared by hard links, so they take no more disk.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { printf 'sagemaker-env: %s\n' "$*"; }
env="$PWD/.cache/sagemaker-env"
locks=tests/engines/sagemaker/twin/toolkit
stamp="$env/.ready-$(cat "$locks/requirements.lock" "$locks/toolkit.txt" | cksum | tr ' ' -)"
[ ! -e "$stamp" ] || exit 0
mkdir -p .cache
# Two tests may want it at once.
exec 9>.cache/sagemaker-env.lock
flock 9
[ ! -e "$stamp" ] || exit 0

started=$SECONDS
say "installing the packages of $locks into .cache/sagemaker-env"
rm -rf "$env"
.venv/bin/python -m venv --without-pip "$env"
export UV_LINK_MODE="${UV_LINK_MODE:-hardlink}"
.venv/bin/uv pip install -q --python "$env/bin/python" -r "$locks/requirements.lock"
# Without what it requires: libraries for hosting, which training does not import.
.venv/bin/uv pip install -q --python "$env/bin/python" --no-deps --require-hashes -r "$locks/toolkit.txt"
touch "$stamp"
say "done in $((SECONDS - started)) s: .cache/sagemaker-env/bin/train"
