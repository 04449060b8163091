#!/usr/bin/env bash
# Removes what the chores made in this checkout, then names what they and Windlass left outside of it. That is left as
# it is: records and results of runs are their user's, and other checkouts use the caches.
set -euo pipefail
cd "$(dirname "$0")/.."
rm -rf .venv .cache site dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
echo "clean: removed .venv, .cache and what was built. Outside of this checkout, not removed:"

cache="${XDG_CACHE_HOME:-$HOME/.cache}"
records="${WINDLASS_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/windlass}"
stays() { [ ! -e "$1" ] || printf '%8s  %s\n%10s%s\n' "$(du -sh "$1" 2>/dev/null | cut -f1)" "$1" "" "$2"; }
stays "$records" "runs, results, cached data, clusters: windlass prune, windlass data rm"
stays "${XDG_CONFIG_HOME:-$HOME/.config}/windlass" "targets.yaml: yours to remove"
stays "$cache/windlass" "data that scripts streamed; may be removed"
stays "$cache/windlass-testbed" "programs of the test cluster and the S3 server of the tests; may be removed"
stays "$cache/uv" "packages, shared by all projects: uv cache clean"
stays "$cache/pip" "packages, shared by all projects: pip cache purge"
echo "Warm processes end by themselves. No setting of the kernel was changed."
