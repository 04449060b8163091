"""The three lines by which a training script becomes one that cannot be lost: `Checkpoint`."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from windlass.train.checkpoint import agreement, buckets, files, rng
from windlass.train.checkpoint.beside import CopyBeside, is_wanted
from windlass.train.checkpoint.faults import Fault, Problem, described
from windlass.train.checkpoint.parts import ModulePart, make_parts
from windlass.train.checkpoint.restore import Loader, Refused, choose, choose_only, list_together, unreadable
from windlass.train.checkpoint.retry import Retry, seconds_of
from windlass.train.checkpoint.saving import Copier, Snapshot
from windlass.train.checkpoint.settings import settle
from windlass.train.checkpoint.storage import Folder
from windlass.train.checkpoint.writing import SharedMemory, WriterProcess
from windlass.train.report import report, report_checkpoint

Batch = TypeVar("Batch")
EXIT_CODE = 128 + signal.SIGTERM
_STOP, _DUE, _BUSY, _SPOILED, _UNPLANNED = range(5)
_EXIT_SECONDS = 30.0
"""How long the end of a process waits for its part of a save that is under way."""
_EXIT_COMMIT_SECONDS = 5.0
"""How long it waits for the parts of the others: they may be dead."""
_FLAGS = agreement.NUM_FLAGS


class Preempted(SystemExit):
    """SIGTERM came and the state is saved. Ends the process with code 143, as the signal would have."""

    def __init__(self) -> None:
        super().__init__(EXIT_CODE)


class Checkpoint:
    """Saves a training beside the training itself, and goes on from the newest save that is verified.

        saved = Checkpoint(model=model, optimizer=optimizer, sampler=sampler)
        for epoch in saved.epochs(10):
            for batch in saved.batches(loader):
                ...

    Making one is collective where torch.distributed is initialised: all ranks make it, and in the same order.

    Args:
        folder: where checkpoints are kept; default `$WINDLASS_CHECKPOINT_DIR`, else `checkpoints`.
        every: how often to save: a number of steps, or a time as "5min". Default `$WINDLASS_CHECKPOINT_EVERY`, else
            5 minutes. A time takes torch.distributed if there are several ranks.
        keep: how many to keep; default `$WINDLASS_CHECKPOINT_KEEP`, else 3.
        keep_for: how long to keep each, as "7d"; the newest stays in any case. Default: as long as `keep` says.
        when_busy: what a save does while another is under way: "skip" or "wait".
        allow_pickle: store what has no plain form by pickle, and load it again. Unpickling runs code of whoever wrote
            the checkpoint.
        parts: what to keep, by name: modules, optimizers, schedulers, scalers, samplers, loaders, and dicts of your
            own. Random number generators of Python, NumPy and torch are kept without being named.

    Raises:
        TypeError: a part is nothing that can be kept.
        ValueError: a setting makes no sense.
        OSError: the folder cannot be made, or not be read (`UnreadableCheckpoint`, on all ranks).
    """

    def __init__(
        self,
        *,
        folder: str | os.PathLike[str] | None = None,
        every: int | str | None = None,
        keep: int | None = None,
        keep_for: str | float | None = None,
        when_busy: str = "skip",
        allow_pickle: bool = False,
        **parts: Any,
    ) -> None:
        self._environ: Mapping[str, str] = os.environ
        self._settings = settle(folder, every, keep, keep_for, when_busy, self._environ)
        self._parts = make_parts(parts)
        self._allow_pickle = allow_pickle
        self._folder = str(Path(self._settings.folder).absolute())
        self._stop_asked = False
        self._retry = Retry(seconds_of(self._environ), gives_up=lambda: self._stop_asked)
        self._make_folder()
        given = self._environ.get("WINDLASS_ATTEMPT", "")
        self._attempt = int(given) if given.isdigit() else 0
        self._world = agreement.join(self._folder, self._attempt or 1, self._environ)
        self._attempt = self._attempt or self._next_attempt()
        self._salt = self._world.salt(self._attempt)
        # Outside of Windlass a training has the id of the checkpoint that it goes on from, or one of its own.
        self._run_id = self._environ.get("WINDLASS_RUN_ID") or str(self._world.broadcast(secrets.token_hex(8)))
        self._pid = os.getpid()
        self._memory = SharedMemory()
        self._copier = Copier(self._world, self._memory)
        self._writer = WriterProcess(
            self._folder, self._world.rank, self._world.size, self._memory,
            for_windlass=bool(self._environ.get("WINDLASS_RUN_ID")),
        )  # fmt: skip
        self.steps = 0
        """Steps done over the whole run, those before a restart included."""
        self.epoch = 0
        """The epoch under way."""
        self._steps_in_epoch = 0
        self._rng: dict[str, Any] | None = None
        self._skip_batches = 0
        self._restored = False
        self._prunes = True
        """Whether saves remove old checkpoints; not after a restore that failed."""
        self._prepared = False
        self._again = 0
        self._saved_at: tuple[int, int] | None = None
        self._name = self._committed = ""
        self._began_at_step = -2
        self._due_from = time.monotonic()
        self._damaged: list[str] = []
        self._part_failed = False
        self._beside: CopyBeside | None = None
        self._copies_beside = self._world.talks and is_wanted(self._environ)
        self._spoiled = False
        self._hook: Any = None
        self._earlier_handler: Any = None
        self._hears = False
        self._closed = False
        atexit.register(self._at_exit)

    def _next_attempt(self) -> int:
        """One more than any that has left something here, where nobody counts attempts for us."""
        if not self._world.talks:
            return 1
        before = list_together(self._folder, self._world, self._retry)
        return 1 + max((found.attempt for found in before), default=0)

    # -- the loop -----------------------------------------------------------------------------------------------------

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """Restore, then give the numbers of the epochs that remain; at the end save once more and close.

        Parts that have `set_epoch` are told each number. Raises as `restore` does.
        """
        if not self._restored:
            self.restore()
        while self.epoch < num_epochs:
            for part in self._parts:
                if callable(getattr(part.thing, "set_epoch", None)):
                    part.thing.set_epoch(self.epoch)
            yield self.epoch
            self.epoch += 1
            self._steps_in_epoch = 0
            self._skip_batches = 0
        self._save_final()
        self.close()

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """The batches of a loader; after the body of each, a step is done.

        After a restore, random numbers go on as they were in the middle of the epoch. Where no part knows the position
        in the epoch, the batches that were trained on already are drawn and thrown away.
        """
        self._hear_stop()
        iterator = iter(loader)
        skip, self._skip_batches = self._skip_batches, 0
        for _ in range(skip):
            next(iterator, None)
        if self._rng is not None:
            # Not before: an iterator of torch's draws its seed from these very numbers.
            rng.put_back(self._rng)
            self._rng = None
        for batch in iterator:
            yield batch
            self.step()

    def step(self) -> None:
        """A step is done: save if it is time. Raises Preempted when the ranks have agreed to stop, and are saved."""
        self._hear_stop()
        self.steps += 1
        self._steps_in_epoch += 1
        for part in self._parts:
            if callable(getattr(part.thing, "advance", None)):
                part.thing.advance()
        if self._environ.get("WINDLASS_RUN_ID"):
            report(step=self.steps)
        self._hear_writer()
        if not self._prepared:
            self._prepare()
        flags = [0] * _FLAGS
        flags[_STOP] = int(self._stop_asked)
        flags[_DUE] = int(self._is_time())
        flags[_BUSY] = int(self._writer.busy)
        flags[_SPOILED], self._spoiled = int(self._spoiled), False
        agreed = self._world.exchange(flags)
        if agreed[_STOP]:
            self._stop()
        every = self._settings.every_steps
        if agreed[_SPOILED]:
            self._save_spoiled()
        elif agreed[_DUE] or (every is not None and self.steps % every == 0):
            self._save_periodic(busy=bool(agreed[_BUSY]) or self._has_just_begun())

    def _has_just_begun(self) -> bool:
        """Whether a save was begun after the flags that are agreed on by now were given."""
        return self._world.size > 1 and self._began_at_step >= self.steps - 1

    def _prepare(self) -> None:
        """At the first step: what cannot be kept is known now and not at the first save, and memory is there for it."""
        self._prepared = True
        self._copier.plan(self._snapshot())
        self._memory.populate()

    def _is_time(self) -> bool:
        every = self._settings.every_seconds
        return every is not None and self._world.rank == 0 and time.monotonic() - self._due_from >= every

    # -- saving -------------------------------------------------------------------------------------------------------

    def save(self, wait: bool = False) -> bool:
        """Save now; a collective. With `wait`, until it is committed.

        Gives whether a save was begun or, with `wait`, whether it is safe on the disk. One that fails is told, and the
        training goes on. Raises TypeError if a part's state cannot be kept.
        """
        self._hear_writer()
        snapshot = self._snapshot()
        flags = self._flag(_UNPLANNED, not self._copier.is_planned(snapshot))
        flags[_BUSY] = int(self._writer.busy)
        agreed = self._world.now(flags)  # one exchange for both questions: each holds the training
        busy = bool(agreed[_BUSY])
        if busy and not wait and not self._settings.waits_when_busy and self._world.talks:
            self._tell("skipped", reason="the save before it is still under way")
            return False
        if busy:
            self._await_writer()
        # Only the next step would see to it that a spoiled copy is made again.
        self._begin(snapshot, agreed, beside=not wait and self._prepared)
        return self._await_commit() if wait else self._writer.busy

    def _save_periodic(self, *, busy: bool) -> None:
        if not self._world.talks or (busy and self._settings.waits_when_busy):
            self._await_writer()
        elif busy:
            if self._settings.every_steps is not None:
                self._tell("skipped", reason="the save before it is still under way")
            return
        self._begin_together(beside=True)

    def _save_spoiled(self) -> None:
        """Save once more, at once: what was copied beside the training was not the state of one moment."""
        self._copies_beside = False
        self._await_writer()
        self._begin_together()

    def _save_final(self) -> bool:
        """Have the present state on the disk; True where it is."""
        self._await_writer()
        safe = self._saved_at == (self.steps, self.epoch) and self._is_committed()
        if not self._world.now(self._flag(_BUSY, not safe))[_BUSY]:
            return True
        self._begin_together()
        return self._await_commit()

    def _begin_together(self, *, beside: bool = False) -> None:
        """As `_begin`, of the state as it is now."""
        snapshot = self._snapshot()
        agreed = self._world.now(self._flag(_UNPLANNED, not self._copier.is_planned(snapshot)))
        self._begin(snapshot, agreed, beside=beside)

    def _begin(self, snapshot: Snapshot, agreed: list[int], *, beside: bool) -> None:
        """Copy the state and have it written; with `beside`, large tensors later. Ranks come here together."""
        self._finish_copy()
        began_at, began = snapshot.begun_at
        self._due_from = time.monotonic()
        self._began_at_step = self.steps
        again = self._saved_at is not None and self._saved_at[0] == self.steps
        self._again = self._again + 1 if again else 0
        name = files.name_of(self.steps, self._attempt, self._salt, self._again)
        self._saved_at, self._name = (self.steps, self.epoch), name
        try:
            if agreed[_UNPLANNED]:
                self._copier.plan(snapshot)
            self._writer.start()
            copied = self._copier.copy(snapshot, beside=beside and self._copies_beside)
            self._part_failed = False
            blocked = time.perf_counter() - began
            order = {
                "do": "save", "name": name, **copied.where, "asked_at": began_at,
                "blocked_at": began_at, "blocked_seconds": round(blocked, 6),
                "keep": self._settings.keep if self._prunes else None,
                "keep_for": self._settings.keep_for_seconds if self._prunes else None,
                "damaged": self._damaged,
                "manifest": {
                    "step": self.steps, "epoch": self.epoch, "world_size": self._world.size, "attempt": self._attempt,
                    "run_id": self._run_id,
                },
            }  # fmt: skip
            self._beside = copied.go_on(lambda waited: self._send(order, blocked + waited))
            if self._beside is not None:
                self._hold_optimizers()
            else:
                self._writer.send(order)
            self._writer.expect(order)
        except OSError as error:
            self._give_up(name, f"{error.strerror or error}")

    def _send(self, order: dict[str, Any], blocked: float) -> None:
        """On the thread of the copy: have written what is copied now. Raises OSError."""
        self._writer.send({**order, "blocked_seconds": round(blocked, 6)})

    def _hold_optimizers(self) -> None:
        """Have every optimizer of torch wait, before it steps, for a copy that is under way."""
        if self._hook is None:
            self._hook = register_optimizer_step_pre_hook(self._before_optimizer)

    def _before_optimizer(self, *_: Any) -> None:
        beside = self._beside
        # A compiled step would be cut in two by it; what it spoils is noticed.
        if beside is not None and not torch.compiler.is_compiling():
            beside.wait()

    def _finish_copy(self) -> None:
        """Wait for a copy that is under way, and take in what became of it."""
        if self._beside is None:
            return
        self._beside.wait()
        beside, self._beside = self._beside, None
        order = self._writer.current
        if not beside.reason or order is None:
            return
        if beside.was_written:
            self._copies_beside = False
            self._spoiled = True
        self._writer.forget()
        self._give_up(order["name"], beside.reason)

    def _snapshot(self) -> Snapshot:
        progress: dict[str, Any] = {
            "steps": self.steps, "epoch": self.epoch, "steps_in_epoch": self._steps_in_epoch,
        }  # fmt: skip
        if self._world.size >= buckets.FEWEST_RANKS:
            progress["buckets"] = buckets.orders(self._parts)
        return Snapshot(self._parts, progress, self._world.rank, allow_pickle=self._allow_pickle)

    def _await_writer(self) -> None:
        self._finish_copy()
        while self._writer.busy:
            self._hear_writer(1.0)

    def _await_commit(self) -> bool:
        """Wait for the save under way; all ranks are told what became of it. Raises RuntimeError if a rank is gone."""
        while not self._writer.part_is_written:
            self._hear_writer(1.0)
        parts: agreement.Promise | None = self._world.begin(self._flag(_BUSY, self._part_failed))
        while self._writer.busy:
            self._hear_writer(0.05)
            if parts is not None and parts.is_done():
                # Rank 0 would wait in vain for the part of a rank that is gone or has failed.
                try:
                    failed = bool(parts.result()[_BUSY])
                except RuntimeError:
                    failed = True
                parts = None
                if failed:
                    self._writer.abandon("a rank's part could not be written")
        if parts is not None:
            parts.result()
        return not self._world.now(self._flag(_STOP, not self._is_committed()))[_STOP]

    def _is_committed(self) -> bool:
        """Whether the last save is whole, as far as this rank can know: rank 0 knows."""
        return self._world.rank != 0 or self._committed == self._name

    def _hear_writer(self, timeout: float = 0.0) -> None:
        """Take in what the writer says."""
        for answer in self._writer.poll(timeout):
            if answer["did"] == "part":
                self._part_failed = not answer["ok"]
            elif answer["did"] == "commit" and answer["ok"]:
                self._committed = answer["name"]
                self._damaged = []
            elif answer["did"] == "died":
                self._writer_died(answer["order"])
        if self._beside is not None and self._beside.is_over:
            self._finish_copy()

    def _writer_died(self, order: Mapping[str, Any] | None) -> None:
        if order is not None:
            self._give_up(order["name"], "the writer process died")

    def _give_up(self, name: str, reason: str) -> None:
        """This rank's part will not come: rank 0 tells it, and the others tell rank 0's writer."""
        self._part_failed = True
        if self._world.rank == 0:
            with contextlib.suppress(OSError):
                Folder(self._folder).remove(name, files.MANIFEST)
            self._tell("failed", name=name, reason=reason)
            return
        try:
            path = Path(self._folder) / name
            path.mkdir(exist_ok=True)  # the writer of rank 0 may not have come to it yet
            (path / f"rank-{self._world.rank}.failed").write_text(reason)
        except OSError:
            pass  # rank 0 gives up by itself

    @staticmethod
    def _flag(flag: int, value: object) -> list[int]:
        flags = [0] * _FLAGS
        flags[flag] = int(bool(value))
        return flags

    def _tell(self, action: str, **fields: Any) -> None:
        if self._world.rank == 0:
            report_checkpoint({"action": action, "step": self.steps, **fields})

    # -- stopping -----------------------------------------------------------------------------------------------------

    def _hear_stop(self) -> None:
        """From now on SIGTERM means: save, then end."""
        if self._hears or self._closed or threading.current_thread() is not threading.main_thread():
            return
        self._hears = True
        self._earlier_handler = signal.signal(signal.SIGTERM, self._take_stop)

    def _take_stop(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            # A process that the script has forked: there the signal means what it always does.
            signal.signal(signal.SIGTERM, self._earlier_handler or signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        self._stop_asked = True
        if callable(self._earlier_handler):
            self._earlier_handler(number, frame)

    def _stop(self) -> None:
        safe = self._save_final()
        if self._world.rank == 0:
            what = f"the state at step {self.steps} is saved" if safe else f"step {self.steps} could not be saved"
            print(f"windlass: SIGTERM: {what}; ending", file=sys.stderr, flush=True)
        self.close()
        raise Preempted

    # -- restoring ----------------------------------------------------------------------------------------------------

    def _make_folder(self) -> None:
        """Make the folder if it is not there. Raises UnreadableCheckpoint where its file system fails, OSError."""
        try:
            self._retry.call(lambda: Path(self._folder).mkdir(parents=True, exist_ok=True), self._folder)
        except OSError as error:
            if error.errno not in (errno.EIO, errno.ESTALE):
                raise
            raise unreadable(self._folder, [Problem(Fault.UNREADABLE, described(error, self._folder))]) from error

    def restore(self) -> int:
        """Go on from the newest verified checkpoint; gives how many steps are done, 0 where there is none.

        A collective, to be called once, by `epochs` if not before. Checkpoints that are proved damaged are passed over
        and reported; the next save sets them aside. Where all are damaged, training begins at step 0 with a warning.
        Reads that the file system fails are repeated for `$WINDLASS_CHECKPOINT_RETRY_SECONDS`, 60 unless set.
        `$WINDLASS_RESUME_FROM` names the one to take.

        Raises:
            ValueError: the checkpoint does not fit what `Checkpoint` was given; all differences are named. Or the only
                checkpoints are of an unknown format (`UnknownFormat`).
            FileNotFoundError: the one that was asked for is not there.
            OSError: a checkpoint is there and cannot be read (`UnreadableCheckpoint`). All ranks raise it.

        A script that trains on in spite of an error removes no checkpoint any more.
        """
        began = time.perf_counter()
        self._restored = True
        self._prunes = False
        self._hear_stop()
        wanted = self._environ.get("WINDLASS_RESUME_FROM")
        if wanted:
            found: files.Found | None = choose_only(wanted, self._folder, self._world, self._retry)
        else:
            found, refused = choose(self._folder, self._world, self._retry, self._run_id)
            self._pass_over(refused, found)
        if found is None:
            self._prunes = True
            return 0
        loader = Loader(found, self._parts, self._world, self._retry, allow_pickle=self._allow_pickle)
        loader.load()
        self._go_on_from(loader, found)
        self._prunes = True
        seconds = round(time.perf_counter() - began, 6)
        self._tell("restored", name=found.name, bytes=found.bytes, seconds=seconds)
        return self.steps

    def _pass_over(self, refused: list[Refused], taken: files.Found | None) -> None:
        """Report what was passed over; the next save sets aside what of it is damaged."""
        for one in refused:
            if one.fault is Fault.DAMAGED:
                self._damaged.append(one.found.name)
            if self._world.rank == 0:
                fields = {"step": one.found.step, "name": one.found.name, "reason": one.reason}
                report_checkpoint({"action": "refused", **fields})
        if refused and taken is None:
            self._take_run_id(refused[0].found)
            reason = f"all {len(refused)} checkpoints in {self._folder} are damaged; they are kept"
            self._tell("none-verified", reason=reason)

    def _take_run_id(self, found: files.Found) -> None:
        """Outside of Windlass: go on as the run that saved `found`, whose checkpoints are then pruned."""
        if not self._environ.get("WINDLASS_RUN_ID") and found.run_id:
            self._run_id = found.run_id

    def _go_on_from(self, loader: Loader, found: files.Found) -> None:
        self._take_run_id(found)
        self.steps, self.epoch = loader.common["steps"], loader.common["epoch"]
        self._steps_in_epoch = loader.common["steps_in_epoch"]
        self._saved_at, self._name, self._committed = (self.steps, self.epoch), found.name, found.name
        if self.steps and loader.same_world:
            buckets.bring_back(self._parts, loader.common.get("buckets", {}))
        if loader.own is not None:
            self._rng = loader.own["rng"]
            rng.put_back(loader.own["rng"])
        knows = any(part.per_rank or callable(getattr(part.thing, "advance", None)) for part in self._parts)
        if not knows:
            self._skip_batches = self._steps_in_epoch * found.world_size // self._world.size

    # -- the end ------------------------------------------------------------------------------------------------------

    def export(self, path: str | os.PathLike[str], part: str | None = None) -> None:
        """Write a module as it is now, whole and without DDP's prefix: `model.pt` or `model.safetensors`.

        A collective; rank 0 writes, and the file is there whole or not at all. `part` is needed where several modules
        are kept. Raises ValueError for another ending or an unknown part, and OSError.
        """
        from windlass.train.checkpoint.export import export

        modules = {part.name: part.thing for part in self._parts if isinstance(part, ModulePart)}
        export(modules, part, Path(path), self._world)

    def close(self) -> None:
        """Wait for what is being written and give SIGTERM its earlier meaning back. May be called twice."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._at_exit)
        self._await_writer()
        self._end()

    def _end(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        self._writer.close()
        self._world.close()
        if self._hears and threading.current_thread() is threading.main_thread():
            self._hears = False
            signal.signal(signal.SIGTERM, self._earlier_handler or signal.SIG_DFL)

    def _at_exit(self) -> None:
        """The process ends without `close`: give a save that is under way some time, unless we are being ended."""
        if os.getpid() != self._pid:
            return
        began = time.monotonic()
        self._finish_copy()
        while self._writer.busy:
            own = not self._writer.part_is_written
            patience = 1.0 if self._stop_asked else _EXIT_SECONDS if own else _EXIT_COMMIT_SECONDS
            if time.monotonic() - began > patience:
                break  # the writer goes on for a while by itself, if it is let
            self._hear_writer(0.1)
        self._closed = True
        self._end()
