"""The writer: a small process beside each rank that turns shared memory into files, so that training need not wait.

`python -I -S writer.py SETTINGS_JSON`, with the rank's shared memory as an inherited descriptor. Orders come as JSON
lines on standard input, answers go as JSON lines to a descriptor of their own. Standard library only, Python 3.9.

| order | answer |
|---|---|
| `{"do": "save", …}`: write this rank's part; rank 0 then awaits the others', commits, prunes | `part`, then `commit` |
| `{"do": "abandon", "reason": …}`: stop waiting for the other ranks' parts | `commit` |

When the rank dies its end of the pipe closes: a part that is being written is finished, and then the writer ends.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import signal
import sys
import time
import zlib
from collections.abc import Iterator
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3)))

from windlass.train.checkpoint import files, retention
from windlass.train.checkpoint.faults import Fault
from windlass.train.checkpoint.storage import Folder
from windlass.train.report import checkpoint_line, checkpoint_text

PIECE_BYTES = 4 << 20
LINGER_SECONDS = 20.0
"""How long a writer may outlive its rank, to finish what it has begun."""
PARTS_SECONDS = 600.0
"""How long rank 0 waits for the parts of the others. They began at the same step."""
POLL_SECONDS = 0.005
PARENT_SECONDS = 1.0


class Abandoned(Exception):
    """The checkpoint under way is to be given up; the message says why."""


class Writer:
    """Carries out orders until its rank is gone."""

    def __init__(self, settings: dict[str, Any], orders: int, answers: int) -> None:
        self.rank: int = settings["rank"]
        self.world_size: int = settings["world_size"]
        self.parent: int = settings["parent"]
        self.memory: int = settings["memory"]
        self.mapped = memoryview(b"")
        self.for_windlass: bool = settings["for_windlass"]
        self.path: str = settings["folder"]
        self.storage = Folder(self.path)
        self.orders = orders
        self.answers = answers
        self.unread = b""
        self.waiting: list[dict[str, Any]] = []
        self.orphaned_at: float | None = None

    def run(self) -> None:
        """Until standard input closes."""
        while self.orphaned_at is None:
            self._listen(None)
            while self.waiting:
                order = self.waiting.pop(0)
                if order["do"] == "save":  # one that was to be abandoned is over already
                    self._save(order)

    # -- orders -------------------------------------------------------------------------------------------------------

    def _listen(self, timeout: float | None) -> None:
        """Take in orders that have come; without a `timeout`, wait for one."""
        while True:
            if self.orphaned_at is not None:
                time.sleep(timeout or 0.0)
                return
            if select.select([self.orders], [], [], PARENT_SECONDS if timeout is None else timeout)[0]:
                break
            # A child of the rank may hold the other end of the pipe open after the rank's death.
            if os.getppid() != self.parent:
                self.orphaned_at = time.monotonic()
            if timeout is not None:
                return
        data = os.read(self.orders, 1 << 16)
        if not data:
            self.orphaned_at = time.monotonic()
        *lines, self.unread = (self.unread + data).split(b"\n")
        self.waiting += [json.loads(line) for line in lines]

    def _answer(self, **fields: Any) -> None:
        try:
            os.write(self.answers, json.dumps(fields).encode() + b"\n")
        except OSError:
            self.orphaned_at = self.orphaned_at or time.monotonic()

    def _check(self) -> None:
        """Between two pieces: whether to go on. Raises Abandoned."""
        self._listen(0)
        for order in self.waiting:
            if order["do"] == "abandon":
                self.waiting.remove(order)
                raise Abandoned(order["reason"])
        if self.orphaned_at is not None and time.monotonic() - self.orphaned_at > LINGER_SECONDS:
            raise Abandoned("its rank has ended")

    # -- saving -------------------------------------------------------------------------------------------------------

    def _save(self, order: dict[str, Any]) -> None:
        name = order["name"]
        try:
            memory = self._memory(order["end"])
            self.storage.begin(name, order["manifest"]["run_id"] if self.rank == 0 else "")
            self._write_part(order, memory)
        except (OSError, Abandoned) as error:
            self._answer(did="part", name=name, ok=False, reason=_reason(error))
            self._part_failed(order, _reason(error))
            return
        self._answer(did="part", name=name, ok=True, reason="")
        if self.rank == 0:
            self._commit(order)

    def _memory(self, end: int) -> memoryview:
        """The shared memory up to there; mapped once for all saves of one size, since finding its pages takes time."""
        if len(self.mapped) < end:
            self.mapped = memoryview(mmap.mmap(self.memory, os.fstat(self.memory).st_size, prot=mmap.PROT_READ))
        return self.mapped[:end]

    def _write_part(self, order: dict[str, Any], memory: memoryview) -> None:
        tensors = f"rank-{self.rank}.safetensors"
        summed = _Summed(self._checked(memory[: order["tensors_end"]]))
        self.storage.put(order["name"], tensors, summed)
        part = {"part": {tensors: {"bytes": summed.length, files.CHECKSUM: summed.checksum}}}
        # The rank's own state is an object too; the two become one.
        own = memory[order["own_begin"] + 1 : order["end"]]
        self.storage.put(order["name"], f"rank-{self.rank}.json", [json.dumps(part).encode()[:-1] + b", ", own])

    def _checked(self, memory: memoryview) -> Iterator[memoryview]:
        for begin in range(0, len(memory), PIECE_BYTES):
            self._check()
            yield memory[begin : begin + PIECE_BYTES]

    def _part_failed(self, order: dict[str, Any], reason: str) -> None:
        """Rank 0 gives the whole checkpoint up and says so; the others tell rank 0 by a file."""
        name = order["name"]
        if self.rank == 0:
            self._give_up(order, reason)
            return
        for file in (f"rank-{self.rank}.safetensors", f"rank-{self.rank}.json"):
            _try_unlink(os.path.join(self.path, name, file))
        for text in (reason.encode(), b""):  # on a full disk there is still room for a name
            try:
                self.storage.put(name, f"rank-{self.rank}.failed", [text])
                return
            except OSError:
                pass

    # -- committing ---------------------------------------------------------------------------------------------------

    def _commit(self, order: dict[str, Any]) -> None:
        name = order["name"]
        try:
            self._await_parts(name)
            listed = self._listed(name)
            manifest = {"format": files.FORMAT, **order["manifest"], "created_at": time.time(), "files": listed}
            self.storage.settle(name)
            self._check()
            self.storage.put(name, files.MANIFEST, [files.seal(manifest)])
            self.storage.settle(name)
        except (OSError, ValueError, KeyError, Abandoned) as error:
            self._give_up(order, _reason(error))
            return
        num_bytes = sum(file["bytes"] for file in listed.values())
        self._told(order, "saved", bytes=num_bytes, seconds=round(time.time() - order["asked_at"], 6))
        self._answer(did="commit", name=name, ok=True, reason="")
        try:
            run_id = order["manifest"]["run_id"]
            faults = dict.fromkeys(order["damaged"], Fault.DAMAGED)
            retention.prune(self.path, run_id, order["keep"], order["keep_for"], faults=faults)
        except OSError:
            pass  # tried again after the next one

    def _await_parts(self, name: str) -> None:
        """Until the parts of all ranks are there. Raises Abandoned, and OSError where the folder is gone."""
        began = time.monotonic()
        missing = list(range(1, self.world_size))
        while missing:
            there = self.storage.files(name)
            for rank in range(1, self.world_size):
                if f"rank-{rank}.failed" in there:
                    reason = files.read_whole(self.storage, name, f"rank-{rank}.failed").decode("utf-8", "replace")
                    raise Abandoned(f"rank {rank}: {reason or 'its part could not be written'}")
            missing = [rank for rank in missing if f"rank-{rank}.json" not in there]
            if missing:
                if time.monotonic() - began > PARTS_SECONDS:
                    who = ", ".join(str(rank) for rank in missing[:8])
                    raise Abandoned(f"the parts of ranks {who} have not come; do all nodes share {self.path}?")
                self._check()
                self._listen(POLL_SECONDS)

    def _listed(self, name: str) -> dict[str, Any]:
        """Length and checksum of every file, for the manifest."""
        listed: dict[str, Any] = {}
        sizes = self.storage.files(name)
        for rank in range(self.world_size):
            own = files.read_whole(self.storage, name, f"rank-{rank}.json")
            tensors = f"rank-{rank}.safetensors"
            part = json.loads(own)["part"][tensors]
            if sizes.get(tensors) != part["bytes"]:
                raise Abandoned(f"{tensors} is not as rank {rank} has written it")
            listed[tensors] = part
            listed[f"rank-{rank}.json"] = {"bytes": len(own), files.CHECKSUM: f"{zlib.crc32(own):08x}"}
        return listed

    def _give_up(self, order: dict[str, Any], reason: str) -> None:
        try:
            self.storage.remove(order["name"], files.MANIFEST)
        except OSError:
            pass  # it is gone already, or cannot be removed: without a manifest it counts for nothing
        self._told(order, "failed", reason=reason, seconds=round(time.time() - order["asked_at"], 6))
        self._answer(did="commit", name=order["name"], ok=False, reason=reason)

    def _told(self, order: dict[str, Any], action: str, **facts: Any) -> None:
        """Say it on the rank's own output at once: the rank may be in the middle of a long step, or dead."""
        fields = {"action": action, "step": order["manifest"]["step"], "name": order["name"], **facts}
        fields.update(blocked_at=order["blocked_at"], blocked_seconds=order["blocked_seconds"])
        line = checkpoint_line(fields) if self.for_windlass else checkpoint_text(fields).encode()
        try:
            os.write(1, line)
        except OSError:
            pass


class _Summed:
    """Pieces on their way through, their length and checksum taken."""

    def __init__(self, pieces: Iterator[memoryview]) -> None:
        self._pieces = pieces
        self._value = 0
        self.length = 0

    def __iter__(self) -> Iterator[memoryview]:
        for piece in self._pieces:
            self._value = zlib.crc32(piece, self._value)
            self.length += len(piece)
            yield piece

    @property
    def checksum(self) -> str:
        return f"{self._value:08x}"


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror + (f": {error.filename}" if error.filename else "")
    return str(error) or type(error).__name__


def _try_unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def main(argv: list[str]) -> None:
    """Serve one rank."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # meant for the rank, which may then want to save
    settings = json.loads(argv[0])
    Writer(settings, 0, settings["answers"]).run()


if __name__ == "__main__":
    main(sys.argv[1:])
