"""The contract on SageMaker, in emulated hosts on this machine and through an emulated control plane. A way is
a class.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines.cases.setup import StoppedSetup
from tests.engines.contract import Contract
from tests.engines.harness import SCRIPTS, Aspect, Can, Harness, Way
from tests.engines.sagemaker.emulated import emulated
from tests.engines.sagemaker.planning import plan_emulated, plan_here

from windlass.engines.sagemaker.engine import SageMakerEngine, SageMakerLocalEngine

CAN = frozenset(Can) - {
    Can.FILES,
    Can.QUICK_START,
    Can.INTERPRETERS,
    Can.STOPS_AT_ONCE,
    Can.SHELL,
    Can.BYTES,
}


@pytest.mark.slow
class TestHere(Contract):
    way = Way(
        "sagemaker-local",
        SageMakerLocalEngine,
        plan_here,
        CAN,
        # `TestEmulated` tests how ranks of the same hosts end; `test_folders.py` and the training tests test their
        # rendezvous.
        differs_in=frozenset({Aspect.START, Aspect.SIGNALS, Aspect.OUTPUT}),
    )

    def test_results_in_code_folder_are_fetched_with_model(self, harness: Harness, tmp_path: Path) -> None:
        (tmp_path / "unchanged.py").write_text((SCRIPTS / "unchanged.py").read_text())
        run = harness.start("unchanged.py", base=tmp_path, outputs={"collect": ["out/**"]}).succeeded()
        found = [path for path in Path(run.status.output_dir).rglob("*") if path.is_file()]
        assert [str(path.relative_to(run.status.output_dir)) for path in found] == ["out/deep/model.bin"]


@pytest.mark.slow
class TestSetup(StoppedSetup):
    way = TestHere.way


@pytest.mark.slow
class TestEmulated(Contract):
    way = Way(
        "sagemaker, emulated",
        SageMakerEngine,
        plan_emulated,
        CAN - {Can.LOCAL_DATA},
        differs_in=frozenset({Aspect.ENDS, Aspect.OBJECTS}),
    )

    @pytest.fixture(scope="class")
    @classmethod
    def harness(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
        """Yields a harness whose supervisors use an emulated control plane and a real S3 server."""
        with emulated(tmp_path_factory.mktemp("aws"), cls.way) as (harness, _):
            yield harness
