"""Saves one checkpoint at a time: all ranks copy their state, the ranks' writers write the copies, and rank 0's writer
commits.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from windlass.train.checkpoint import files
from windlass.train.checkpoint.consensus import Flags, World
from windlass.train.checkpoint.opening import open_folder
from windlass.train.checkpoint.settings import Settings
from windlass.train.checkpoint.snapshot import Copier, Snapshot
from windlass.train.checkpoint.writer_process import SharedMemory, WriterProcess
from windlass.train.report import report_checkpoint


class Saver:
    """Saves checkpoints of this rank. All ranks must call `prepare`, `begin`, `finish` and `await_commit` together."""

    def __init__(
        self, folder: str, attempt: int, run_id: str, world: World, settings: Settings, take: Callable[[], Snapshot]
    ) -> None:
        """`take` returns a snapshot of the current state."""
        self.run_id = run_id
        self.prunes = True
        """Whether saves remove old checkpoints; False after a failed restore."""
        self.damaged: list[str] = []
        """Checkpoints found damaged by a restore; the next save sets them aside."""
        self.began_at_step = -2
        self._folder = folder
        self._attempt = attempt
        self._salt = world.salt(attempt)
        self._world = world
        self._settings = settings
        self._take = take
        self._memory = SharedMemory()
        self._copier = Copier(world, self._memory)
        self.writer = WriterProcess(
            folder, world.rank, world.size, self._memory, for_windlass=bool(os.environ.get("WINDLASS_RUN_ID"))
        )
        self._due_from = time.monotonic()
        self._again = 0
        self._position = (-1, -1)
        """Step and epoch of the last save."""
        self._name = self._committed = ""
        self._part_failed = False
        self._awaited: set[str] = set()
        """Kinds of the writer's answers to the last order that have not arrived yet."""

    @property
    def busy(self) -> bool:
        """Whether a save of this rank is running, according to the answers read so far."""
        return bool(self._awaited)

    @property
    def part_is_written(self) -> bool:
        """Whether this rank's part of the running save, if any, is on the disk."""
        return "part" not in self._awaited

    def is_due(self) -> bool:
        """Whether a periodic save is due; rank 0 decides."""
        every = self._settings.every_seconds
        return every is not None and self._world.rank == 0 and time.monotonic() - self._due_from >= every

    def prepare(self) -> None:
        """Plans and reserves memory. A collective. Raises TypeError with the path of a value that cannot be saved."""
        self._copier.plan(self._take())

    def restored(self, found: files.Found) -> None:
        """Records that the current state is that of a checkpoint and need not be saved again."""
        self._position = (found.step, found.epoch)
        self._name = self._committed = found.name

    # -- saving -------------------------------------------------------------------------------------------------------

    def begin(self, *, may_skip: bool = False) -> bool:
        """Copies the state and starts writing it. With `may_skip`, returns False if a save is running; otherwise waits
        for it.
        """
        self.poll()
        snapshot = self._take()
        mine = Flags(busy=self.busy, unplanned=not self._copier.is_planned(snapshot))
        agree = self._world.begin_reduce(mine)
        # Flags rarely differ between ranks, so the state is copied without waiting for the reduction.
        copied = None if mine.busy or mine.unplanned else self._copied(snapshot)
        agreed = agree()
        if agreed.busy:
            if may_skip and self._world.can_communicate:
                return False
            self.await_writer()
        step, epoch = snapshot.progress["steps"], snapshot.progress["epoch"]
        self._due_from = time.monotonic()
        self.began_at_step = step
        self._again = self._again + 1 if self._position[0] == step else 0
        self._name = files.name_of(step, self._attempt, self._salt, self._again)
        self._position = step, epoch
        try:
            if agreed.unplanned:
                self._copier.plan(snapshot)
                copied = None
            self.writer.start()
            where = copied or self._copier.copy(snapshot)
            self._part_failed = False
            self.writer.send(self._order(snapshot, where))
            self._awaited = {"part", "commit"} if self._world.rank == 0 else {"part"}
        except OSError as error:
            self._give_up(f"{error.strerror or error}")
        return True

    def _copied(self, snapshot: Snapshot) -> dict[str, int] | None:
        """Copies the snapshot by the existing plan. Returns None on failure; `begin` then copies again and reports the
        error.
        """
        try:
            return self._copier.copy(snapshot)
        except OSError:
            return None

    def _order(self, snapshot: Snapshot, where: Mapping[str, int]) -> dict[str, Any]:
        return {
            "do": "save",
            "name": self._name,
            **where,
            "blocked_at": snapshot.began_at,
            "blocked_seconds": round(time.perf_counter() - snapshot.began, 6),
            "keep": self._settings.keep if self.prunes else None,
            "keep_for": self._settings.keep_for_seconds if self.prunes else None,
            "damaged": self.damaged,
            "manifest": {
                "step": snapshot.progress["steps"],
                "epoch": snapshot.progress["epoch"],
                "world_size": self._world.size,
                "attempt": self._attempt,
                "run_id": self.run_id,
            },
        }

    def finish(self, position: tuple[int, int]) -> bool:
        """Ensures that the current state is on the disk; returns whether it is. `position` is the step and epoch of the
        state.
        """
        self.await_writer()
        is_saved = self._position == position and self._is_committed()
        if not self._world.reduce(Flags(failed=not is_saved)).failed:
            return True
        self.begin()
        return self.await_commit()

    def await_writer(self) -> None:
        """Waits until no save of this rank is running."""
        while self.busy:
            self.poll(1.0)

    def await_commit(self) -> bool:
        """Waits for the running save; returns on all ranks whether it is committed. Raises RuntimeError if a rank has
        died.
        """
        while not self.part_is_written:
            self.poll(1.0)
        try:
            failed = self._world.reduce(Flags(failed=self._part_failed)).failed
        except RuntimeError:
            failed = True
        if failed and self.busy:  # without this order, rank 0 would wait for the part of a rank that has died or failed
            with contextlib.suppress(OSError):
                self.writer.send({"do": "abandon", "reason": "a rank's part could not be written"})
        self.await_writer()
        return not self._world.reduce(Flags(failed=not self._is_committed())).failed

    def _is_committed(self) -> bool:
        """Whether the last save is complete. Only rank 0 can check; other ranks return True."""
        return self._world.rank != 0 or self._committed == self._name

    def poll(self, timeout: float = 0.0) -> None:
        """Reads the answers of the writer."""
        for answer in self.writer.receive(timeout):
            if answer["did"] == "died":
                if self.busy:
                    self._give_up("the writer process died")
                self._awaited = set()
            elif answer["did"] == "part":
                self._part_failed = not answer["ok"]
            elif answer["ok"]:
                self._committed = answer["name"]
                self.damaged = []
            self._awaited.discard(answer["did"])

    def close(self) -> None:
        """Ends the writer once a running save is finished."""
        self.writer.close(busy=self.busy)
        self._memory.close()

    def _give_up(self, reason: str) -> None:
        """Abandons this rank's part: rank 0 reports it, other ranks inform rank 0's writer."""
        self._part_failed = True
        folder, name, rank = open_folder(self._folder), self._name, self._world.rank
        # Errors are ignored: without a manifest the checkpoint is never loaded, and rank 0's wait has a time limit.
        with contextlib.suppress(OSError):
            if rank == 0:
                folder.remove(name, files.MANIFEST)
            else:
                folder.begin(name)  # the folder is created here if rank 0's writer has not created it yet
                folder.put(name, f"rank-{rank}.failed", [reason.encode()])
        if rank == 0:
            report_checkpoint({"action": "failed", "step": self._position[0], "name": name, "reason": reason})
