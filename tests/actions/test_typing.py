"""A script that uses the Python API passes `mypy --strict` without plugins."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2]

SCRIPT = """
job = windlass.Job(
    name="digits", run="train.py", nodes={"min": 1, "max": 4}, procs_per_node="auto", restarts=3, timeout="2h", grace=5,
    env={"OMP_NUM_THREADS": 1}, checkpoint={"every": "5min"}, secrets=["hf-token"], warm=["torch"],
    data=[{"name": "digits", "source": "s3://bucket/digits/"}],
)
why: windlass.Diagnosis = windlass.run(job).why()
seconds: float = windlass.get().ledger().seconds[windlass.Spent.TRAINING]
windlass.Job(name="digits", run="train.py", restarts=[3], node=2)
"""


@pytest.mark.slow
def test_user_scripts_pass_the_type_checker_and_wrong_fields_fail(tmp_path: Path) -> None:
    guide = (SOURCE / "docs/guides/use-from-python.md").read_text()
    *snippets, _inside_a_rank = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    (tmp_path / "script.py").write_text("\n".join([*snippets, SCRIPT]))
    [module] = re.findall(r'```python title="training.py"\n(.*?)```', guide, re.DOTALL)
    (tmp_path / "training.py").write_text(module)
    options = ["--strict", "--config-file=", f"--cache-dir={tmp_path / 'cache'}"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "MYPYPATH": str(SOURCE / "src")},
    )
    found = [line for line in done.stdout.splitlines() if "error:" in line]
    assert len(found) == 2, done.stdout
    assert 'Unexpected keyword argument "node" for "Job"' in found[0]
    assert 'Argument "restarts" to "Job" has incompatible type "list[int]"' in found[1]
