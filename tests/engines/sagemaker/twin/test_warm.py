"""The ranks of a host are forks of its first process, which has imported the script's modules in advance."""

from __future__ import annotations

import json
import textwrap
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.engines.harness import Harness
from tests.engines.sagemaker.planning import HERE

SCRIPT = textwrap.dedent(
    """
    import json, os, sys

    is_imported = "sqlite3" in sys.modules
    import sqlite3

    print(json.dumps({"imported": is_imported, "parent": os.getppid(), "host": os.environ["SM_CURRENT_HOST"]}))
    """
)


@pytest.mark.slow
@pytest.mark.parametrize(("fields", "start"), [({}, "warm"), ({"start": "cold"}, "cold")])
def test_ranks_are_forked_from_process_with_finished_imports(
    tmp_path: Path, fields: dict[str, Any], start: str
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/script.py").write_text(SCRIPT)
    with closing(Harness(HERE, tmp_path / "home")) as harness:
        run = harness.start(
            "script.py", base=tmp_path / "code", nodes=2, procs_per_node=2, launcher="plain", warm=["sqlite3"], **fields
        )
        run.succeeded()
        found = run.json_of_ranks()
        for node in (0, 1):
            events = [json.loads(line) for line in (run.dir / f"attempt-1/node-{node}.events").read_text().splitlines()]
            assert [one["start"] for one in events if one["kind"] == "node"] == [start]
    assert [found[rank]["imported"] for rank in range(4)] == [start == "warm"] * 4
    assert len({(one["host"], one["parent"]) for one in found.values()}) == 2
