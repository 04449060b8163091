"""Prints the progress of a training loop: as JSON lines for Windlass, or as text for the user."""

from __future__ import annotations

import atexit
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

MARKER = "::windlass "
"""Prefix of a line for Windlass; the rest of the line is one JSON object."""

MAX_LINE_BYTES = 4095
"""Maximum length of a line. Writes to a pipe are atomic up to PIPE_BUF (4096 bytes on Linux), so lines never mix."""

INTERVAL_SECONDS = 0.1
"""Minimum time between two lines of a process. Converting a loss on a GPU waits for the GPU, so it must be rare."""

_RANK_NAMES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "WINDLASS_RANK")
_STDOUT_FD = 1
_SHORTEST_WINDOW_SECONDS = 0.05  # speeds over a shorter time are too noisy
_NUM_METRICS = 64
_MAX_NOT_FINITE = 32  # maximum number of lines for a loss that alternates between finite and not finite
_NAME_CHARS = 80
_PHASE_CHARS = 100
_MESSAGE_CHARS = 1000


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
        self._unreported_loss: dict[str, Any] | None = None
        """Step and loss of the newest report, if no line with them was written."""
        self._was_finite = True
        """Whether the newest loss was finite; only checked for Python numbers, because a tensor is converted only for a
        line."""
        self._num_not_finite = 0
        self._window_began_at = 0.0
        self._window_step: int | None = None
        self._window_samples: int | None = None
        self._phase: str | None = None
        self._message: str | None = None

    def after_fork(self) -> None:
        """Resets the state of a forked child: a thread of the parent may hold the lock, and the parent reports its own
        step.
        """
        self._lock = threading.Lock()
        self._unreported_step = self._unreported_loss = None

    def report_last(self) -> None:
        """Reports the last step if it was not written yet, to show where a script ended or failed."""
        step, self._unreported_step = self._unreported_step, None
        try:  # the lock is not awaited, because a thread of the script may hold it forever
            if step is not None and self._environ.get("WINDLASS_RUN_ID") and self._lock.acquire(blocking=False):
                self._write(as_line({"step": step}, {}))
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

        Args:
            step: number of completed steps in the run, or in the epoch if `total` is also that of an epoch.
            total: number of steps in total.
            epoch: a number; 3.5 means that three and a half epochs are done.
            loss: a number, or a tensor or array of one element. It is converted only when a line is written, so a loss
                on a GPU makes the step wait for the GPU at most ten times per second.
            samples: number of samples of this step on *this rank*. The samples between two lines are summed;
                `samples_per_second` is the sum divided by the time, of this rank only and not of the whole job.
            phase: current phase in one or two words: "training", "validating". A new phase is written at once.
            message: a sentence for the user. If no line is written now, the message is kept for the next line.
            metrics: further numbers by name, such as `lr=0.1`. Those beyond a line of 4 kB are left out.

        Under Windlass each rank writes lines for Windlass; without Windlass, rank 0 prints lines for the user. Lines
        are dropped except the first, those that begin a phase, those with `step == total`, and one every tenth of a
        second. The last step is reported when the script ends, if it was not written before. If the loss is a Python
        number and becomes NaN or infinite, that step and the step before it are reported too.

        Raises:
            TypeError: an argument has a wrong type. Other errors, such as a closed stdout, are ignored.
        """
        _check({"step": step, "total": total}, _is_one_integer, "an integer")
        numbers = {"epoch": epoch, "loss": loss, **metrics}
        _check(numbers, _is_one_number, "a number, or a tensor or array of one element")
        _check({"samples": samples}, _is_integer_of_python, "an integer such as len(batch)")
        _check({"phase": phase, "message": message}, lambda value: isinstance(value, str), "a string")
        for_windlass = bool(self._environ.get("WINDLASS_RUN_ID"))
        if not for_windlass and any(self._environ.get(name, "0") != "0" for name in _RANK_NAMES):
            return
        try:  # except for wrong arguments, errors of a report must not stop the training
            with self._lock:
                counted = self._counted
                is_counted = isinstance(step, int) and counted is not None and counted <= step <= counted + 1
                if counted is not None and step is not None and not is_counted:
                    step, total = counted, None  # the script counts from 0 in each epoch
                elif step is None:
                    step = self._unreported_step
                self._unreported_step = step if isinstance(step, int) else None
                if samples is not None:
                    self._window_samples = (self._window_samples or 0) + int(samples)
                if message is not None:
                    self._message = message[:_MESSAGE_CHARS]
                is_due = self._is_due(
                    is_final=isinstance(step, int) and isinstance(total, int) and step == total, phase=phase
                )
                if not self._follow_loss(step, loss, is_due=is_due, for_windlass=for_windlass):
                    return
                self._unreported_step = None
                named = {"step": step, "total": total, "epoch": epoch, "loss": loss}
                fields = {name: number for name, value in named.items() if (number := _plain(value)) is not None}
                self._add_speed(fields)
                if phase is not None:
                    fields["phase"] = phase[:_PHASE_CHARS]
                if self._message is not None:
                    fields["message"], self._message = self._message, None
                chosen = [name for name in metrics if len(name) <= _NAME_CHARS][:_NUM_METRICS]
                numbers = {name: number for name in chosen if (number := _plain(metrics[name])) is not None}
                if not fields and not numbers:
                    return
                if for_windlass:
                    self._write(as_line(fields, numbers))
                else:
                    print(as_text(fields, numbers), flush=True)
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

    def _follow_loss(self, step: Any, loss: Any, *, is_due: bool, for_windlass: bool) -> bool:
        """Tracks the loss. Returns whether to write a line, because a line is due or the loss has become NaN or
        infinite. In the second case, first writes a line for the previous step.
        """
        unreported, self._unreported_loss = self._unreported_loss, None
        if type(loss) not in (int, float):
            return is_due
        was_finite, self._was_finite = self._was_finite, math.isfinite(loss)
        if was_finite and not self._was_finite and for_windlass and self._num_not_finite < _MAX_NOT_FINITE:
            self._num_not_finite += 1
            if unreported is not None:
                self._write(as_line(unreported, {}))
            return True
        if not is_due and self._was_finite:
            named = {"step": step, "loss": loss}
            self._unreported_loss = {name: _plain(value) for name, value in named.items() if value is not None}
        return is_due

    def _is_due(self, *, is_final: bool, phase: str | None) -> bool:
        now, last = self._clock(), self._last_line_at
        is_new_phase = phase is not None and phase != self._phase
        if last is not None and not is_final and not is_new_phase and now - last < INTERVAL_SECONDS:
            return False
        self._last_line_at = now
        self._phase = phase if phase is not None else self._phase
        if last is None:  # samples before the first line are not counted, because their time is unknown
            self._window_began_at = now
            self._window_samples = None if self._window_samples is None else 0
        return True

    def _add_speed(self, fields: dict[str, Any]) -> None:
        now = self._last_line_at or 0.0
        seconds = now - self._window_began_at
        step = fields.get("step")
        if seconds >= _SHORTEST_WINDOW_SECONDS:
            if step is not None and self._window_step is not None and step > self._window_step:
                fields["rate"] = _plain((step - self._window_step) / seconds)
            if self._window_samples is not None:
                fields["samples_per_second"] = _plain(self._window_samples / seconds)
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


def _plain(value: Any) -> Any:
    """Converts a value to a number for JSON, or to "nan", "inf" or "-inf"; None if it is not a number."""
    if value is None:
        return None
    if not isinstance(value, (int, float)):
        try:
            value = value.item()  # `item` waits for all work that is queued on the GPU
        except Exception:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return int(value) if isinstance(value, bool) else None
    if isinstance(value, int):
        return int(value)
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return float(f"{value:.8g}")  # eight digits are about the precision of a 32-bit float


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
    return all(size == 1 for size in getattr(value, "shape", ()))


_reporter = Reporter()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reporter.after_fork)
atexit.register(_reporter.report_last)

report = _reporter.report
report_checkpoint = _reporter.checkpoint
count_steps = _reporter.count
