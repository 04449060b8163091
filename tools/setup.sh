#!/usr/bin/env bash
# Makes .venv from the lock file: Windlass (editable), torch and the tools, all byte-compiled.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { printf 'setup: %s\n' "$*"; }

"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {
  say "Python 3.11 or newer is needed; '$PYTHON' is $("$PYTHON" --version 2>&1 || echo missing). Try: make setup PYTHON=python3.12"
  exit 2
}
started=$SECONDS
if [ ! -x .venv/bin/python ]; then
  say "making .venv with $("$PYTHON" --version)"
  "$PYTHON" -m venv .venv || { say "the venv module failed; on Debian: apt-get install python3-venv"; exit 2; }
fi
[ -x .venv/bin/uv ] && .venv/bin/uv --version | grep -qF " $UV_VERSION " || .venv/bin/python -m pip install -q "uv==$UV_VERSION"
say "installing the packages of requirements.lock (torch with its parts: about 5 GB)"
# The cache and .venv may lie on different file systems; copying is then right, and no reason for a warning.
export UV_LINK_MODE="${UV_LINK_MODE:-hardlink}"
# On a terminal uv shows its progress: the packages are large.
quiet=-q; [ -t 2 ] && quiet=""
.venv/bin/uv pip install $quiet --compile-bytecode --python .venv/bin/python -r requirements.lock
.venv/bin/uv pip install -q --no-deps --python .venv/bin/python -e .
# Start-up is a feature: an interpreter told not to write byte code would compile us anew at each command.
env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -m compileall -q src
say "done in $((SECONDS - started)) s: .venv/bin/windlass"
