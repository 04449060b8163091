"""Stages data and uploads outputs of a local run in processes that run in parallel with its supervisor."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from windlass.compat import override
from windlass.errors import EngineError
from windlass.plan.steps import StageStep, UploadStep
from windlass.runs.clock import Clock
from windlass.supervise.transfers import (
    CheckpointUploads,
    DataStaging,
    Line,
    Notes,
    OutputsUpload,
    Transfer,
    TransferInterrupted,
)


def data_staging(steps: Sequence[StageStep], home: Path) -> DataStaging:
    """Returns the staging of a run's data sets to the cache of this machine, from the steps of its plan."""
    if not steps:
        return DataStaging(None, {})
    words = [word for one in steps for word in (one.name, one.source, one.link)]
    program = [steps[0].python, "-P", "-m", "windlass.storage.staging", str(home), *words]
    sources = {one.name: one.source for one in steps}
    return DataStaging(ProcessTransfer(program, "process that stages the data"), sources)


def outputs_uploads(step: UploadStep | None, home: Path) -> tuple[OutputsUpload, CheckpointUploads]:
    """Returns the uploads of a run after its last attempt and during training; without the step, uploads that do
    nothing.
    """
    if step is None:
        return OutputsUpload(None, ""), CheckpointUploads(None, "")
    words = ["outputs", step.source, step.destination]
    program = [step.python, "-P", "-m", "windlass.storage.upload", str(home), *words]

    def upload(_step: int = 0) -> ProcessTransfer:
        return ProcessTransfer(program, "process that uploads the outputs")

    at_checkpoint = upload if step.at == "checkpoint" else None
    return OutputsUpload(upload(), step.destination), CheckpointUploads(at_checkpoint, step.destination)


class ProcessTransfer(Transfer):
    """A process that runs a `windlass.storage` program, reports in lines of JSON, and ends with its supervisor."""

    def __init__(self, program: Sequence[str], what: str) -> None:
        """`what` names the process in messages, such as `process that stages the data`."""
        self._program = program
        self._what = what
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        """Lines that the process has written; None marks the end."""

    def reports(self, record: Notes, clock: Clock) -> Iterator[Line]:
        """Yields the lines that the process has written since the last call; each line wakes `clock`. Raises
        EngineError.
        """
        if self._process is None:
            self._process = subprocess.Popen(self._program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/")
            self._lines = queue.SimpleQueue()
            threading.Thread(target=self._read, args=(self._process, self._lines, clock), daemon=True).start()
        while not self._lines.empty():
            line = self._lines.get()
            if line is None:
                code = self._process.wait()
                self.end()
                if code:
                    from windlass.worker.root_cause import death_of

                    raise EngineError(f"the {self._what} ended: {death_of(code)}", "its output is in supervisor.log")
                self.is_done = True
            elif "error" in line:
                self.end()
                self._process = None
                raise (TransferInterrupted if line.get("passes") else EngineError)(line["error"], line["hint"])
            else:
                yield line

    @override
    def end(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.kill()
            self._process.wait()
            self._process.stdin.close()

    def _read(self, process: subprocess.Popen[bytes], reported: queue.SimpleQueue[Line | None], clock: Clock) -> None:
        assert process.stdout is not None
        try:
            with process.stdout as lines:
                for line in lines:
                    if (report := _report(line)) is not None:
                        reported.put(report)
                        clock.wake()
                    else:
                        sys.stderr.write(line.decode("utf-8", "replace"))
                        sys.stderr.flush()
        finally:
            reported.put(None)
            clock.wake()


def _report(line: bytes) -> Line | None:
    """Returns a report of a transfer program; None for a line that a library has printed."""
    try:
        report = json.loads(line)
    except ValueError:
        return None
    return report if isinstance(report, dict) else None
