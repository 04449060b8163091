#!/usr/bin/env bash
# Runs example 01 on this machine, then reads from the record what came of it. Ends with the exit code of the run.
# The demo has a record of its own: what other versions of Windlass left on the machine must not stop the demo.
set -euo pipefail
cd "$(dirname "$0")/.."
windlass="${WINDLASS_BIN:-.venv/bin/windlass}"
job=examples/01-digits/job.yaml
export WINDLASS_HOME="$PWD/.cache/demo"
"$windlass" ps >/dev/null 2>&1 || rm -rf "$WINDLASS_HOME"

"$windlass" run "$job"

.venv/bin/python - "$windlass" "$job" <<'PYTHON'
import json
import subprocess
import sys
from pathlib import Path

windlass, job = sys.argv[1:]


def ask(*words: str) -> str:
    return subprocess.run([windlass, *words], check=True, capture_output=True, text=True).stdout


run = json.loads(ask("status", "-o", "json"))
accuracy = [line for line in ask("logs", run["id"]).splitlines() if "test accuracy" in line]
phases = run["ledger"]["seconds"]
total = run["ledger"]["wall_seconds"] or 1

print()
print(f"run       {run['id']}: {run['phase']} after {total:.1f} s")
for line in accuracy[-1:]:
    print(f"accuracy  {line.split('test accuracy')[1].strip()}")
print(f"model     {Path(run['output_dir']) / 'model.pt'}")
for word, (phase, seconds) in zip(["time", *[""] * len(phases)], phases.items(), strict=False):
    print(f"{word:9} {phase:13} {seconds:6.2f} s {100 * seconds / total:4.0f} %")
print("\nNext:\n  export WINDLASS_HOME=$PWD/.cache/demo                 the record of the demo")
for words, gives in (
    ("ps", "all runs"),
    ("logs", "the output of its ranks"),
    (f"plan {job}", "the steps of a run"),
):
    print(f"  {windlass + ' ' + words:52}  {gives}")
print(f"  edit --epochs in {job}, and run it again")
PYTHON
