"""What a supervisor does with the files of a run: has data sets staged before the first attempt, and outputs uploaded
after the last one; has the store asked beforehand. A `Transfer`, which a target implements, moves the files; this
records what it reports.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

from windlass.errors import EngineError, error_line
from windlass.runs.clock import Clock
from windlass.runs.events import DataStaged, Entry, OutputsUploaded, PhaseEntered, Warned
from windlass.runs.phase import Phase
from windlass.runs.record import Status
from windlass.supervise.backend import HeldElsewhere, TargetUnavailable
from windlass.supervise.recorder import Recorder
from windlass.worker.protocol import OUTPUTS_INCOMPLETE

Line = Mapping[str, Any]
"""One report of a program of `windlass.storage`, see `storage/child.py`."""
MIB: Final = 1 << 20
CHECK_SECONDS: Final = 900.0
"""How old an attempt may be that still waits for the pod which asks the store of the outputs."""
NAMED: Final = 5
"""Files that a warning names."""
OF_TRANSFER: Final = ("message", "percent", "eta_seconds")
"""Fields of the progress that show the upload; the others are still those of the script."""


class TransferRefused(EngineError):
    """The program has ended with an error that it would have again."""


class TransferInterrupted(EngineError):
    """The program has ended with an error that may pass: a store was busy, or did not answer."""


class Notes(Protocol):
    """What a transfer needs of a `Recorder`."""

    @property
    def status(self) -> Status:
        """The run's status after its last event."""

    def note(self, entry: Entry, *, at: float | None = None) -> None:
        """Write an event."""


class Transfer(ABC):
    """A program that moves files beside the supervisor, which must not wait for it."""

    is_done = False
    """Whether all files are there."""

    @abstractmethod
    def reports(self, record: Notes, clock: Clock) -> Iterator[Line]:
        """Start it, unless it is started, and give what it has reported since the last call.

        Raises EngineError where it has failed, TargetUnavailable where the target does not answer, OSError.
        """

    @abstractmethod
    def end(self) -> None:
        """End it, if it is active: what it has moved is kept."""


class _Progress:
    """The progress of a transfer as that of a run."""

    def __init__(self) -> None:
        self._began: dict[str, tuple[float, int]] = {}
        """By name, when its first progress was reported, in Unix seconds, and how many bytes were moved by then."""

    def of(self, line: Line, name: str, now: float) -> dict[str, Any]:
        """A line of it; `now` in Unix seconds."""
        done, total = line["done"], line["of"]
        since, moved = self._began.setdefault(name, (now, line["moved"]))
        rate = (line["moved"] - moved) / (now - since) if now > since else 0.0
        shown: dict[str, Any] = {"message": f"{name}: {done / MIB:,.0f} of {total / MIB:,.0f} MiB", "at": now}
        if total:
            shown["percent"] = round(100 * done / total, 1)
        if rate > 0:
            shown["eta_seconds"] = round((total - done) / rate, 1)
            shown["message"] += f", {rate / MIB:,.0f} MiB/s"
        return shown


class DataStaging:
    """The staging of the data sets of one run; done once for all attempts that a supervisor starts."""

    def __init__(self, transfer: Transfer | None, sources: Mapping[str, str]) -> None:
        """`sources` are the addresses by the names of the sets; None is a run without any to be staged."""
        self._transfer = transfer
        self._sources = sources
        self._progress = _Progress()

    def turn(self, record: Recorder, clock: Clock) -> bool:
        """Go on with it; returns whether all sets are there. Raises as `Transfer.reports`."""
        if self._transfer is None:
            return True
        if record.status.phase is not Phase.STAGING:
            record.note(PhaseEntered(Phase.STAGING))
        for line in self._transfer.reports(record, clock):
            if "digest" in line:
                self._take(record, line)
            elif "waits" in line:
                words = f"data {line['name']} waits for {line['waits']}, which fetches {self._sources[line['name']]}"
                record.writer.set_progress({"message": words, "waits_for": line["waits"], "at": record.now()})
            else:
                record.writer.set_progress(self._progress.of(line, f"data {line['name']}", record.now()))
        if not self._transfer.is_done:
            return False
        self._transfer = None
        record.writer.set_progress({})
        return True

    def end(self) -> None:
        """End it, if it is active: what it has fetched is kept."""
        if self._transfer is not None:
            self._transfer.end()

    def _take(self, record: Recorder, line: Line) -> None:
        source = self._sources[line["name"]]
        staged = DataStaged(line["name"], source, line["digest"], line["files"], line["bytes"], line["moved"])
        before = next((one for one in record.status.files.data if one.name == staged.name), None)
        if before is None or before.digest != staged.digest or staged.moved:
            record.note(staged)


class OutputsUpload:
    """The upload of the outputs of one run."""

    def __init__(self, transfer: Transfer | None, destination: str) -> None:
        """`destination` is the address; without a transfer, outputs are not uploaded."""
        self._transfer = transfer
        self._destination = destination
        self._progress = _Progress()

    @property
    def is_wanted(self) -> bool:
        """Whether outputs are uploaded."""
        return self._transfer is not None

    def turn(self, record: Recorder, clock: Clock) -> bool:
        """Go on with it; returns whether all files are there. Raises as `Transfer.reports`."""
        assert self._transfer is not None
        for line in self._transfer.reports(record, clock):
            if "digest" in line:
                self._take(record, line)
            else:
                shown = self._progress.of(line, line["name"], record.now())
                record.writer.set_progress({**self._before(record), **shown})
        if self._transfer.is_done:
            record.writer.set_progress(self._before(record))
        return self._transfer.is_done

    def end(self) -> None:
        """End it, if it is active: what it has uploaded is kept."""
        if self._transfer is not None:
            self._transfer.end()

    def _before(self, record: Recorder) -> dict[str, Any]:
        """The progress of the script, without what an upload adds to it."""
        newest = record.writer.store.status(record.status.id).progress.to_json()
        return {name: value for name, value in newest.items() if name not in OF_TRANSFER}

    def _take(self, record: Recorder, line: Line) -> None:
        if refused := line["refused"]:
            num_others = line.get("num_refused", len(refused)) - len(refused[:NAMED])
            more = f"; and {num_others} more" if num_others else ""
            record.note(Warned(f"not uploaded: {'; '.join(refused[:NAMED])}{more}", OUTPUTS_INCOMPLETE))
        uploaded = (line["digest"], line["files"], line["bytes"], line["moved"])
        record.note(OutputsUploaded(self._destination, *uploaded))
        if failed := line.get("failed", 0):
            raise EngineError(f"{failed} of the files were not taken, the first: {refused[0]}", "all others are there")


class CheckpointUploads:
    """Uploads of the outputs of one run while it trains: one after each checkpoint, as long as none is under way.

    The next one begins when that is over, so of several checkpoints meanwhile the newest counts. A failure is a
    warning: the upload after the last attempt decides how the run ends.
    """

    def __init__(self, transfer_at: Callable[[int], Transfer | None] | None, destination: str) -> None:
        """`transfer_at` makes the transfer after the checkpoint of a step; None where none is wanted."""
        self._transfer_at = transfer_at
        self._destination = destination
        self._transfer: Transfer | None = None
        self._done: tuple[int | None, str] | None = None
        """Step and name of the checkpoint after which the newest upload began."""

    def turn(self, record: Recorder, clock: Clock) -> None:
        """Go on with the upload, or begin one."""
        if self._transfer_at is None:
            return
        saved = record.status.checkpoint
        if self._transfer is None and saved is not None and self._done != (saved.step, saved.name):
            self._done = (saved.step, saved.name)
            self._transfer = self._transfer_at(saved.step or 0)
        if self._transfer is None:
            return
        try:
            for line in self._transfer.reports(record, clock):
                self._take(record, line)
        except (TargetUnavailable, HeldElsewhere):  # another supervisor alone may write then
            return
        except (OSError, EngineError) as error:
            record.note(Warned(f"the outputs could not be uploaded at a checkpoint: {error_line(error)}"))
            self.end()
            return
        if self._transfer.is_done:
            self.end()

    def end(self) -> None:
        """End what is under way: what it has uploaded is kept."""
        if self._transfer is not None:
            with contextlib.suppress(EngineError):  # the end of the run removes what is left
                self._transfer.end()
            self._transfer = None

    def _take(self, record: Recorder, line: Line) -> None:
        """Record what is there. Files that change meanwhile are refused, and uploaded after the last attempt."""
        before = record.status.files.outputs
        if "digest" in line and (before is None or before.digest != line["digest"]):
            uploaded = (line["digest"], line["files"], line["bytes"], line["moved"])
            record.note(OutputsUploaded(self._destination, *uploaded))


class OutputsCheck:
    """Asks, while the ranks of a run start, whether its outputs can be uploaded at its end.

    Only in its first attempt, and until there is a checkpoint: a run that has trained goes on, and its end decides.
    """

    def __init__(self, transfer: Transfer | None) -> None:
        """Without a transfer, the store is not asked."""
        self._transfer = transfer
        self._is_over = transfer is None

    def turn(self, record: Recorder, clock: Clock) -> None:
        """Go on with it. Raises TransferRefused where they cannot be.

        What keeps it from an answer is not recorded: the upload may still succeed.
        """
        if self._is_over or self._transfer is None:
            return
        try:
            if _is_early(record):
                for _ in self._transfer.reports(record, clock):
                    pass
                self._is_over = self._transfer.is_done
            else:
                self._is_over = True
        except TransferRefused:
            raise
        except TargetUnavailable:
            return
        except (OSError, EngineError):
            self._is_over = True
        if self._is_over:
            with contextlib.suppress(EngineError):  # the end of the run does it again
                self.end()

    def end(self) -> None:
        """End it, if it is active."""
        if self._transfer is not None:
            self._transfer.end()


def _is_early(record: Recorder) -> bool:
    """Whether little is lost where the run ends now: it is in its first attempt since it was begun or resumed."""
    history = record.history
    is_new = record.now() - history.now.began_at < CHECK_SECONDS
    return is_new and not history.ended and record.status.checkpoint is None
