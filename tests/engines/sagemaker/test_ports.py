"""Hosts on this machine share its ports: where ranks will meet is kept for them until they bind it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from tests.engines.harness import Can, Harness, Way
from tests.engines.sagemaker.planning import plan_here

from windlass.engines.sagemaker.engine import SageMakerLocalEngine
from windlass.runs.phase import Phase

HERE = Way("sagemaker-local", SageMakerLocalEngine, plan_here, frozenset(Can))
SCRIPT = textwrap.dedent(
    """
    import json, os, socket

    def can_bind(reuse):
        with socket.socket() as found:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
            try:
                found.bind(("0.0.0.0", int(os.environ["WINDLASS_MASTER_PORT"])))
            except OSError:
                return False
            return True

    print(json.dumps([can_bind(0), can_bind(1)]))
    """
)


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "expected"), [("torchrun", [False, True]), ("plain", [True, True])])
def test_the_port_of_an_attempt_is_kept_from_all_but_its_ranks(
    tmp_path: Path, launcher: str, expected: list[bool]
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/script.py").write_text(SCRIPT)
    harness = Harness(HERE, tmp_path / "home")
    try:
        run = harness.start("script.py", base=tmp_path / "code", launcher=launcher)
        assert run.wait().phase is Phase.SUCCEEDED, run.text()
        assert run.json_of_ranks() == {0: expected}
    finally:
        harness.close()
