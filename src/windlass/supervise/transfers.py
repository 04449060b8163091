"""File transfers of a run: staging of data sets, upload of outputs, and an early check of the outputs' store.

A `Transfer`, implemented by a target, moves the files; this module records its reports.
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
"""One report of a program of `windlass.storage`; see `storage/child.py`."""
MIB: Final = 1 << 20
CHECK_SECONDS: Final = 900.0
"""Age of an attempt in seconds from which it no longer waits for the pod that checks the outputs' store."""
NAMED: Final = 5
"""Maximum number of files that a warning lists by name."""
OF_TRANSFER: Final = ("message", "percent", "eta_seconds")
"""Progress fields in which an upload is shown; other fields keep the script's values."""


class TransferRefused(EngineError):
    """The transfer program failed permanently."""


class TransferInterrupted(EngineError):
    """The transfer program failed temporarily: a store was busy or did not answer."""


class Notes(Protocol):
    """Part of the `Recorder` interface that transfers need."""

    @property
    def status(self) -> Status:
        """Status of the run after its last event."""

    def note(self, entry: Entry, *, at: float | None = None) -> None:
        """Writes an event."""


class Transfer(ABC):
    """Program that moves files while the supervisor continues its work."""

    is_done = False
    """Whether all files have been moved."""

    @abstractmethod
    def reports(self, record: Notes, clock: Clock) -> Iterator[Line]:
        """Starts the program unless it runs, and yields its reports since the last call.

        Raises EngineError if it failed, TargetUnavailable if the target does not answer, and OSError.
        """

    @abstractmethod
    def end(self) -> None:
        """Ends the program if it runs; files that it has moved are kept."""


class _Progress:
    """Converts the progress of a transfer to that of a run."""

    def __init__(self) -> None:
        self._began: dict[str, tuple[float, int]] = {}
        """For each name: the time of its first report in Unix seconds, and the bytes moved by then."""

    def of(self, line: Line, name: str, now: float) -> dict[str, Any]:
        """Returns the run's progress for a report of the transfer; `now` is in Unix seconds."""
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
    """Staging of a run's data sets, done once per supervisor for all attempts."""

    def __init__(self, transfer: Transfer | None, sources: Mapping[str, str]) -> None:
        """`sources` are addresses by data set name. `transfer` is None for a run without sets to stage."""
        self._transfer = transfer
        self._sources = sources
        self._progress = _Progress()

    def turn(self, record: Recorder, clock: Clock) -> bool:
        """Continues the staging. Returns whether all sets are staged. Raises as `Transfer.reports`."""
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
        """Ends a running staging program; fetched files are kept."""
        if self._transfer is not None:
            self._transfer.end()

    def _take(self, record: Recorder, line: Line) -> None:
        source = self._sources[line["name"]]
        staged = DataStaged(line["name"], source, line["digest"], line["files"], line["bytes"], line["moved"])
        before = next((one for one in record.status.files.data if one.name == staged.name), None)
        if before is None or before.digest != staged.digest or staged.moved:
            record.note(staged)


class OutputsUpload:
    """Upload of the outputs of one run."""

    def __init__(self, transfer: Transfer | None, destination: str) -> None:
        """`destination` is the address. Without a transfer, outputs are not uploaded."""
        self._transfer = transfer
        self._destination = destination
        self._progress = _Progress()

    @property
    def is_wanted(self) -> bool:
        """Whether outputs are uploaded."""
        return self._transfer is not None

    def turn(self, record: Recorder, clock: Clock) -> bool:
        """Continues the upload. Returns whether all files are uploaded. Raises as `Transfer.reports`."""
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
        """Ends a running upload program; uploaded files are kept."""
        if self._transfer is not None:
            self._transfer.end()

    def _before(self, record: Recorder) -> dict[str, Any]:
        """Returns the script's progress, without fields that an upload adds."""
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
    """Uploads of the outputs of one run during training: one after each checkpoint, unless one is in progress.

    After an upload the next one starts for the newest checkpoint. A failure is a warning: the upload after the last
    attempt decides how the run ends.
    """

    def __init__(self, transfer_at: Callable[[int], Transfer | None] | None, destination: str) -> None:
        """`transfer_at` creates the transfer for the checkpoint of a step, or is None if no uploads are requested."""
        self._transfer_at = transfer_at
        self._destination = destination
        self._transfer: Transfer | None = None
        self._done: tuple[int | None, str] | None = None
        """Step and name of the checkpoint after which the newest upload began."""

    def turn(self, record: Recorder, clock: Clock) -> None:
        """Continues the upload, or starts one."""
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
        except (TargetUnavailable, HeldElsewhere):  # the target does not answer, or another supervisor holds the run
            return
        except (OSError, EngineError) as error:
            record.note(Warned(f"the outputs could not be uploaded at a checkpoint: {error_line(error)}"))
            self.end()
            return
        if self._transfer.is_done:
            self.end()

    def end(self) -> None:
        """Ends the upload in progress; uploaded files are kept."""
        if self._transfer is not None:
            with contextlib.suppress(EngineError):  # the end of the run removes what could not be removed here
                self._transfer.end()
            self._transfer = None

    def _take(self, record: Recorder, line: Line) -> None:
        """Records the uploaded files. Files that change meanwhile are refused, and uploaded after the last attempt."""
        before = record.status.files.outputs
        if "digest" in line and (before is None or before.digest != line["digest"]):
            uploaded = (line["digest"], line["files"], line["bytes"], line["moved"])
            record.note(OutputsUploaded(self._destination, *uploaded))


class OutputsCheck:
    """Checks, while the ranks of a run start, whether its outputs can be uploaded at its end.

    The check takes place only in the first attempt and before the first checkpoint: a run that has trained continues,
    and the upload at its end decides.
    """

    def __init__(self, transfer: Transfer | None) -> None:
        """Without a transfer, the store is not checked."""
        self._transfer = transfer
        self._is_over = transfer is None

    def turn(self, record: Recorder, clock: Clock) -> None:
        """Continues the check. Raises TransferRefused if the outputs cannot be uploaded.

        Errors that prevent a result are not recorded, because the upload may still succeed.
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
            with contextlib.suppress(EngineError):
                self.end()

    def end(self) -> None:
        """Ends the check if it is active."""
        if self._transfer is not None:
            self._transfer.end()


def _is_early(record: Recorder) -> bool:
    """Whether ending the run now loses little: this is the first attempt since the run was started or resumed."""
    history = record.history
    is_new = record.now() - history.now.began_at < CHECK_SECONDS
    return is_new and not history.ended and record.status.checkpoint is None
