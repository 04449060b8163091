"""Real training on a real cluster: the same weights by every way and through every loss, and no line lost or twice."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.bed.cluster import Bed, Cluster
from tests.cluster.labs import digest, lab_on
from tests.engines.lab import Can, Lab, Run, Way
from tests.engines.test_local import plan_local

from windlass.engines.local.engine import LocalEngine
from windlass.runs.record import Phase

EXAMPLES = Path(__file__).parents[2] / "examples"
DIGITS = EXAMPLES / "01-digits"
SHAPE: dict[str, Any] = {"nodes": 2, "procs_per_node": 2}
CLAIM = {"size": "1GiB", "storage_class": "bed"}

pytestmark = pytest.mark.timeout(900)


def results(bed: Bed | Cluster, **more: Any) -> dict[str, Any]:
    """What a job says of a claim for its results."""
    return {"kubernetes": {"results": CLAIM if isinstance(bed, Bed) else {"size": "1GiB"}, **more}}


def accuracy(run: Run) -> str:
    [said] = re.findall(r"^test accuracy (.*)$", run.text(), re.MULTILINE)
    return str(said)


def test_digits_end_with_the_same_weights_by_job_and_by_jobset_and_with_the_accuracy_of_this_machine(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    lab = lab_on(cluster, namespace, tmp_path / "home")
    here = Lab(Way("local", LocalEngine, plan_local, frozenset(Can)), tmp_path / "local")
    try:
        words = ("train.py", "--epochs", "5")
        runs = {via: lab.start(*words, base=DIGITS, **SHAPE, **results(cluster, via=via)) for via in ("job", "jobset")}
        local = here.start(*words, base=DIGITS, **SHAPE)
        for run in (*runs.values(), local):
            assert run.wait().phase is Phase.SUCCEEDED, run.text()
        weights = {via: digest(run, "model.pt", tmp_path) for via, run in runs.items()}
        assert weights["job"] == weights["jobset"]
        assert accuracy(runs["job"]) == accuracy(runs["jobset"]) == accuracy(local)
    finally:
        lab.close()
        here.close()
