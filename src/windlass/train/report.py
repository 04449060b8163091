"""Turns what a training loop knows about itself into one line of output: for Windlass to read, or for a person."""

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
"""What a line for Windlass begins with; the rest of it is one JSON object."""

MAX_LINE_BYTES = 4095
"""A write to a pipe is in one piece up to PIPE_BUF, 4096 bytes on Linux, so lines of several writers never mix."""

INTERVAL_SECONDS = 0.1
"""At most ten lines a second from a process: enough for an eye, and a conversion from a GPU waits for the GPU."""

_RANK_NAMES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_STDOUT_FD = 1
_SHORTEST_WINDOW_SECONDS = 0.05  # speeds over less than this are noise
_NUM_METRICS = 64
_NUM_TURNS = 32  # a loss that is not finite in each second step is not told each time
_NAME_CHARS = 80
_PHASE_CHARS = 100
_MESSAGE_CHARS = 1000


def report(
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
    """Says where training is. Call it in every step: all but ten calls a second return at once.

    Args:
        step: how many steps are done, an integer; of the run, or of the epoch where `total` is the epoch's.
        total: how many there will be.
        epoch: a number; 3.5 is half-way through the one after the third.
        loss: a number, or a tensor or array of one element. It is converted only when a line is written, so a loss on
            a GPU makes the step wait for it at most ten times a second.
        samples: how many samples this step trained on *this rank*. They are added up between lines, and
            `samples_per_second` is that sum over the time; it is this rank's alone, not the job's.
        phase: one or two words for what goes on from here: "training", "validating". A new phase is written at once.
        message: a sentence for whoever watches; it is kept for the next line where this one is not written.
        metrics: more numbers by name, `lr=0.1`. They are cut to what fits into a line of 4 kB.

    Under Windlass each rank writes lines for Windlass; elsewhere rank 0 prints lines for a person. Lines are dropped
    except the first, those that begin a phase, those with `step == total`, and one each tenth of a second; the last
    step is told when the script ends, if it was not. Where the loss, as a number of Python, becomes NaN or infinite,
    that step and the one before it are told too.

    Raises:
        TypeError: an argument is of the wrong type. Nothing else ever: a closed stdout or a full disk is passed over.
    """
    _reporter.report(step, total, epoch, loss, samples, phase, message, metrics)


def report_checkpoint(fields: Mapping[str, Any]) -> None:
    """As `Reporter.checkpoint`; for rank 0 of `windlass.train.checkpoint`."""
    _reporter.checkpoint(fields)


class Reporter:
    """What `report` remembers between two lines."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, environ: Mapping[str, str] = os.environ, fd: int = _STDOUT_FD
    ) -> None:
        self._clock = clock
        self._environ = environ
        self._fd = fd
        self._fd_is: tuple[int, int] | None = None
        self._lock = threading.Lock()
        self._last_line_at: float | None = None
        self._unsaid_step: int | None = None
        """The newest step, where no line has told it."""
        self._is_finite = True
        """Whether the newest loss was; known of numbers alone, since a tensor is converted only for a line."""
        self._num_turns = 0
        self._unsaid_loss: dict[str, Any] | None = None
        """Step and loss of the newest report, where no line has told them."""
        self._window_began_at = 0.0
        self._window_step: int | None = None
        self._window_samples = 0
        self._has_samples = False
        self._phase: str | None = None
        self._message: str | None = None

    def after_fork(self) -> None:
        """A child must not wait for a lock that a thread of its parent held, nor say what its parent will."""
        self._lock = threading.Lock()
        self._unsaid_step = self._unsaid_loss = None

    def say_last(self) -> None:
        """Tell the last step, if no line had it: where a script ends, and more so where it failed, is worth knowing."""
        step, self._unsaid_step = self._unsaid_step, None
        try:  # no waiting for the lock: whoever holds it now, in a thread of the script, may never let it go
            if step is not None and self._environ.get("WINDLASS_RUN_ID") and self._lock.acquire(blocking=False):
                self._write(as_line({"step": step}, {}))
        except Exception:
            pass

    def report(
        self,
        step: Any,
        total: Any,
        epoch: Any,
        loss: Any,
        samples: int | None,
        phase: str | None,
        message: str | None,
        metrics: dict[str, Any],
    ) -> None:
        """As the function `report`, which describes the arguments."""
        _check_types(step, total, epoch, loss, samples, phase, message, metrics)
        for_windlass = bool(self._environ.get("WINDLASS_RUN_ID"))
        if not for_windlass and any(self._environ.get(name, "0") != "0" for name in _RANK_NAMES):
            return
        # The promise is that nothing but a wrong argument ends a training that is going well.
        try:
            with self._lock:
                if step is None:  # a script that leaves the counting to its Checkpoint
                    step = self._unsaid_step
                self._unsaid_step = step if isinstance(step, int) else None
                is_due = self._is_due(step, total, samples, phase, message)
                if not self._follow_loss(step, loss, is_due=is_due, for_windlass=for_windlass):
                    return
                self._unsaid_step = None
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
        """Tells what became of a checkpoint, at once: `action`, `step`, `name` and more. Never raises."""
        try:
            with self._lock:
                if self._environ.get("WINDLASS_RUN_ID"):
                    self._write(checkpoint_line(fields))
                else:
                    print(checkpoint_text(fields), end="", flush=True)
        except Exception:
            pass

    def _follow_loss(self, step: Any, loss: Any, *, is_due: bool, for_windlass: bool) -> bool:
        """Whether to write a line: it is due, or the loss is no longer finite; then the one before is written too."""
        unsaid, self._unsaid_loss = self._unsaid_loss, None
        if type(loss) not in (int, float):
            return is_due
        was_finite, self._is_finite = self._is_finite, math.isfinite(loss)
        if was_finite and not self._is_finite and for_windlass and self._num_turns < _NUM_TURNS:
            self._num_turns += 1
            if unsaid is not None:
                self._write(as_line({name: _plain(value) for name, value in unsaid.items()}, {}))
            return True
        if not is_due and self._is_finite:
            self._unsaid_loss = {"loss": loss} if step is None else {"step": step, "loss": loss}
        return is_due

    def _is_due(self, step: Any, total: Any, samples: int | None, phase: str | None, message: str | None) -> bool:
        now = self._clock()
        if samples is not None:
            self._window_samples += int(samples)
            self._has_samples = True
        if message is not None:
            self._message = message[:_MESSAGE_CHARS]
        first = self._last_line_at is None
        final = isinstance(step, int) and isinstance(total, int) and step == total
        new_phase = phase is not None and phase != self._phase
        if not (first or final or new_phase or now - (self._last_line_at or 0.0) >= INTERVAL_SECONDS):
            return False
        self._last_line_at = now
        self._phase = phase if phase is not None else self._phase
        if first:
            # What came before the first line took a time that nobody measured.
            self._window_began_at, self._window_samples = now, 0
        return True

    def _add_speed(self, fields: dict[str, Any]) -> None:
        now = self._last_line_at or 0.0
        seconds = now - self._window_began_at
        step = fields.get("step")
        if seconds >= _SHORTEST_WINDOW_SECONDS:
            if step is not None and self._window_step is not None and step > self._window_step:
                fields["rate"] = _plain((step - self._window_step) / seconds)
            if self._has_samples:
                fields["samples_per_second"] = _plain(self._window_samples / seconds)
            self._window_began_at, self._window_samples = now, 0
            self._window_step = step
        elif self._window_step is None:
            self._window_step = step

    def _write(self, line: bytes) -> None:
        """Writes the line in one piece, unless its place is no longer the stdout that it was."""
        if self._fd == _STDOUT_FD and (sys.__stdout__ is None or sys.__stdout__.closed):
            return  # the number 1 may belong to a checkpoint by now
        status = os.fstat(self._fd)
        self._fd_is = self._fd_is or (status.st_dev, status.st_ino)
        if self._fd_is != (status.st_dev, status.st_ino):
            return
        try:
            if sys.stdout.fileno() == self._fd:
                sys.stdout.flush()
        except (AttributeError, OSError, ValueError):
            pass  # a stdout that is no file, or is closed, has nothing to say before us
        os.write(self._fd, line)


def as_line(fields: dict[str, Any], metrics: dict[str, Any]) -> bytes:
    """The line for Windlass, of at most `MAX_LINE_BYTES`: metrics are left out from the end, then the message cut."""
    fields = dict(fields)
    while True:
        room = MAX_LINE_BYTES - len(_dump(fields)) - len(', "metrics": {}')
        if room >= 0 or "message" not in fields:
            break
        fields["message"] = fields["message"][: len(fields["message"]) // 2]
        if not fields["message"]:
            del fields["message"]
    kept = {}
    for name, value in metrics.items():
        room -= len(json.dumps(name)) + len(json.dumps(value)) + len(": , ")
        if room < 0:
            break
        kept[name] = value
    if kept:
        fields["metrics"] = kept
    return _dump(fields)


def as_text(fields: dict[str, Any], metrics: dict[str, Any]) -> str:
    """The line for a person: `step 40/500  epoch 3  loss 0.1234  1,234 samples/s`."""
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
    """The line for Windlass about a checkpoint; its reason is cut to what fits."""
    fields = {**fields, "reason": str(fields["reason"])[:_MESSAGE_CHARS]} if fields.get("reason") else dict(fields)
    return _dump({"checkpoint": fields})


def checkpoint_text(fields: Mapping[str, Any]) -> str:
    """The line for a person about a checkpoint: `checkpoint: step 120 saved, 512.0 MB in 0.81 s`."""
    text = f"checkpoint: step {fields['step']} {fields['action']}"
    if fields.get("bytes"):
        text += f", {fields['bytes'] / 1e6:,.1f} MB in {fields.get('seconds', 0.0):.2f} s"
    if fields.get("blocked_seconds") is not None:
        text += f", training held for {fields['blocked_seconds']:.3f} s"
    return text + (f": {fields['reason']}" if fields.get("reason") else "") + "\n"


def _dump(fields: dict[str, Any]) -> bytes:
    return f"{MARKER}{json.dumps(fields)}\n".encode("ascii")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    """A number for JSON, with "nan", "inf" and "-inf" for the three it lacks; None where `value` gives none."""
    if value is None:
        return None
    if not isinstance(value, (int, float)):
        try:
            value = value.item()  # on a GPU this waits for all that was asked of it
        except Exception:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return int(value) if isinstance(value, bool) else None
    if isinstance(value, int):
        return int(value)
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return float(f"{value:.8g}")  # what a 32-bit float holds, without the digits it does not


def _check_types(
    step: Any,
    total: Any,
    epoch: Any,
    loss: Any,
    samples: Any,
    phase: Any,
    message: Any,
    metrics: dict[str, Any],
) -> None:
    for name, value in (("step", step), ("total", total)):
        if value is not None and type(value) is not int and not _is_one_integer(value):
            raise _wrong(name, "an integer", value)
    for name, value in (("epoch", epoch), ("loss", loss), *metrics.items()):
        if value is not None and type(value) is not float and not _is_one_number(value):
            raise _wrong(name, "a number, or a tensor or array of one element", value)
    # Adding up tensors would make every step wait for the GPU, so here only an integer will do.
    if (
        samples is not None
        and type(samples) is not int
        and (hasattr(samples, "device") or not _is_one_integer(samples))
    ):
        raise _wrong("samples", "an integer such as len(batch)", samples)
    for name, value in (("phase", phase), ("message", message)):
        if value is not None and not isinstance(value, str):
            raise _wrong(name, "a string", value)


def _is_one_integer(value: Any) -> bool:
    if isinstance(value, (bool, float)):
        return False
    return isinstance(value, int) or ("int" in str(getattr(value, "dtype", "")) and _is_one_number(value))


def _is_one_number(value: Any) -> bool:
    """Whether a number can be had from `value`; asks only what a tensor knows without its device."""
    if isinstance(value, (int, float)):
        return True
    if not callable(getattr(value, "item", None)):
        return False
    return all(size == 1 for size in getattr(value, "shape", ()))


def _wrong(name: str, wanted: str, value: Any) -> TypeError:
    shape = getattr(value, "shape", None)
    found = f"{type(value).__name__} of shape {tuple(shape)}" if shape is not None else f"{type(value).__name__} "
    if shape is None:
        text = repr(value)
        found += text if len(text) <= 60 else text[:57] + "..."
    return TypeError(f"report({name}=...) takes {wanted}, but was given {found}")


_reporter = Reporter()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reporter.after_fork)
atexit.register(_reporter.say_last)
