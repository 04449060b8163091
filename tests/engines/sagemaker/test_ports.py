"""Hosts on this machine share its ports: the rendezvous port stays reserved until the ranks bind it."""

from __future__ import annotations

import textwrap
from contextlib import closing
from pathlib import Path

import pytest
from tests.engines.harness import Harness
from tests.engines.sagemaker.planning import HERE

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
def test_rendezvous_port_is_reserved_for_ranks_of_attempt(tmp_path: Path, launcher: str, expected: list[bool]) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/script.py").write_text(SCRIPT)
    with closing(Harness(HERE, tmp_path / "home")) as harness:
        run = harness.start("script.py", base=tmp_path / "code", launcher=launcher).succeeded()
        assert run.json_of_ranks() == {0: expected}
