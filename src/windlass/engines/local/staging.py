"""Stages the data sets of a run on this machine: a process fetches them into the cache while the supervisor waits."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from windlass.errors import EngineError
from windlass.runs.events import DataStaged, PhaseEntered
from windlass.runs.phase import Phase
from windlass.supervise.clock import Clock
from windlass.supervise.recorder import Recorder

Line = Mapping[str, Any]


class DataStaging:
    """The staging of one run; it is done once for all attempts that a supervisor starts."""

    def __init__(self, requests: Sequence[Mapping[str, Any]], home: Path) -> None:
        """`requests` are those of the plan's steps of kind `stage`."""
        self._requests = requests
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        """What the process has written; None at its end."""
        self._is_done = not requests
        self._began: dict[str, tuple[float, int]] = {}
        """When the first progress of a set was reported, in Unix seconds, and how many bytes were fetched by then."""

    def turn(self, record: Recorder, clock: Clock) -> bool:
        """Go on with it; returns whether all sets are there. Raises EngineError where one cannot be, OSError."""
        if self._is_done:
            return True
        if self._process is None:
            self._begin(record, clock)
        while not self._lines.empty():
            line = self._lines.get()
            if line is None:
                self._end_of_process()
                record.writer.set_progress({})
                return True
            self._take(record, line)
        return False

    def end(self) -> None:
        """End the process, if it is alive: what it has fetched is kept."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _begin(self, record: Recorder, clock: Clock) -> None:
        if record.status.phase is not Phase.STAGING:
            record.note(PhaseEntered(Phase.STAGING))
        words = [word for one in self._requests for word in (one["name"], one["source"], one["link"])]
        program = [self._requests[0]["python"], "-P", "-m", "windlass.storage.staging", str(self._home), *words]
        self._process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/")
        threading.Thread(target=self._read, args=(self._process, clock), daemon=True).start()

    def _read(self, process: subprocess.Popen[bytes], clock: Clock) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.put(json.loads(line))
            clock.wake()
        self._lines.put(None)
        clock.wake()

    def _take(self, record: Recorder, line: Line) -> None:
        if "error" in line:
            self.end()
            raise EngineError(line["error"], line["hint"])
        if "digest" not in line:
            self._show(record, line)
            return
        [source] = [one["source"] for one in self._requests if one["name"] == line["name"]]
        staged = DataStaged(line["name"], source, line["digest"], line["files"], line["bytes"], line["moved"])
        before = next((one for one in record.status.data if one["name"] == staged.name), None)
        if before is None or before["digest"] != staged.digest or staged.moved:
            record.note(staged)

    def _show(self, record: Recorder, line: Line) -> None:
        """Make it the progress of the run."""
        now, done, total = record.now(), line["done"], line["of"]
        since, moved = self._began.setdefault(line["name"], (now, line["moved"]))
        rate = (line["moved"] - moved) / (now - since) if now > since else 0.0
        words = f"data {line['name']}: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB"
        shown: dict[str, Any] = {"message": words, "at": now}
        if total:
            shown["percent"] = round(100 * done / total, 1)
        if rate:
            shown["eta_seconds"] = round((total - done) / rate, 1)
            shown["message"] += f", {rate / 1e6:,.0f} MB/s"
        record.writer.set_progress(shown)

    def _end_of_process(self) -> None:
        assert self._process is not None
        if code := self._process.wait():
            raise EngineError(f"the process that stages the data ended with {code}", "its output is in supervisor.log")
        self._is_done = True
