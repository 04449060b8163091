"""Runs one Terraform command to completion: streams events, stops on request, and redacts secrets in the log."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from windlass.clusters.terraform import process
from windlass.clusters.terraform.errors import HALTED
from windlass.clusters.terraform.events import (
    COLOR,
    CommandStarted,
    Counted,
    Diagnostic,
    Event,
    OnEvent,
    ResourceDone,
    ResourceFailed,
    ResourceProgress,
    ResourceStarted,
    TerraformNote,
    parse_line,
    text_diagnostics,
)
from windlass.clusters.terraform.interrupts import StopRequests
from windlass.clusters.terraform.logs import redact, secrets_of

LAST_LETTERS: Final = 400


@dataclass(slots=True)
class CommandState:
    """State of one command, accumulated from its events."""

    diagnostics: list[Diagnostic] = field(default_factory=list)
    counted: Counted | None = None
    """Last resource count. For a finished apply or destroy, it is the count of that operation."""
    under_way: dict[str, str] = field(default_factory=dict)
    """Action in progress, by resource address."""
    num_done: int = 0
    last_line: str = ""

    def add(self, event: Event) -> None:
        """Updates the state with one event."""
        match event:
            case ResourceStarted() | ResourceProgress():
                self.under_way[event.address] = event.action
            case ResourceDone() | ResourceFailed():
                self.under_way.pop(event.address, None)
                self.num_done += isinstance(event, ResourceDone)
            case Diagnostic():
                self.diagnostics.append(event)
            case Counted():
                self.counted = event
            case TerraformNote():
                self.last_line = event.text[:LAST_LETTERS]

    @property
    def errors(self) -> list[Diagnostic]:
        """Diagnostics that make the command fail."""
        return [one for one in self.diagnostics if one.is_error]


@dataclass(frozen=True, slots=True)
class Finished:
    """Result of a finished Terraform command."""

    command: str
    exit_code: int | None
    """Exit code; negative for the signal that killed the process, None for Terraform of an earlier Windlass process."""
    seen: CommandState
    log: Path
    stops: int
    """Number of stop requests received during the command."""

    @property
    def was_killed(self) -> bool:
        """Whether the process ended without saving the state and releasing its lock."""
        if self.exit_code is not None:
            return self.exit_code < 0
        counted = self.seen.counted
        is_complete = counted is not None and (self.command == "plan" or counted.operation in ("apply", "destroy"))
        return not is_complete and not self.seen.errors

    @property
    def was_stopped(self) -> bool:
        """Whether the command ended early on request; resources in progress are tainted."""
        return any(one.summary in HALTED for one in self.seen.errors) or (
            self.stops > 0 and (self.exit_code or 0) not in (0, 2)
        )


def run(
    argv: Sequence[str],
    folder: Path,
    environ: Mapping[str, str],
    *,
    command: str,
    log: Path,
    machine_id: str,
    on_event: OnEvent,
    stop: StopRequests,
    is_json: bool = True,
) -> Finished:
    """Runs Terraform in `folder`. `command` is its name in messages.

    Raises BlockingIOError while an earlier process runs.
    """
    child = process.start(argv, folder, environ, command=command, log=log, machine_id=machine_id)
    record = process.record_of(folder)
    assert record is not None  # written by process.start
    on_event(CommandStarted(command, log))
    watch = _Watch(record, on_event, stop, is_json)
    return _finished(folder, record, environ, watch, watch.until_over(lambda: _polled(child)))


def follow(
    folder: Path, record: process.RunningCommand, environ: Mapping[str, str], on_event: OnEvent, stop: StopRequests
) -> Finished:
    """Waits for a Terraform process started by an earlier Windlass process, and replays its output from the start.

    Afterwards the process record is deleted, or moved to the records of killed processes.
    """
    if process.is_held(folder):
        on_event(
            TerraformNote(
                f"terraform {record.command} (pid {record.pid}) of an earlier command still runs; following it"
            )
        )
    on_event(CommandStarted(record.command, record.log))
    watch = _Watch(record, on_event, stop, is_json=True)
    watch.stops_before = watch.answered = 0  # an earlier stop request applies to this command too

    def gone() -> bool:
        process.end_orphans(record)
        return not process.is_held(folder)

    watch.until_over(lambda: 0 if gone() else None)
    return _finished(folder, record, environ, watch, None)


def _finished(
    folder: Path, record: process.RunningCommand, environ: Mapping[str, str], watch: _Watch, code: int | None
) -> Finished:
    """Redacts the log of an exited process, and deletes its record."""
    finished = Finished(record.command, code, watch.seen, record.log, watch.stop.count - watch.stops_before)
    redact(record.log, secrets_of(environ))
    if finished.was_killed:
        process.keep_killed(folder)
    else:
        process.forget(folder)
    return finished


def _polled(child: subprocess.Popen[bytes]) -> int | None:
    try:
        return child.wait(process.POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return None


class _Watch:
    """Forwards events and handles stop requests until the process has exited."""

    def __init__(self, record: process.RunningCommand, on_event: OnEvent, stop: StopRequests, is_json: bool) -> None:
        self.seen = CommandState()
        self.stops_before = stop.count
        self.stop = stop
        self._record, self._on_event, self._is_json = record, on_event, is_json
        self._tail = process.Tail(record.log)
        self.answered = stop.count
        self._text: list[str] = []

    def until_over(self, ended: Callable[[], int | None]) -> int:
        """Waits until `ended` returns a value other than None, and returns that value."""
        while (code := ended()) is None:
            self._read()
            self._answer_stop()
            time.sleep(process.POLL_SECONDS)
        self._read(is_over=True)
        if not self._is_json:
            for one in text_diagnostics("\n".join(self._text)):
                self._emit(one)
            self.seen.last_line = COLOR.sub("", next((line for line in reversed(self._text) if line.strip()), ""))
        return code

    def _read(self, *, is_over: bool = False) -> None:
        for line in self._tail.lines(is_over=is_over):
            if not self._is_json:
                self._text.append(line)
            elif (event := parse_line(line)) is not None:
                self._emit(event)

    def _emit(self, event: Event) -> None:
        self.seen.add(event)
        self._on_event(event)

    def _answer_stop(self) -> None:
        if self.stop.count == self.answered:
            return
        is_first = self.answered == self.stops_before
        self.answered = self.stop.count
        if is_first:
            process.terminate(self._record)
            self._on_event(
                TerraformNote(f"stopping: terraform finishes the running operations{self._what()}, then ends")
            )
        else:
            self._on_event(TerraformNote(self._price()))

    def _what(self) -> str:
        if not self.seen.under_way:
            return ""
        parts = [f"{address} ({action})" for address, action in list(self.seen.under_way.items())[:5]]
        more = f" and {len(self.seen.under_way) - 5} more" if len(self.seen.under_way) > 5 else ""
        return f": {', '.join(parts)}{more}"

    def _price(self) -> str:
        """Returns the message for a second stop request: what a kill of Terraform would leave behind."""
        return (
            f"terraform (pid {self._record.pid}) is still finishing{self._what()}. If it were killed, its state lock"
            " would stay, and what it has made since the last write of the state (20 s with S3) would exist and bill,"
            " unknown to Terraform, until the next command recovers it. Windlass does not kill it; wait"
        )
