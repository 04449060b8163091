"""Real training in emulated hosts of SageMaker gives the same weights as a local run, also after a stop and a
resume.
"""

from __future__ import annotations

import hashlib
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.engines.harness import Can, Harness, Run, Way
from tests.engines.local.planning import plan_local
from tests.engines.sagemaker.emulated import emulated
from tests.engines.sagemaker.planning import HERE

from windlass.engines.local.engine import LocalEngine
from windlass.runs.phase import Phase

EXAMPLES = Path(__file__).parents[3] / "examples"
LOCAL = Way("local", LocalEngine, plan_local, frozenset(Can), {"start": "cold"})
SHAPE: dict[str, Any] = {"nodes": 2, "procs_per_node": 1}
SLOW = """
import os, runpy, sys, time
from torch.optim.optimizer import register_optimizer_step_post_hook

if os.environ["WINDLASS_ATTEMPT"] == "1":
    register_optimizer_step_post_hook(lambda *_: time.sleep(0.1))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def digest(run: Run, name: str) -> str:
    """Returns the SHA-256 of a file that the run has fetched."""
    return hashlib.sha256((Path(run.status.output_dir) / name).read_bytes()).hexdigest()


@pytest.mark.nightly  # CI compares the weights of a resumed run
def test_training_on_hosts_gives_weights_of_local_run(tmp_path: Path) -> None:
    with closing(Harness(LOCAL, tmp_path / "local")) as local, emulated(tmp_path / "aws") as (aws, _):
        words = ("train.py", "--epochs", "1")
        base = EXAMPLES / "01-digits"
        runs = [one.start(*words, base=base, **SHAPE).succeeded() for one in (local, aws)]
        expected, found = [digest(run, "model.pt") for run in runs]
        assert found == expected


def test_stopped_run_resumes_from_checkpoints_in_store(tmp_path: Path) -> None:
    code = tmp_path / "code"
    shutil.copytree(EXAMPLES / "08-resumable-digits", code)
    (code / "slow.py").write_text(SLOW)
    fields: dict[str, Any] = {"checkpoint": {"every": "20 steps"}, "grace": 60, "base": code, **SHAPE}
    words = ("slow.py", "train.py", "--epochs", "3")
    with closing(Harness(LOCAL, tmp_path / "local")) as local, closing(Harness(HERE, tmp_path / "here")) as here:
        expected = digest(local.start(*words[1:], **fields).succeeded(), "model.safetensors")
        run = here.start(*words, **fields)
        run.until(lambda run: [one for one in run.events if one.kind == "checkpoint"])
        here.engine.stop(run.id)
        assert run.wait().phase is Phase.STOPPED, run.text()
        here.engine.resume(run.id)
        run.succeeded()
        restored = [one for one in run.events if one.kind == "checkpoint" and one.data["action"] == "restored"]
        assert restored, "the second attempt has begun from nothing"
        assert digest(run, "model.safetensors") == expected
