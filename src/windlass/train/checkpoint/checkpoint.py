"""`Checkpoint`: saves a training run, restores it, and on SIGTERM ends it with its state saved."""

from __future__ import annotations

import atexit
import errno
import os
import secrets
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from windlass.train.checkpoint import buckets, consensus, files
from windlass.train.checkpoint.faults import Fault, Problem, described
from windlass.train.checkpoint.loader import Loader
from windlass.train.checkpoint.loader_workers import set_apart
from windlass.train.checkpoint.opening import open_folder
from windlass.train.checkpoint.parts import ModulePart, make_parts
from windlass.train.checkpoint.random_numbers import RandomNumbers, is_generator
from windlass.train.checkpoint.restore import choose, choose_only, list_together, unreadable
from windlass.train.checkpoint.retry import Retry, seconds_of
from windlass.train.checkpoint.saver import Saver
from windlass.train.checkpoint.settings import settle
from windlass.train.checkpoint.snapshot import Snapshot
from windlass.train.checkpoint.stop_signal import Preempted, StopSignal
from windlass.train.checkpoint.storage import absolute
from windlass.train.report import count_steps, report, report_checkpoint
from windlass.train.sampler import BatchSampler

Batch = TypeVar("Batch")
_EXIT_SECONDS = 30.0
"""Seconds that the exiting process waits for its own part of a running save."""
_EXIT_COMMIT_SECONDS = 5.0
"""Seconds that the exiting process waits for the parts of other ranks, which may be dead."""


class Checkpoint:
    """Saves a training while it runs, and resumes from the newest verified checkpoint.

        saved = Checkpoint(model=model, optimizer=optimizer, sampler=sampler)
        for epoch in saved.epochs(10):
            for batch in saved.batches(loader):
                ...

    The constructor is a collective if torch.distributed is initialized: all ranks call it, in the same order.

    Args:
        folder: where checkpoints are kept: a path, or `s3://bucket/prefix`, `gs://…` or `az://…`. Default
            `$WINDLASS_CHECKPOINT_DIR`, else `checkpoints`.
        every: how often to save: a number of steps, or a time such as "5min". Default `$WINDLASS_CHECKPOINT_EVERY`,
            else 5 minutes. With several ranks, a time requires torch.distributed.
        keep: number of checkpoints to keep; default `$WINDLASS_CHECKPOINT_KEEP`, else 3.
        keep_for: maximum age of a checkpoint, such as "7d"; the newest is always kept. Default: no limit.
        when_busy: what a save does while an earlier save runs: "skip" or "wait".
        allow_pickle: store values without a JSON form by pickle, and load them. Unpickling runs code that the
            checkpoint contains.
        parts: objects to save, by name: modules, optimizers, schedulers, scalers, samplers, loaders, random number
            generators, and dicts. The generators of Python, NumPy, torch and the loader given to `batches` are always
            saved, for each rank.

    Raises:
        TypeError: a part cannot be saved.
        ValueError: a setting is invalid.
        OSError: the folder cannot be created, or cannot be read (`UnreadableCheckpoint`, on all ranks).
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
        self._random = RandomNumbers({name: thing for name, thing in parts.items() if is_generator(thing)})
        self._parts = make_parts({name: thing for name, thing in parts.items() if not is_generator(thing)})
        self._allow_pickle = allow_pickle
        self._folder = absolute(self._settings.folder)
        self._stop_signal = StopSignal()
        self._retry = Retry(seconds_of(self._environ), gives_up=lambda: self._stop_signal.received)
        self._make_folder()
        given = self._environ.get("WINDLASS_ATTEMPT", "")
        attempt = int(given) if given.isdigit() else 0
        self._world = consensus.join(self._folder, attempt or 1, self._environ)
        # Outside Windlass, a script takes the run id of the checkpoint that it resumes from, or creates a run id.
        run_id = self._environ.get("WINDLASS_RUN_ID") or str(self._world.broadcast(secrets.token_hex(8)))
        self.steps = 0
        """Completed steps over the whole run, including the steps before a restart."""
        self.epoch = 0
        """Number of the current epoch."""
        self._steps_in_epoch = 0
        self._saver = Saver(
            self._folder, attempt or self._next_attempt(), run_id, self._world, self._settings, self._snapshot
        )
        self._rng: dict[str, Any] | None = None
        """State of the generators to restore once the loader of the resumed epoch has drawn its own random numbers."""
        self._epoch_rng: dict[str, Any] | None = None
        """State of the generators before the loader of the current epoch drew from them."""
        self._skip_batches = 0
        self._restored = self._prepared = self._closed = False
        self._pid = os.getpid()
        atexit.register(self._at_exit)

    def _next_attempt(self) -> int:
        """Outside Windlass, returns one more than the highest attempt number among all checkpoints, unfinished ones
        included.

        Ranks that cannot communicate each list the folder and find the same number, because no rank saves before all
        ranks have made a step. The number keeps this start's checkpoints apart from those of an earlier start in the
        same environment.
        """
        before = list_together(self._folder, self._world, self._retry)
        return 1 + max((found.attempt for found in before), default=0)

    def _make_folder(self) -> None:
        """Creates the folder if it is missing. Raises UnreadableCheckpoint if the file system fails, otherwise
        OSError.
        """
        try:
            self._retry.call(lambda: open_folder(self._folder).make(), self._folder)
        except OSError as error:
            if error.errno not in (errno.EIO, errno.ESTALE):
                raise
            raise unreadable(self._folder, [Problem(Fault.UNREADABLE, described(error, self._folder))]) from error

    # -- the loop -----------------------------------------------------------------------------------------------------

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """Restore, then yield the numbers of the epochs that remain; at the end save once more and close.

        Calls `set_epoch` of the parts that have it. Raises as `restore` does.
        """
        if not self._restored:
            self.restore()
        while self.epoch < num_epochs:
            for part in self._parts:
                if callable(getattr(part.thing, "set_epoch", None)):
                    part.thing.set_epoch(self.epoch)
            try:
                yield self.epoch
            except GeneratorExit:  # after `break` or an error, no later step would handle a SIGTERM
                self._stop_signal.remove()
                raise
            self.epoch += 1
            self._steps_in_epoch = 0
            self._skip_batches = 0
        self._saver.finish((self.steps, self.epoch))
        self.close()

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yields the batches of a loader, and counts one step after each batch.

        After a restore, random numbers continue from their state in the middle of the epoch. If no part records the
        position in the epoch, the loader draws its order again from the random numbers at the start of the epoch, and
        the batches that were already trained on are drawn and discarded.
        """
        self._handle_sigterm()
        self._warn_of_left_out(getattr(loader, "batch_sampler", None))
        self._random.add_that_of(loader)
        set_apart(loader)
        # At this point the loader has not drawn any random number in this epoch.
        if self._rng is not None and not self._steps_in_epoch:
            self._random.restore(self._rng)
            self._rng = None
        if self._rng is not None and self._epoch_rng is not None:
            self._random.restore(self._epoch_rng)
        else:
            self._epoch_rng = self._random.state()
        iterator = iter(loader)
        skip, self._skip_batches = self._skip_batches, 0
        for _ in range(skip):
            next(iterator, None)
        if self._rng is not None:
            # Restored only now, because an iterator of torch's DataLoader draws its seed from these random numbers.
            self._random.restore(self._rng)
            self._rng = None
        for batch in iterator:
            yield batch
            self.step()

    def _warn_of_left_out(self, sampler: object) -> None:
        """Warns about a sampler that is not a part, because it would use the same order in every epoch."""
        if isinstance(sampler, BatchSampler) and all(part.thing is not sampler for part in self._parts):
            warnings.warn(
                "the BatchSampler of this loader is no part of the Checkpoint, which therefore neither sets its epoch "
                "nor keeps its position: Checkpoint(sampler=sampler, ...)",
                stacklevel=3,
            )

    def step(self) -> None:
        """Counts a step and saves if a save is due. Raises Preempted once all ranks have agreed to stop and
        have saved.
        """
        self._handle_sigterm()
        self.steps += 1
        self._steps_in_epoch += 1
        for part in self._parts:
            if callable(getattr(part.thing, "advance", None)):
                part.thing.advance()
        count_steps(self.steps)
        if self._environ.get("WINDLASS_RUN_ID"):
            report(step=self.steps)
        saver = self._saver
        saver.poll()
        if not self._prepared:
            # Unsupported parts are detected at the first step, so that the error is not raised at the first save.
            self._prepared = True
            saver.prepare()
        agreed = self._world.exchange(
            consensus.Flags(stop=self._stop_signal.received, due=saver.is_due(), busy=saver.busy)
        )
        if agreed.stop:
            self._stop()
        every = self._settings.every_steps
        # With several ranks, the flags are those of the previous step: a save that they ask for may have begun already.
        is_due = agreed.due and (self._world.size == 1 or saver.began_at_step < self.steps - 1)
        if is_due or (every is not None and self.steps % every == 0):
            self._save_periodic(busy=agreed.busy)

    def _save_periodic(self, *, busy: bool) -> None:
        """Starts a periodic save, or skips it while an earlier save still runs. `busy` is set if a rank reported a
        running save.
        """
        waits = self._settings.waits_when_busy
        is_skipped = busy and self._world.can_communicate and not waits
        if (is_skipped or not self._saver.begin(may_skip=not waits)) and self._settings.every_steps is not None:
            self._report_skipped()  # a time-based save is not reported, because it stays due

    def save(self, wait: bool = False) -> bool:
        """Saves now. A collective. With `wait`, returns once the checkpoint is committed.

        After an epoch's loop over batches, a resume from this save repeats the code that follows the loop, such as a
        scheduler's step. Returns whether a save was started or, with `wait`, whether it is on the disk. A save that
        fails is reported, and training continues. Raises TypeError if a part's state cannot be saved.
        """
        if not self._saver.begin(may_skip=not wait and not self._settings.waits_when_busy):
            self._report_skipped()
            return False
        return self._saver.await_commit() if wait else self._saver.busy

    def _snapshot(self) -> Snapshot:
        progress: dict[str, Any] = {
            "steps": self.steps,
            "epoch": self.epoch,
            "steps_in_epoch": self._steps_in_epoch,
        }
        if self._world.size >= buckets.MIN_RANKS:
            progress["buckets"] = buckets.orders(self._parts)
        rng = self._random.state()
        if self._steps_in_epoch and self._epoch_rng is not None and not self._has_position():
            rng["epoch"] = self._epoch_rng
        return Snapshot(self._parts, progress, self._world.rank, rng, allow_pickle=self._allow_pickle)

    def _has_position(self) -> bool:
        """Whether a part records the position in the epoch."""
        return any(part.per_rank or callable(getattr(part.thing, "advance", None)) for part in self._parts)

    def _report(self, action: str, **fields: Any) -> None:
        if self._world.rank == 0:
            report_checkpoint({"action": action, "step": self.steps, **fields})

    def _report_skipped(self) -> None:
        self._report("skipped", reason="the save before it is still under way")

    def _handle_sigterm(self) -> None:
        if not self._closed:
            self._stop_signal.install()

    def _stop(self) -> None:
        is_saved = self._saver.finish((self.steps, self.epoch))
        if self._world.rank == 0:
            what = f"the state at step {self.steps} is saved" if is_saved else f"step {self.steps} could not be saved"
            print(f"windlass: SIGTERM: {what}; ending", file=sys.stderr, flush=True)
        self._stop_signal.keep()
        self.close()
        raise Preempted

    # -- restoring ----------------------------------------------------------------------------------------------------

    def restore(self) -> int:
        """Resumes from the newest verified checkpoint; returns the number of completed steps, 0 without a checkpoint.

        A collective, called once; `epochs` calls it unless the script has. Checkpoints that are proved damaged are
        skipped and reported; the next save sets them aside. If all are damaged, training starts at step 0 with a
        warning. Reads that fail in the file system are repeated for `$WINDLASS_CHECKPOINT_RETRY_SECONDS`, 60 unless
        set. `$WINDLASS_RESUME_FROM` selects a checkpoint.

        Raises:
            ValueError: the checkpoint does not match the parts given to `Checkpoint`; all differences are listed.
                Or the only checkpoints are of an unknown format (`UnknownFormat`).
            FileNotFoundError: the checkpoint in `$WINDLASS_RESUME_FROM` does not exist.
            OSError: a checkpoint exists and cannot be read (`UnreadableCheckpoint`). All ranks raise it.

        If the script continues after an error, its saves remove no checkpoints.
        """
        began = time.perf_counter()
        self._restored = True
        self._saver.prunes = False
        self._handle_sigterm()
        wanted = self._environ.get("WINDLASS_RESUME_FROM")
        found: files.Found | None
        if wanted:
            found = choose_only(wanted, self._folder, self._world, self._retry)
        else:
            found, refused = choose(self._folder, self._world, self._retry, self._saver.run_id)
            self._pass_over(refused, found)
        if found is not None:
            loader = Loader(found, self._parts, self._world, self._retry, allow_pickle=self._allow_pickle)
            loader.load()
            self._resume(loader, found)
            seconds = round(time.perf_counter() - began, 6)
            self._report("restored", name=found.name, bytes=found.bytes, seconds=seconds)
        self._saver.prunes = True
        count_steps(self.steps)
        return self.steps

    def _pass_over(self, refused: list[files.Found], taken: files.Found | None) -> None:
        """Reports the skipped checkpoints; the next save sets aside the damaged ones."""
        for one in refused:
            if one.fault is Fault.DAMAGED:
                self._saver.damaged.append(one.name)
            if self._world.rank == 0:
                report_checkpoint({"action": "refused", "step": one.step, "name": one.name, "reason": one.problem})
        if refused and taken is None:
            self._take_run_id(refused[0])
            reason = f"all {len(refused)} checkpoints in {self._folder} are damaged; they are kept"
            self._report("none-verified", reason=reason)

    def _take_run_id(self, found: files.Found) -> None:
        """Outside Windlass: continues under the run id of `found`, so that later saves prune that run's checkpoints."""
        if not self._environ.get("WINDLASS_RUN_ID") and found.run_id:
            self._saver.run_id = found.run_id

    def _resume(self, loader: Loader, found: files.Found) -> None:
        self._take_run_id(found)
        self.steps, self.epoch = loader.common["steps"], loader.common["epoch"]
        self._steps_in_epoch = loader.common["steps_in_epoch"]
        self._saver.restored(found)
        if self.steps and loader.same_world:
            buckets.restore(self._parts, loader.common.get("buckets", {}))
        if loader.rng is not None:
            self._epoch_rng = loader.rng.pop("epoch", None)
            self._rng = loader.rng
            self._random.restore(loader.rng)
        if not self._has_position():
            self._skip_batches = self._steps_in_epoch * found.world_size // self._world.size

    # -- the end ------------------------------------------------------------------------------------------------------

    def export(self, path: str | os.PathLike[str], part: str | None = None) -> None:
        """Writes the current state of a module, complete and without DDP's prefix, to `model.pt` or
        `model.safetensors`.

        A collective; rank 0 writes, and the file appears only once it is complete. `part` is required if there are
        several modules. Raises ValueError for another file extension or an unknown part, and OSError.
        """
        from windlass.train.checkpoint.export import full_state, write

        modules = {part.name: part.thing for part in self._parts if isinstance(part, ModulePart)}
        state = full_state(modules, part, Path(path))
        if self._world.rank == 0:
            write(state, Path(path))
        self._world.reduce(consensus.Flags())

    def close(self) -> None:
        """Waits for the running save and restores the previous handler of SIGTERM. May be called twice.

        After `Preempted`, the handler remains: another rank may have received SIGTERM first, and this rank's signal may
        still arrive.
        """
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._at_exit)
        self._saver.await_writer()
        self._end()

    def _end(self) -> None:
        self._saver.close()
        self._world.close()
        self._stop_signal.remove()

    def _at_exit(self) -> None:
        """Runs if the process ends without `close`: waits a limited time for a running save, unless SIGTERM was
        received.
        """
        if os.getpid() != self._pid:
            return
        began = time.monotonic()
        while self._saver.busy:
            own = not self._saver.part_is_written
            patience = 1.0 if self._stop_signal.received else _EXIT_SECONDS if own else _EXIT_COMMIT_SECONDS
            if time.monotonic() - began > patience:
                break  # the writer process may still finish the save without its rank
            self._saver.poll(0.1)
        self._closed = True
        self._end()
