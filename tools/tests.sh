#!/usr/bin/env bash
# Runs pytest with the given arguments. Up to three tests, or $RUN_AGAIN, that failed are run once more, by themselves: on a machine
# that was taken away for seconds, a test of processes may fail for no fault of the code. One that passes then is named,
# loudly: it is a defect of the test, or a race of ours, and is to be mended. One that fails again fails the chore.
set -uo pipefail
cd "$(dirname "$0")/.."
again=${RUN_AGAIN:-3}
report=$(mktemp)
trap 'rm -f "$report"' EXIT
.venv/bin/pytest "$@" -n 2 --dist worksteal --junit-xml="$report"
code=$?
[ "$code" -eq 1 ] || exit "$code"
mapfile -t failed < <(.venv/bin/python - "$report" <<'PY'
import sys
import xml.etree.ElementTree as tree

for case in tree.parse(sys.argv[1]).iter("testcase"):
    for found in (*case.iter("failure"), *case.iter("error")):
        said = " ".join(found.get("message", "").split())[:300]
        print(f"{case.get('classname', '')}::{case.get('name', '')}: {said}")
        break
PY
)
if [ "${#failed[@]}" -eq 0 ] || [ "${#failed[@]}" -gt "$again" ]; then
  exit "$code"
fi
printf '\n=== %d failed, and run once more, alone\n' "${#failed[@]}"
.venv/bin/pytest "$@" --last-failed --last-failed-no-failures none -n 0 || exit 1
printf '\n=== PASSED ONLY WHEN RUN AGAIN, to be mended:\n'
printf '  %s\n' "${failed[@]}"
