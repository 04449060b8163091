"""A build that waits for another one says what for, and goes on after it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.helpers.golang import locked

SECOND = """
import sys
from pathlib import Path
from tests.helpers.golang import locked
with locked(Path(sys.argv[1]), "build Kubernetes"):
    print("has it")
"""


def test_a_second_build_says_what_it_waits_for(tmp_path: Path) -> None:
    path = tmp_path / "build.lock"
    with locked(path, "build Trainer"):
        command = [sys.executable, "-c", SECOND, str(path)]
        second = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
        assert second.stdout is not None
        waits = second.stdout.readline()
        assert waits.startswith(f"waiting for another process, which holds {path} (process ")
        assert waits.endswith(", to build Trainer)\n")
    assert second.communicate(timeout=60)[0] == "has it\n"
    assert second.returncode == 0
