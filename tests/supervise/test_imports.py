"""The supervisor imports only the standard library, because it may run in a pod whose image has nothing else.

A local run waits for its supervisor to start, so the supervisor does not import what only commands and nodes need.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import windlass

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import windlass.supervise.process, windlass.supervise.adoption, windlass.engines.local.supervisor
import windlass.engines.sagemaker.backend
foreign = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names - {"windlass", "__main__"}
unused = {"windlass.spec", "windlass.engines.local.engine", "windlass.runs.context", "windlass.worker.trainlogs"}
print(sorted(foreign), sorted(unused & set(sys.modules)))
"""


def test_a_supervisor_imports_nothing_but_the_standard_library() -> None:
    source = str(Path(windlass.__file__).parents[1])
    command = [sys.executable, "-I", "-S", "-c", PROGRAM, source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.strip() == "[] []", done.stderr
