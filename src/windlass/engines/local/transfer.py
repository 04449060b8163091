"""A process that moves files for a run of this machine, beside its supervisor, which must not wait for it."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from windlass.errors import EngineError
from windlass.supervise.clock import Clock

Line = Mapping[str, Any]


class Transfer:
    """A program of `windlass.storage`: it reports by lines of JSON, and ends with the supervisor that started it."""

    def __init__(self, program: Sequence[str], what: str) -> None:
        """`what` names it in messages: `process that stages the data`."""
        self._program = program
        self._what = what
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        """What it has written; None at its end."""
        self._began: dict[str, tuple[float, int]] = {}
        """By name, when its first progress was reported, in Unix seconds, and how many bytes were moved by then."""
        self.is_done = False

    def reports(self, clock: Clock) -> Iterator[Line]:
        """Start it, unless it is started, and give what it has reported since the last call; `clock` is woken by more.

        Raises EngineError where it has failed, OSError where it cannot be started.
        """
        if self._process is None:
            self._process = subprocess.Popen(self._program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/")
            threading.Thread(target=self._read, args=(self._process, clock), daemon=True).start()
        while not self._lines.empty():
            line = self._lines.get()
            if line is None:
                if code := self._process.wait():
                    raise EngineError(f"the {self._what} ended with {code}", "its output is in supervisor.log")
                self.is_done = True
            elif "error" in line:
                self.end()
                raise EngineError(line["error"], line["hint"])
            else:
                yield line

    def progress(self, line: Line, now: float) -> dict[str, Any]:
        """A line of its progress as that of a run; `now` in Unix seconds."""
        done, total = line["done"], line["of"]
        since, moved = self._began.setdefault(line["name"], (now, line["moved"]))
        rate = (line["moved"] - moved) / (now - since) if now > since else 0.0
        shown: dict[str, Any] = {"message": f"{line['name']}: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB", "at": now}
        if total:
            shown["percent"] = round(100 * done / total, 1)
        if rate:
            shown["eta_seconds"] = round((total - done) / rate, 1)
            shown["message"] += f", {rate / 1e6:,.0f} MB/s"
        return shown

    def end(self) -> None:
        """End it, if it is alive: what it has moved is kept."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _read(self, process: subprocess.Popen[bytes], clock: Clock) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.put(json.loads(line))
            clock.wake()
        self._lines.put(None)
        clock.wake()
