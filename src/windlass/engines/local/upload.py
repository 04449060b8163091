"""Uploads the outputs of a run of this machine: a process copies them to the store before the end is recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from windlass.engines.local.transfer import Line, Transfer
from windlass.runs.events import OutputsUploaded, Warned
from windlass.supervise.clock import Clock
from windlass.supervise.recorder import Recorder

NAME: Final = "outputs"
NAMED: Final = 5
"""Files that a warning names."""
OF_TRANSFER: Final = ("message", "percent", "eta_seconds")
"""Fields of the progress that show the upload; the others are still those of the script."""


class OutputsUpload:
    """The upload of one run."""

    def __init__(self, requests: Sequence[Mapping[str, Any]], home: Path) -> None:
        """`requests` are those of the plan's steps of kind `upload`: one, or none."""
        self.is_wanted = bool(requests)
        for one in requests:
            self._destination = one["destination"]
            words = [NAME, one["source"], one["destination"]]
            program = [one["python"], "-P", "-m", "windlass.storage.upload", str(home), *words]
            self._transfer = Transfer(program, "process that uploads the outputs")

    def turn(self, record: Recorder, clock: Clock) -> bool:
        """Go on with it; returns whether all files are there. Raises EngineError where one cannot be, OSError."""
        for line in self._transfer.reports(clock):
            if "digest" in line:
                self._take(record, line)
            else:
                shown = {**self._before(record), **self._transfer.progress(line, record.now())}
                record.writer.set_progress(shown)
        if self._transfer.is_done:
            record.writer.set_progress(self._before(record))
        return self._transfer.is_done

    def end(self) -> None:
        """End the process, if it is alive: what it has uploaded is kept."""
        if self.is_wanted:
            self._transfer.end()

    def _before(self, record: Recorder) -> dict[str, Any]:
        """The progress of the script, without what an upload adds to it."""
        newest = record.writer.store.status(record.status.id).progress
        return {name: value for name, value in newest.items() if name not in OF_TRANSFER}

    def _take(self, record: Recorder, line: Line) -> None:
        if refused := line["refused"]:
            more = f"; and {len(refused) - NAMED} more" if len(refused) > NAMED else ""
            record.note(Warned(f"not uploaded: {'; '.join(refused[:NAMED])}{more}"))
        uploaded = (line["digest"], line["files"], line["bytes"], line["moved"])
        record.note(OutputsUploaded(self._destination, *uploaded))
