"""`make demo` on a machine whose user has a record that this version does not read."""

import os
import subprocess
from pathlib import Path

TOOL = Path(__file__).parents[1] / "tools" / "demo.sh"
STUB = """#!/bin/sh
[ "$1" = ps ] && [ -e "$WINDLASS_HOME/unreadable" ] && exit 1
echo "$1 in $WINDLASS_HOME, which has: $(ls "$WINDLASS_HOME" 2>/dev/null)"
exit 3
"""


def test_demo_uses_a_record_of_its_own_and_removes_one_that_cannot_be_read(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    (checkout / "tools").mkdir(parents=True)
    (checkout / "tools" / "demo.sh").write_text(TOOL.read_text())
    windlass = tmp_path / "windlass"
    windlass.write_text(STUB)
    windlass.chmod(0o755)
    demo_home = checkout / ".cache" / "demo"
    demo_home.mkdir(parents=True)
    (demo_home / "unreadable").touch()

    env = {**os.environ, "WINDLASS_BIN": str(windlass), "WINDLASS_HOME": str(tmp_path / "users")}
    done = subprocess.run(["bash", "tools/demo.sh"], cwd=checkout, env=env, capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stdout) == (3, f"run in {demo_home}, which has: \n"), done.stderr
