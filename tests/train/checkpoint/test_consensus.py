"""Messages between ranks are JSON of known types: nothing that another rank sends is unpickled or called."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from windlass.train.checkpoint.chunks import Chunk
from windlass.train.checkpoint.consensus import from_message, to_message
from windlass.train.checkpoint.files import Found

FOUND = Found("step-1", "/x/step-1", 1, 0, 1.5, 7, 1, 2, "run", files={"rank-0.json": {"bytes": 7, "crc32": "a"}})


@pytest.mark.parametrize(
    "thing",
    [None, True, 3, "é", 1.5, [1, ["a"]], (1, None), {"a", "b"}, {"a": {"b": 1}, 7: (1,)}, {"$": "x"}, [FOUND],
     [Chunk("model.0.weight", "float32", (4, 2), (0, 0), (2, 2))], ([FOUND], {3})],
)  # fmt: skip
def test_what_is_sent_is_what_arrives(thing: Any) -> None:
    assert from_message(to_message(thing)) == thing


def test_what_has_no_form_is_refused_where_it_is_sent() -> None:
    with pytest.raises(TypeError, match=r"message cannot be kept .*pathlib"):
        to_message(Path("/x"))


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps([1]), b"", b"\xff", b"[" * 100_000, b'{"$": "Chunk", "v": [1]}',
        *(
            json.dumps({"$": name, "v": ["touch /tmp/x"]}).encode()
            for name in ("os.system", "files.os", "list_checkpoints", "Folder", "dataclass", "files.Found", "World",
                         "Fault", "pickle", ["Chunk"])
        ),
    ],
)  # fmt: skip
def test_nothing_but_a_dataclass_or_enum_of_the_package_can_be_made(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"bytes that Windlass did not write"):
        from_message(data)
