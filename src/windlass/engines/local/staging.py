"""Stages the data sets of a run on this machine: a process fetches them into the cache while the supervisor waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from windlass.engines.local.transfer import Line, Transfer
from windlass.runs.events import DataStaged, PhaseEntered
from windlass.runs.phase import Phase
from windlass.supervise.clock import Clock
from windlass.supervise.recorder import Recorder


class DataStaging:
    """The staging of one run; it is done once for all attempts that a supervisor starts."""

    def __init__(self, requests: Sequence[Mapping[str, Any]], home: Path) -> None:
        """`requests` are those of the plan's steps of kind `stage`."""
        self._sources = {one["name"]: one["source"] for one in requests}
        self._transfer: Transfer | None = None
        if requests:
            words = [word for one in requests for word in (one["name"], one["source"], one["link"])]
            program = [requests[0]["python"], "-P", "-m", "windlass.storage.staging", str(home), *words]
            self._transfer = Transfer(program, "process that stages the data")

    def turn(self, record: Recorder, clock: Clock) -> bool:
        """Go on with it; returns whether all sets are there. Raises EngineError where one cannot be, OSError."""
        if self._transfer is None:
            return True
        if record.status.phase is not Phase.STAGING:
            record.note(PhaseEntered(Phase.STAGING))
        for line in self._transfer.reports(clock):
            if "digest" in line:
                self._take(record, line)
            else:
                record.writer.set_progress(
                    self._transfer.progress({**line, "name": f"data {line['name']}"}, record.now())
                )
        if not self._transfer.is_done:
            return False
        self._transfer = None
        record.writer.set_progress({})
        return True

    def end(self) -> None:
        """End the process, if it is alive: what it has fetched is kept."""
        if self._transfer is not None:
            self._transfer.end()

    def _take(self, record: Recorder, line: Line) -> None:
        source = self._sources[line["name"]]
        staged = DataStaged(line["name"], source, line["digest"], line["files"], line["bytes"], line["moved"])
        before = next((one for one in record.status.data if one["name"] == staged.name), None)
        if before is None or before["digest"] != staged.digest or staged.moved:
            record.note(staged)
