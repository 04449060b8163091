"""Messages between ranks are JSON of known types: nothing that another rank sends is unpickled or called."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.until import until
from torch import nn

from windlass.train.checkpoint import Checkpoint
from windlass.train.checkpoint.chunks import Chunk
from windlass.train.checkpoint.consensus import from_message, to_message
from windlass.train.checkpoint.files import Found, examine, list_checkpoints

FOUND = Found("step-1", "/x/step-1", 1, 0, 1.5, 7, 1, 2, "run", files={"rank-0.json": {"bytes": 7, "crc32": "a"}})


@pytest.mark.parametrize(
    "thing",
    [None, True, 3, "é", 1.5, [1, ["a"]], (1, None), {"a", "b"}, {"a": {"b": 1}, 7: (1,)}, {"$": "x"}, [FOUND],
     [Chunk("model.0.weight", "float32", (4, 2), (0, 0), (2, 2))], ([FOUND], {3})],
)  # fmt: skip
def test_messages_arrive_unchanged(thing: Any) -> None:
    assert from_message(to_message(thing)) == thing


def test_unsupported_type_is_refused_by_the_sender() -> None:
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
def test_only_dataclasses_and_enums_of_the_package_are_decoded(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"bytes that Windlass did not write"):
        from_message(data)


# -- ranks of Horovod and MPI -----------------------------------------------------------------------------------------

OF_MPI = {"PMIX_NAMESPACE": "prterun-1@1", "OMPI_COMM_WORLD_SIZE": "2"}
"""Variables of an mpirun that is PID 1 of its container; the same in each start."""


class Launch:
    """Two ranks in one process, without torch.distributed and without Windlass."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, value: float) -> None:
        self.ranks = []
        for name, text in OF_MPI.items():
            monkeypatch.setenv(name, text)
        for rank in range(2):
            monkeypatch.setenv("OMPI_COMM_WORLD_RANK", str(rank))
            model = nn.Linear(2, 2)
            nn.init.constant_(model.weight, value)
            self.ranks.append(Checkpoint(folder=folder, every=1000, keep=10, model=model))

    def save(self, *ranks: int) -> None:
        """Makes a step on each rank, and saves it on these ranks."""
        for one in self.ranks:
            one.step()
        for rank in ranks:
            self.ranks[rank].save()
        if 0 in ranks and 1 in ranks:
            self.ranks[0]._saver.await_writer()
        elif 0 in ranks:
            while not self.ranks[0]._saver.part_is_written:
                self.ranks[0]._saver.poll(1.0)

    def end(self) -> None:
        for one in self.ranks:
            one._saver.close()


def test_new_start_does_not_write_into_earlier_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both starts begin at step 0 with the same environment; rank 1 of the second is killed before it saves."""
    first = Launch(tmp_path, monkeypatch, 1.0)
    first.save(0, 1)
    first.end()
    [found] = list_checkpoints(tmp_path)
    assert examine(found) == []
    second = Launch(tmp_path, monkeypatch, 2.0)
    second.save(0)
    second.end()
    complete = [one for one in list_checkpoints(tmp_path) if one.complete]
    assert [one.name for one in complete] == [found.name]
    assert examine(found) == []


def test_files_of_an_unfinished_save_are_not_used_by_another_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise rank 0 would commit a checkpoint with the state of two trainings."""
    first = Launch(tmp_path, monkeypatch, 1.0)
    first.save(1)
    until(lambda: list(tmp_path.glob("step-00000001-*/rank-1.json")))
    first.end()
    second = Launch(tmp_path, monkeypatch, 2.0)
    second.save(0)
    assert [one for one in list_checkpoints(tmp_path) if one.complete] == []
    second.ranks[1].save()
    second.ranks[0]._saver.await_writer()
    [found] = [one for one in list_checkpoints(tmp_path) if one.complete]
    assert (found.attempt, examine(found)) == (2, [])
    second.end()
