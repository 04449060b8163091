"""Prints the progress of a training loop: as JSON lines for Windlass, or as text for the user."""

from __future__ import annotations

import atexit
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from windlass.train.series import NAME_CHARS, PLAIN, STEP, SeriesBuffer, plain

MARKER = "::windlass "
"""Prefix of a line for Windlass; the rest of the line is one JSON object."""

MAX_LINE_BYTES = 4095
"""Maximum length of a line. Writes to a pipe are atomic up to PIPE_BUF (4096 bytes on Linux), so lines never mix."""

INTERVAL_SECONDS = 0.1
"""Minimum time between two flushes of a process. Converting a loss on a GPU waits for the GPU, so it must be rare."""

ALL_RANKS = 16
"""Largest number of ranks at which every rank writes every value; with more ranks, only rank 0 does."""

_RANK_NAMES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "WINDLASS_RANK")
_STDOUT_FD = 1
_SHORTEST_WINDOW_SECONDS = 0.05  # speeds over a shorter time are too noisy
_NUM_METRICS = 64
_MAX_NOT_FINITE = 32  # maximum number of lines for a loss that alternates between finite and not finite
_PHASE_CHARS = 100
_MESSAGE_CHARS = 1000
_INTEGERS = frozenset((int, type(None)))


class _Role(NamedTuple):
    """What a process writes, which its environment decides."""

    for_windlass: bool
    """Whether lines are for Windlass; otherwise they are for the user."""
    is_silent: bool
    """Whether the process writes nothing."""
    keeps_all: bool
    """Whether the process writes the values of all calls."""


class Reporter:
    """State that `report` keeps between two lines of output."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, environ: Mapping[str, str] = os.environ, fd: int = _STDOUT_FD
    ) -> None:
        self._clock = clock
        self._environ = environ
        self._fd = fd
        self._file: tuple[int, int] | None = None
        """Device and inode of stdout when the first line was written."""
        self._lock = threading.Lock()
        self._last_line_at: float | None = None
        self._counted: int | None = None
        """Steps counted by a `Checkpoint`; None if no checkpoint counts steps."""
        self._unreported_step: int | None = None
        """Newest step, if no line with it was written."""
        self._unreported_loss: tuple[Any, float] | None = None
        """Step and loss of the newest report, if no line with them was written."""
        self._role: _Role | None = None
        """None before the first report: a launcher may set variables of the rank after the import."""
        self._was_finite = True
        """Whether the newest loss was finite; only checked for Python numbers, because a tensor is converted only for a
        line."""
        self._num_not_finite = 0
        self._window_began_at = 0.0
        self._window_step: int | None = None
        self._window_samples: int | None = None
        self._phase: str | None = None
        self._message: str | None = None
        self._series = SeriesBuffer()
        self._newest_step: Any = None
        """Step of the newest call with one."""

    def after_fork(self) -> None:
        """Resets the state of a forked child: a thread of the parent may hold the lock, and the parent reports its own
        step.
        """
        self._lock = threading.Lock()
        self._unreported_step = self._unreported_loss = self._role = None
        self._series = SeriesBuffer()

    def report_last(self) -> None:
        """Reports the last step and the last values if they were not written yet, to show where a script ended or
        failed.
        """
        step, self._unreported_step = self._unreported_step, None
        try:  # the lock is not awaited, because a thread of the script may hold it forever
            if self._environ.get("WINDLASS_RUN_ID") and self._lock.acquire(blocking=False):
                if step is not None:
                    self._write(as_line({STEP: step}, {}))
                self._series.convert(at_exit=True)
                for text in self._series.take():
                    self._write(series_line(text))
        except Exception:
            pass

    def count(self, step: int) -> None:
        """Sets the steps counted by a `Checkpoint`; later reports use this count as their step."""
        if self._counted is None and self._environ.get("WINDLASS_RUN_ID"):
            self.checkpoint({"action": "counts"})
        self._counted = step

    def report(
        self,
        step: Any = None,
        *,
        total: Any = None,
        epoch: Any = None,
        loss: Any = None,
        samples: int | None = None,
        phase: str | None = None,
        message: str | None = None,
        **metrics: Any,
    ) -> None:
        """Reports the progress of training. Call it in every step; all but ten calls per second return at once.

        Under Windlass every value becomes a point of a curve, with its step and time: those of all calls are written
        together, ten times per second, at the last step and when the script ends.

        Args:
            step: number of completed steps in the run, or in the epoch if `total` is also that of an epoch.
            total: number of steps in total.
            epoch: a number; 3.5 means that three and a half epochs are done.
            loss: a number, or a tensor or array of one element. A tensor on a GPU is copied there, so that it may be
                changed in place afterwards. All tensors of a device are converted together when lines are written, so
                they make a step wait for the GPU at most ten times per second.
            samples: number of samples of this step on *this rank*. The samples between two lines are summed;
                `samples_per_second` is the sum divided by the time, of this rank only and not of the whole job.
            phase: current phase in one or two words: "training", "validating". A new phase is written at once.
            message: a sentence for the user. If no line is written now, the message is kept for the next line.
            metrics: further numbers by name, such as `lr=0.1`; at most 64, with names of at most 80 characters.

        Under Windlass each rank writes lines for Windlass; without Windlass, rank 0 prints lines for the user. Lines
        are written for the first call, for those that begin a phase, those with `step == total`, and one every tenth of
        a second; under Windlass they have the values of the calls before them. Of more than 200 points of a metric in
        one line, the extremes are kept. In a job with more than 16 ranks, only rank 0 writes the values of all calls.
        The last step is reported when the script ends, if it was not written before. If the loss is a Python number and
        becomes NaN or infinite, that step and the step before it are reported too.

        Raises:
            TypeError: an argument has a wrong type. Other errors, such as a closed stdout, are ignored.
        """
        # Training calls this in each step: calls that write no line must take only a few microseconds.
        if len(metrics) > _NUM_METRICS:
            metrics = dict([*metrics.items()][:_NUM_METRICS])
        if epoch is not None:
            metrics["epoch"] = epoch
        if loss is not None:
            metrics["loss"] = loss
        is_plain = _are_plain(metrics.values())
        if not is_plain:
            _check(metrics, _is_one_number, "a number, or a tensor or array of one element")
        if type(step) not in _INTEGERS or type(total) not in _INTEGERS or type(samples) not in _INTEGERS:
            _check({"step": step, "total": total}, _is_one_integer, "an integer")
            _check({"samples": samples}, _is_integer_of_python, "an integer such as len(batch)")
        if phase is not None or message is not None:
            _check({"phase": phase, "message": message}, lambda value: isinstance(value, str), "a string")
        role = self._role or self._decide_role()
        if role.is_silent:
            return
        try:  # except for wrong arguments, errors of a report must not stop the training
            with self._lock:
                if step is None or self._counted is not None:
                    step, total = self._known_step(step, total)
                self._unreported_step = step if isinstance(step, int) else None
                if samples is not None:
                    self._window_samples = (self._window_samples or 0) + int(samples)
                if message is not None:
                    self._message = message[:_MESSAGE_CHARS]
                is_due = self._is_due(step, total, phase)
                is_written = self._follow_loss(step, loss, is_due=is_due, for_windlass=role.for_windlass)
                if is_written or role.keeps_all:
                    at_step = self._newest_step = self._step_of_values(step)
                    metrics[STEP] = epoch if at_step is None else at_step
                    self._series.add(time.time(), metrics, is_plain=is_plain and type(at_step) is int)
                if is_written:
                    self._write_line(step, total, phase, role)
        except Exception:
            pass

    def checkpoint(self, fields: Mapping[str, Any]) -> None:
        """Reports an event of a checkpoint at once: `action`, `step`, `name` and more. Never raises."""
        try:
            with self._lock:
                if self._environ.get("WINDLASS_RUN_ID"):
                    self._write(checkpoint_line(fields))
                else:
                    print(checkpoint_text(fields), end="", flush=True)
        except Exception:
            pass

    def _decide_role(self) -> _Role:
        """Returns the role that the environment gives to this process, and keeps it."""
        environ = self._environ
        for_windlass = bool(environ.get("WINDLASS_RUN_ID"))
        is_silent = not for_windlass and any(environ.get(name, "0") != "0" for name in _RANK_NAMES)
        size = environ.get("WORLD_SIZE", "1")
        is_kept = environ.get("RANK", "0") == "0" or not size.isdecimal() or int(size) <= ALL_RANKS
        self._role = _Role(for_windlass, is_silent, keeps_all=for_windlass and is_kept)
        return self._role

    def _known_step(self, step: Any, total: Any) -> tuple[Any, Any]:
        """Returns the step and total of a call: those given, unless a checkpoint counts the steps or none is given."""
        counted = self._counted
        is_counted = isinstance(step, int) and counted is not None and counted <= step <= counted + 1
        if counted is not None and step is not None and not is_counted:
            return counted, None  # the script counts from 0 in each epoch
        return self._unreported_step if step is None else step, total

    def _step_of_values(self, step: Any) -> Any:
        """Returns the step of a call's values: that of the call, else the newest one; None if none is known."""
        return step if step is not None else self._newest_step if self._counted is None else self._counted

    def _follow_loss(self, step: Any, loss: Any, *, is_due: bool, for_windlass: bool) -> bool:
        """Tracks the loss. Returns whether to write a line, because a line is due or the loss has become NaN or
        infinite. In the second case, first writes a line for the previous step.
        """
        unreported, self._unreported_loss = self._unreported_loss, None
        if type(loss) not in PLAIN:
            return is_due
        was_finite, self._was_finite = self._was_finite, math.isfinite(loss)
        if self._was_finite:
            self._unreported_loss = None if is_due else (step, loss)
        elif was_finite and for_windlass and self._num_not_finite < _MAX_NOT_FINITE:
            self._num_not_finite += 1
            if unreported is not None:
                named = {"step": plain(unreported[0]), "loss": plain(unreported[1])}
                self._write(as_line({name: value for name, value in named.items() if value is not None}, {}))
            return True
        return is_due

    def _is_due(self, step: Any, total: Any, phase: str | None) -> bool:
        now, last = self._clock(), self._last_line_at
        is_new_phase = phase is not None and phase != self._phase
        if last is not None and now - last < INTERVAL_SECONDS and not is_new_phase and not self._series.is_full:
            is_final = isinstance(step, int) and isinstance(total, int) and step == total
            if not is_final:
                return False
        self._last_line_at = now
        self._phase = phase if phase is not None else self._phase
        if last is None:  # samples before the first line are not counted, because their time is unknown
            self._window_began_at = now
            self._window_samples = None if self._window_samples is None else 0
        return True

    def _write_line(self, step: Any, total: Any, phase: str | None, role: _Role) -> None:
        """Writes a line with the values of the newest call, and the series of all calls since the last line."""
        self._unreported_step = None
        newest = self._series.convert()
        named = {STEP: newest.get(STEP) if step is not None else None, "total": plain(total)}
        named |= {"epoch": newest.get("epoch"), "loss": newest.get("loss")}
        fields = {name: plain(value) for name, value in named.items() if value is not None}
        self._add_speed(fields)
        others = {name: value for name, value in newest.items() if name not in named and len(name) <= NAME_CHARS}
        numbers = {name: plain(value) for name, value in others.items()}
        if "samples_per_second" in fields:
            newest.setdefault("samples_per_second", fields["samples_per_second"])
        if phase is not None:
            fields["phase"] = phase[:_PHASE_CHARS]
        if self._message is not None:
            fields["message"], self._message = self._message, None
        series = self._series.take()
        if role.for_windlass and (fields or numbers):
            for line in with_series(as_line(fields, numbers), series if role.keeps_all else []):
                self._write(line)
        elif fields or numbers:
            print(as_text(fields, numbers), flush=True)

    def _add_speed(self, fields: dict[str, Any]) -> None:
        now = self._last_line_at or 0.0
        seconds = now - self._window_began_at
        step = fields.get("step")
        if seconds >= _SHORTEST_WINDOW_SECONDS:
            if step is not None and self._window_step is not None and step > self._window_step:
                fields["rate"] = plain((step - self._window_step) / seconds)
            if self._window_samples is not None:
                fields["samples_per_second"] = plain(self._window_samples / seconds)
                self._window_samples = 0
            self._window_began_at, self._window_step = now, step
        elif self._window_step is None:
            self._window_step = step

    def _write(self, line: bytes) -> None:
        """Writes a line at once, unless the descriptor no longer refers to the original stdout."""
        if self._fd == _STDOUT_FD and (sys.__stdout__ is None or sys.__stdout__.closed):
            return  # nothing is written, because descriptor 1 may be another file now
        status = os.fstat(self._fd)
        self._file = self._file or (status.st_dev, status.st_ino)
        if self._file != (status.st_dev, status.st_ino):
            return
        try:
            if sys.stdout.fileno() == self._fd:
                sys.stdout.flush()
        except (AttributeError, OSError, ValueError):
            pass
        os.write(self._fd, line)


def as_line(fields: dict[str, Any], metrics: dict[str, Any]) -> bytes:
    """Returns a line for Windlass of at most `MAX_LINE_BYTES`: the last metrics are left out, then the message
    is cut.
    """
    fields = dict(fields)
    left = MAX_LINE_BYTES - len(_dump({**fields, "metrics": {}}))
    while left < 0 and fields.get("message"):
        fields["message"] = fields["message"][: len(fields["message"]) // 2]
        left = MAX_LINE_BYTES - len(_dump({**fields, "metrics": {}}))
    if fields.get("message") == "":
        del fields["message"]
    kept = {}
    for name, value in metrics.items():
        left -= len(json.dumps({name: value}))
        if left < 0:
            break
        kept[name] = value
    if kept:
        fields["metrics"] = kept
    return _dump(fields)


def with_series(line: bytes, series: list[str]) -> list[bytes]:
    """Returns a line for Windlass with the last series, if the line then is short enough, after lines with the others.

    `series` are JSON objects (see `SeriesBuffer.take`).
    """
    lines = [series_line(text) for text in series]
    if lines and len(line) + len(lines[-1]) - len(MARKER) <= MAX_LINE_BYTES:
        return [*lines[:-1], line[:-2] + b", " + lines[-1][len(MARKER) + 1 :]]
    return [*lines, line]


def series_line(text: str) -> bytes:
    """Returns a line for Windlass with a series, which is given as JSON."""
    return f'{MARKER}{{"series": {text}}}\n'.encode("ascii")


def as_text(fields: dict[str, Any], metrics: dict[str, Any]) -> str:
    """Returns a line for the user, such as `step 40/500  epoch 3  loss 0.1234  1,234 samples/s`."""
    parts = []
    if "phase" in fields:
        parts.append(fields["phase"])
    if "step" in fields:
        parts.append(f"step {fields['step']}" + (f"/{fields['total']}" if "total" in fields else ""))
    parts += [f"{name} {_short(fields[name])}" for name in ("epoch", "loss") if name in fields]
    parts += [f"{name} {_short(value)}" for name, value in metrics.items()]
    if "samples_per_second" in fields:
        parts.append(f"{fields['samples_per_second']:,.0f} samples/s")
    elif "rate" in fields:
        parts.append(f"{fields['rate']:.3g} steps/s")
    if "message" in fields:
        parts.append(fields["message"])
    return "  ".join(parts)


def checkpoint_line(fields: Mapping[str, Any]) -> bytes:
    """Returns a line for Windlass about a checkpoint; a long reason is cut."""
    fields = {**fields, "reason": str(fields["reason"])[:_MESSAGE_CHARS]} if fields.get("reason") else dict(fields)
    return _dump({"checkpoint": fields})


def checkpoint_text(fields: Mapping[str, Any]) -> str:
    """Returns a line for the user, such as `checkpoint: step 120 saved, 512.0 MB in 0.81 s`."""
    text = f"checkpoint: step {fields['step']} {fields['action']}"
    if fields.get("bytes"):
        text += f", {fields['bytes'] / 1e6:,.1f} MB in {fields.get('seconds', 0.0):.2f} s"
    if fields.get("blocked_seconds") is not None:
        text += f", training paused for {fields['blocked_seconds']:.3f} s"
    return text + (f": {fields['reason']}" if fields.get("reason") else "") + "\n"


def _dump(fields: dict[str, Any]) -> bytes:
    return f"{MARKER}{json.dumps(fields)}\n".encode("ascii")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _check(given: Mapping[str, Any], fits: Callable[[Any], bool], wanted: str) -> None:
    for name, value in given.items():
        if value is None or fits(value):
            continue
        found = type(value).__name__
        if hasattr(value, "shape"):
            found += f" of shape {tuple(value.shape)}"
        else:
            text = repr(value)
            found += f" {text if len(text) <= 60 else text[:57] + '...'}"
        raise TypeError(f"report({name}=...) takes {wanted}, but was given {found}")


def _are_plain(values: Iterable[Any]) -> bool:
    """Whether the types of all values are in `PLAIN`. A loop, because `all` and sets take three times as long."""
    for value in values:  # noqa: SIM110
        if type(value) is not float and type(value) is not int:
            return False
    return True


def _is_integer_of_python(value: Any) -> bool:
    """Whether the value is an integer in host memory, so that summing it never waits for a GPU."""
    return type(value) is int or (not hasattr(value, "device") and _is_one_integer(value))


def _is_one_integer(value: Any) -> bool:
    if isinstance(value, (bool, float)):
        return False
    return isinstance(value, int) or ("int" in str(getattr(value, "dtype", "")) and _is_one_number(value))


def _is_one_number(value: Any) -> bool:
    """Whether `value` is a single number; reads only what a tensor stores on the host."""
    if isinstance(value, (int, float)):
        return True
    if not callable(getattr(value, "item", None)):
        return False
    shape = getattr(value, "shape", ())
    return not shape or all(size == 1 for size in shape)


_reporter = Reporter()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reporter.after_fork)
atexit.register(_reporter.report_last)

report = _reporter.report
report_checkpoint = _reporter.checkpoint
count_steps = _reporter.count
