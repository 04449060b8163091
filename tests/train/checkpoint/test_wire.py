"""What ranks tell each other is JSON of known types: nothing that another rank sends is unpickled or called."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from windlass.train.checkpoint import wire
from windlass.train.checkpoint.files import Found
from windlass.train.checkpoint.plan import Chunk

SCRIPT = Path(__file__).with_name("scripts") / "peer.py"
FOUND = Found("step-1", "/x/step-1", 1, 0, 1.5, 7, True, 1, 2, "run", files={"rank-0.json": {"bytes": 7, "crc32": "a"}})


def test_a_rank_does_not_unpickle_what_another_one_sends(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    told = sorted(line for line in done.stdout.splitlines() if line.startswith(("gather", "broadcast")))
    assert not (tmp_path / "unpickled").exists(), done.stdout
    assert [line.split(" bytes that ")[1][:24] for line in told] == ["Windlass did not write: "] * 2, done.stderr


@pytest.mark.parametrize(
    "thing",
    [None, True, 3, "é", 1.5, [1, ["a"]], (1, None), {"a", "b"}, {"a": {"b": 1}, 7: (1,)}, {"$": "x"}, [FOUND],
     [Chunk("model.0.weight", "float32", (4, 2), (0, 0), (2, 2))], ([FOUND], {3})],
)  # fmt: skip
def test_what_is_sent_is_what_arrives(thing: Any) -> None:
    assert wire.loads(wire.dumps(thing)) == thing


def test_what_has_no_form_is_refused_where_it_is_sent() -> None:
    with pytest.raises(TypeError, match=r"ranks cannot send each other a pathlib"):
        wire.dumps(Path("/x"))


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps([1]), b"", b"\xff", b"[" * 100_000, b'{"a": 1}', b'{"$": "plan.Chunk", "v": [1]}',
        *(
            json.dumps({"$": name, "v": ["touch /tmp/x"]}).encode()
            for name in ("os.system", "files.os", "files.list_checkpoints", "files.Folder", "storage.Folder",
                         "files.dataclass", "nothing.Found", "Chunk", "plan.Sequence", "wire.json", ["plan.Chunk"])
        ),
    ],
)  # fmt: skip
def test_nothing_but_a_dataclass_or_enum_of_the_package_can_be_made(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"bytes that Windlass did not write"):
        wire.loads(data)
