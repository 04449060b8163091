"""The writer process of a rank: writes the state in shared memory to files, and commits the checkpoint on rank 0.

`python -I -S writer.py SETTINGS_JSON`, with the rank's shared memory as an inherited descriptor. Standard input is a
socket for orders and answers, one JSON object per line. Standard library only, Python 3.9.

| order | answer |
|---|---|
| `{"do": "save", …}`: write this rank's part; rank 0 then awaits the others', commits, prunes | `part`, then `commit` |
| `{"do": "abandon", "reason": …}`: stop waiting for the other ranks' parts | `commit` |

If the rank dies, its end of the socket closes: the writer finishes the part that it is writing, and then exits.
"""

from __future__ import annotations

import contextlib
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
from windlass.train.checkpoint.opening import open_folder
from windlass.train.report import checkpoint_line, checkpoint_text

LINGER_SECONDS = 20.0
"""Seconds that a writer may outlive its rank to finish a save."""
PARTS_SECONDS = 600.0
"""Seconds that rank 0 waits for the parts of other ranks. All ranks start their parts at the same step."""
POLL_SECONDS = 0.005
PARENT_SECONDS = 1.0


class Abandoned(Exception):
    """The running save must be abandoned; the message gives the reason."""


class Writer:
    """Carries out orders until its rank exits."""

    def __init__(self, settings: dict[str, Any], socket: int) -> None:
        self.rank: int = settings["rank"]
        self.world_size: int = settings["world_size"]
        self.parent: int = settings["parent"]
        self.memory: int = settings["memory"]
        self.mapped = memoryview(b"")
        self.for_windlass: bool = settings["for_windlass"]
        self.folder = open_folder(settings["folder"])
        self.socket = socket
        self.unread = b""
        self.waiting: list[dict[str, Any]] = []
        self.orphaned_at: float | None = None

    def run(self) -> None:
        """Runs until the socket closes."""
        while self.orphaned_at is None:
            self._listen(None)
            while self.waiting:
                order = self.waiting.pop(0)
                if order["do"] == "save":  # an "abandon" order here is for a save that has already ended
                    self._save(order)

    # -- orders -------------------------------------------------------------------------------------------------------

    def _listen(self, timeout: float | None) -> None:
        """Reads the orders that have arrived; without a `timeout`, waits for one."""
        while True:
            if self.orphaned_at is not None:
                time.sleep(timeout or 0.0)
                return
            if select.select([self.socket], [], [], PARENT_SECONDS if timeout is None else timeout)[0]:
                break
            # A child process of the rank may hold the other end of the socket open after the rank has exited.
            if os.getppid() != self.parent:
                self.orphaned_at = time.monotonic()
            if timeout is not None:
                return
        try:
            data = os.read(self.socket, 1 << 16)
        except OSError:  # the rank exited before it read an answer
            data = b""
        if not data:
            self.orphaned_at = time.monotonic()
        *lines, self.unread = (self.unread + data).split(b"\n")
        self.waiting += [json.loads(line) for line in lines]

    def _answer(self, **fields: Any) -> None:
        try:
            os.write(self.socket, json.dumps(fields).encode() + b"\n")
        except OSError:
            self.orphaned_at = self.orphaned_at or time.monotonic()

    def _check(self) -> None:
        """Called between two pieces of a write. Raises Abandoned if the running save must be abandoned."""
        self._listen(0)
        for order in self.waiting:
            if order["do"] == "abandon":
                self.waiting.remove(order)
                raise Abandoned(order["reason"])
        if self.orphaned_at is not None and time.monotonic() - self.orphaned_at > LINGER_SECONDS:
            raise Abandoned("its rank has ended")

    # -- saving -------------------------------------------------------------------------------------------------------

    def _save(self, order: dict[str, Any]) -> None:
        name, failed = order["name"], ""
        try:
            memory = self._memory(order["end"])
            self.folder.begin(name, order["manifest"]["run_id"] if self.rank == 0 else "")
            self._write_part(order, memory)
        except (OSError, Abandoned) as error:
            failed = _reason(error)
        self._answer(did="part", name=name, ok=not failed)
        if self.rank == 0:
            self._commit(order, failed)
        elif failed:
            self._mark_failed(name, failed)

    def _memory(self, end: int) -> memoryview:
        """Returns the shared memory up to `end`; mapped once for all saves of one size, since page faults take time."""
        if len(self.mapped) < end:
            self.mapped = memoryview(mmap.mmap(self.memory, os.fstat(self.memory).st_size, prot=mmap.PROT_READ))
        return self.mapped[:end]

    def _write_part(self, order: dict[str, Any], memory: memoryview) -> None:
        tensors, state = files.names_of(self.rank)
        checksum = 0

        def pieces() -> Iterator[memoryview]:
            nonlocal checksum
            for begin in range(0, order["tensors_end"], files.PIECE_BYTES):
                self._check()
                piece = memory[begin : min(begin + files.PIECE_BYTES, order["tensors_end"])]
                checksum = zlib.crc32(piece, checksum)
                yield piece

        self.folder.put(order["name"], tensors, pieces())
        part = {"part": {tensors: {"bytes": order["tensors_end"], files.CHECKSUM: f"{checksum:08x}"}}}
        # The entry of the tensors file and the rank's state are JSON objects, which are merged into one.
        own = memory[order["tensors_end"] + 1 : order["end"]]
        self.folder.put(order["name"], state, [json.dumps(part).encode()[:-1] + b", ", own])

    def _mark_failed(self, name: str, reason: str) -> None:
        """Creates a file that informs rank 0 that this rank's part failed."""
        for file in files.names_of(self.rank):
            with contextlib.suppress(OSError):
                self.folder.discard(name, file)
        for text in (reason.encode(), b""):  # an empty file can be written even if the disk is full
            try:
                self.folder.put(name, f"rank-{self.rank}.failed", [text])
                return
            except OSError:
                pass

    # -- committing ---------------------------------------------------------------------------------------------------

    def _commit(self, order: dict[str, Any], failed: str) -> None:
        """Commits the checkpoint, or abandons it and reports why; `failed` is the error of rank 0's own part."""
        name = order["name"]
        try:
            if failed:
                raise Abandoned(failed)
            self._await_parts(name)
            listed = self._manifest_files(name)
            manifest = {"format": files.FORMAT, **order["manifest"], "created_at": time.time(), "files": listed}
            self.folder.sync(name)
            self._check()
            self.folder.put(name, files.MANIFEST, [files.seal(manifest)])
            self.folder.sync(name)
        except (OSError, ValueError, KeyError, Abandoned) as error:
            self._give_up(order, _reason(error))
            return
        num_bytes = sum(file["bytes"] for file in listed.values())
        self._finish(order, "saved", bytes=num_bytes)
        try:
            run_id = order["manifest"]["run_id"]
            faults = dict.fromkeys(order["damaged"], Fault.DAMAGED)
            retention.prune(self.folder.path, run_id, order["keep"], order["keep_for"], faults=faults)
        except OSError:
            pass  # the next save prunes again

    def _await_parts(self, name: str) -> None:
        """Waits until the parts of all ranks exist. Raises Abandoned, and OSError if the folder has disappeared."""
        began = time.monotonic()
        missing = list(range(1, self.world_size))
        while missing:
            present = self.folder.files(name)
            for rank in range(1, self.world_size):
                if f"rank-{rank}.failed" in present:
                    reason = files.read_small(self.folder, name, f"rank-{rank}.failed").decode("utf-8", "replace")
                    raise Abandoned(f"rank {rank}: {reason or 'its part could not be written'}")
            missing = [rank for rank in missing if f"rank-{rank}.json" not in present]
            if missing:
                if time.monotonic() - began > PARTS_SECONDS:
                    ranks = ", ".join(str(rank) for rank in missing[:8])
                    raise Abandoned(f"ranks {ranks} wrote no part; do all nodes share {self.folder.path}?")
                self._check()
                self._listen(POLL_SECONDS)

    def _manifest_files(self, name: str) -> dict[str, Any]:
        listed: dict[str, Any] = {}
        sizes = self.folder.files(name)
        for rank in range(self.world_size):
            tensors, state = files.names_of(rank)
            own = files.read_small(self.folder, name, state)
            part = json.loads(own)["part"][tensors]
            if sizes.get(tensors) != part["bytes"]:
                raise Abandoned(f"{tensors} is not as rank {rank} has written it")
            listed[tensors] = part
            listed[state] = {"bytes": len(own), files.CHECKSUM: files.checksum(own)}
        return listed

    def _give_up(self, order: dict[str, Any], reason: str) -> None:
        with contextlib.suppress(OSError):  # files that cannot be removed have no manifest and are never loaded
            self.folder.remove(order["name"], files.MANIFEST)
        self._finish(order, "failed", reason=reason)

    def _finish(self, order: dict[str, Any], action: str, **facts: Any) -> None:
        """Writes an event line to the rank's output directly, because the rank may be in a long step, or dead."""
        fields = {
            "action": action,
            "step": order["manifest"]["step"],
            "name": order["name"],
            **facts,
            "seconds": round(time.time() - order["blocked_at"], 6),
            "blocked_at": order["blocked_at"],
            "blocked_seconds": order["blocked_seconds"],
        }
        line = checkpoint_line(fields) if self.for_windlass else checkpoint_text(fields).encode()
        with contextlib.suppress(OSError):
            os.write(1, line)
        self._answer(did="commit", name=order["name"], ok=action == "saved")


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror + (f": {error.filename}" if error.filename else "")
    return str(error) or type(error).__name__


def main(argv: list[str]) -> None:
    """Runs the writer process of one rank."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # these signals are for the rank, which may still save
    settings = json.loads(argv[0])
    sys.path += [one for one in settings.get("path", []) if one not in sys.path]
    Writer(settings, 0).run()


if __name__ == "__main__":
    main(sys.argv[1:])
