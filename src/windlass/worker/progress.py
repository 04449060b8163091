"""Extracts progress from the output of one rank: position in the training, speed and loss.

For each rank, the first source with progress is used: structured lines that `windlass.train.report` writes, the job's
own regular expression, and formats of common training code. Fields that no structured line reports, such as the loss of
a script whose `Checkpoint` counts the steps, are read from the other two. Steps are not, because a script may print the
number of a batch within its epoch. Precision is preferred to recall: a line that may have another meaning is ignored.
"""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Callable  # noqa: UP035 - the worker runs on Python 3.9 too

from windlass.worker.log_points import LineBudget, LogPoints, values_of
from windlass.worker.loss_tracking import NOT_FINITE, Losses
from windlass.worker.training_start import TrainingStart
from windlass.worker.trainlogs import INTEGER_LIMIT, LINE_CHARS, Progress, is_hint, number, recognise, whole
from windlass.worker.values import json_safe

MARKER = b"::windlass "
_CHECKPOINT = MARKER + b'{"checkpoint": {'
_COUNTS = "counts"
"""Action that a `Checkpoint` reports before it counts its first step."""
_CHECKPOINT_ACTIONS = ("saved", "restored", "refused", "none-verified", "failed", "skipped")
_MAX_CHECKPOINTS = 256  # maximum between two reads by the node
GROUPS = ("step", "total", "epoch", "loss", "samples", "rate")
"""Group names allowed in a job's own expression; `samples` is samples per second."""

LOSS_GAPS, LOSS_STEPS = 3, 30
"""A printed loss is outdated after this many steps: LOSS_GAPS times the longest gap between two losses, plus
LOSS_STEPS."""

_PARTIAL_BYTES = 64 << 10
_MAX_VALUE = 1e300  # larger integers of JSON are no floats
_MAX_POINTS = 20_000  # maximum between two reads by the node
_TAIL_BYTES = 16 << 10
_LINES = 32
_LINES_AFTER_STEP = 4  # older lines that are searched for a loss or an epoch, once a step is found

# All fields of one group come from a single line, so that a step is never shown with the total of another progress bar.
_OF_STEP = ("step", "total", "rate", "samples_per_second", "percent", "phase")
_TOGETHER = (_OF_STEP, ("loss",), ("epoch",), ("metrics",))


Point = tuple[str, str, "float | None", float, "float | str"]
"""A value of a metric: its source, name, step, time in Unix seconds, and value."""


class Recogniser:
    """Reads the output of one rank in chunks of any size, and returns new progress."""

    def __init__(self, pattern: str | None = None) -> None:
        """`pattern` is the job's own regular expression for progress lines. Raises ValueError if the expression is
        invalid.
        """
        self._pattern = _own_pattern(pattern) if pattern is not None else None
        self._partial = b""
        self._partial_was_read = False
        self._only = ""
        self._reported: frozenset[str] = frozenset()
        """Fields that structured lines have reported, and that are therefore not read from other lines."""
        self._step = self._loss_step = self._loss_gap = 0
        """Three numbers: the newest step, the step of the last loss, and the longest gap between two losses."""
        self._has_loss = self._is_loss_new = False
        """Two flags: whether a loss was found, and whether its step is not known yet."""
        self._evaluating = False
        self.checkpoints: list[dict[str, Any]] = []
        """Checkpoint events in order, each once; the caller empties the list."""
        self.points: list[Point] = []
        """Values of metrics in order, each once; the caller empties the list."""
        self._log_points = LogPoints()
        self._at = 0.0
        """Unix seconds at which the newest output arrived."""
        self._reported_step: int | None = None
        """Newest step in a structured line."""
        self._budget = LineBudget()
        self._in_series: set[str] = set()
        """Metrics that structured lines report; printed values of them are not kept."""
        self.beginning = TrainingStart(self._of_line)
        """Finds where the training begins in the output."""
        self.losses = Losses()
        """Finds where the loss becomes NaN or infinite."""

    def feed(self, chunk: bytes, at: float = 0.0) -> Progress | None:
        """Returns the newest progress in the lines that end in `chunk`, or None, and adds to `points`. Raises nothing,
        even for invalid bytes. `at` is the time at which the output arrived, in Unix seconds.

        Keys, if the line has them: step and total (of the run or of the epoch, as printed), epoch, loss, rate (steps
        per second), samples_per_second, phase, message, percent (0 to 100, only without a total) and metrics (name to
        number). Numbers that JSON cannot express are "nan", "inf" and "-inf". For known formats the phase is
        "evaluating" during an evaluation, and "training" with the first step after an evaluation. Reads all structured
        lines, and the last 32 other lines of a chunk.
        """
        self._at = at
        data = self._partial + chunk if self._partial else chunk
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        was_read, self._partial_was_read = self._partial_was_read, False
        previous, self._partial = self._partial, data[end:][-_PARTIAL_BYTES:]
        if self.beginning.is_open:
            self._read_beginning(data[:end])
        structured = self._structured(data)
        printed = self._of_tail(data, end, previous, was_read)
        found = self._unreported(printed) if "loss" not in self._reported else None
        if found:
            self._follow_loss(found, data[:end])
        return self._without_old_loss({**(found or {}), **(structured or {})}) or None

    def _without_old_loss(self, found: Progress) -> Progress:
        """Sets an outdated loss, and the epoch printed with it, to None.

        A loss is outdated if steps are reported, but no loss for several times the usual number of steps.
        """
        if "step" not in self._reported:
            return found
        self._step, last = found.get("step", self._step), self._step
        self._loss_step = self._loss_step or self._step
        if self._is_loss_new and self._step != last:
            self._loss_step, self._is_loss_new = self._step, False
        since = self._step - self._loss_step
        if found.get("loss") is not None:
            self._loss_gap, self._loss_step, self._has_loss = max(self._loss_gap, since), self._step, True
            self._is_loss_new = True
        elif self._has_loss and since > LOSS_GAPS * self._loss_gap + LOSS_STEPS:
            self._has_loss = False
            of_its_time = {"epoch": None} if "epoch" not in {*self._reported, *found} else {}
            return {**found, "loss": None, **of_its_time}
        return found

    def _unreported(self, printed: Progress | None) -> Progress:
        """Returns the printed fields that structured lines do not report."""
        return {name: value for name, value in (printed or {}).items() if name not in self._reported}

    def _take_reported(self, fields: Mapping[str, Any]) -> None:
        of_step = _OF_STEP if "step" in fields else ()
        self._reported = self._reported.union(of_step, *(group for group in _TOGETHER[1:] if group[0] in fields))

    def _of_tail(self, data: bytes, end: int, previous: bytes, was_read: bool) -> Progress | None:
        tail_at = max(0, end - _TAIL_BYTES)
        lines = _last_lines(data[tail_at:end], cut=tail_at > 0 or len(previous) >= _PARTIAL_BYTES)
        if was_read and lines and previous.startswith(lines[0]):
            lines = lines[1:]  # an incomplete bar that was already read
        return self._of_lines(lines)

    def _follow_loss(self, found: Progress, data: bytes) -> None:
        """Tracks the loss. Reads each line of the chunk if the loss has just become NaN or infinite."""
        if self.losses.is_change(found):
            kind = self._only or "known"
            for line in data.replace(b"\r", b"\n").split(b"\n"):
                read = self._of_line(line) if len(line) <= 2 * LINE_CHARS else None
                if read is not None and read[0] == kind:
                    self.losses.take(read[1])
        self.losses.take(found)

    def _read_beginning(self, data: bytes) -> None:
        self.beginning.feed(data)
        for event in self.beginning.restored:
            self._add_event(event)
        self.beginning.restored.clear()

    def _of_line(self, line: bytes) -> tuple[str, Progress] | None:
        """Returns the progress of a single line, and its kind: `structured`, `pattern` or `known`."""
        at = line.find(MARKER)
        if at >= 0:
            if _is_count(line, at):
                self._take_reported({"step": 0})
            given = _checked(_from_json(line[at + len(MARKER) :]), _PROGRESS_FIELDS)
            return ("structured", given) if given else None
        if self._pattern is not None and (own := self._unreported(_from_own(self._pattern, line))):
            return "pattern", own
        fields = self._unreported(recognise(line.decode("utf-8", "replace"))) if is_hint(line) else None
        return ("known", fields) if fields else None

    def _structured(self, data: bytes) -> Progress | None:
        """Returns the newest value of each field in the structured lines of `data`; None if there are no such lines.

        Also records the first reported steps, and adds an event for each structured line about a checkpoint.
        """
        found: Progress | None = None
        at = data.find(MARKER)
        while at >= 0:
            end = data.find(b"\n", at)
            if end < 0:
                if len(data) - at <= _PARTIAL_BYTES // 8:
                    self._partial = data[at:]  # the line is incomplete, even if a terminal has inserted \r before \n
                break
            if _is_count(data, at):
                self._take_reported({"step": 0})
            elif data.startswith(_CHECKPOINT, at):
                self._add_checkpoint(_from_json(data[at + len(MARKER) : end]).get("checkpoint"))
            else:
                given = _from_json(data[at + len(MARKER) : end])
                self._add_series(given.get("series"))
                if fields := _checked(given, _PROGRESS_FIELDS):
                    self._reported_step = fields.get("step", self._reported_step)
                    found = {**(found or {}), **fields}
                    self._take_reported(fields)
                    self.beginning.report("structured", fields.get("step"))
                    self.losses.take(fields)
            at = data.find(MARKER, end)
        return found

    def _add_series(self, series: Any) -> None:
        """Adds the points of a line's series (see `train/series.py`); ignores a damaged one."""
        try:
            times = [series["at"] + ms / 1000 for ms in series["ms"]]
            steps = [_figure(step) for step in series["steps"]]
            columns = [(str(name), [_figure(value) for value in values]) for name, values in series["values"].items()]
        except (TypeError, KeyError, AttributeError, OverflowError):
            return
        self._in_series.update(name for name, _ in columns[:_MAX_POINTS])
        for name, values in columns:
            if len(values) == len(steps) == len(times):
                for step, at, value in zip(steps, times, values):  # noqa: B905 - `strict` came with Python 3.10
                    if isinstance(step, str) or abs(step or 0) >= INTEGER_LIMIT or not 0 <= at < INTEGER_LIMIT:
                        continue
                    if value is not None and (isinstance(value, str) or abs(value) < _MAX_VALUE):
                        self._add_point(("report", name, step, at, value))

    def _add_printed(self, fields: Progress) -> None:
        """Adds the values of a printed line."""
        for name, step, value in self._log_points.take(fields, self._reported_step):
            if name not in self._in_series:
                self._add_point(("log", name, step, self._at, value))

    def add_posted(self, progress: Progress, at: float) -> None:
        """Adds the values that the rank has posted to the status server, of metrics that it neither reports nor prints,
        because it posts only some of the values that it prints.
        """
        for name, value in values_of(progress):
            if name not in self._in_series and not self._log_points.has(name):
                self._add_point(("log", name, progress.get("step"), at, value))

    def _add_point(self, point: Point) -> None:
        if len(self.points) < _MAX_POINTS:
            self.points.append(point)

    def _add_checkpoint(self, fields: Any) -> None:
        if isinstance(fields, dict) and str(fields.get("action")) in _CHECKPOINT_ACTIONS:
            self._add_event({"action": fields["action"], **_checked(fields, _CHECKPOINT_FIELDS)})

    def _add_event(self, event: dict[str, Any]) -> None:
        if len(self.checkpoints) < _MAX_CHECKPOINTS:
            self.checkpoints.append(event)

    def _of_lines(self, lines: list[bytes]) -> Progress | None:
        lines = [line for line in lines if MARKER not in line]
        if self._pattern is not None:
            own = [fields for line in lines if (fields := _from_own(self._pattern, line))]
            for fields in own:
                self._add_printed(fields)
            if own:
                self._only = "pattern"
                return own[-1]
        if self._only == "pattern":
            return None
        # tqdm ends the line of a bar only when the next bar starts, which may be an hour later.
        if self._partial[-64:].rstrip().endswith(b"]") and len(self._partial) <= LINE_CHARS:
            self._partial_was_read = True
            lines = [*lines, self._partial]
        found = self._of_known(lines[-_LINES - 1 :]) if is_hint(b"\n".join(lines)) else None
        if found is not None and "phase" in found:
            self._evaluating = True
        elif found is not None and self._evaluating and "step" in found:
            self._evaluating = False
            found["phase"] = "training"
        return found

    def _of_known(self, lines: list[bytes]) -> Progress | None:
        """Returns the newest progress in lines of known formats, and adds the values of the lines that it has read.

        It reads all lines unless the rank prints too many; then only those that the newest progress needs.
        """
        read: list[Progress] = []
        left = _progress_of(reversed(lines), read)
        is_rare = self._budget.allows(len(lines), self._at)
        found = _newest(left) if is_rare or "loss" not in self._reported else None
        if is_rare:
            collections.deque(left, maxlen=0)
        for fields in reversed(read):
            self._add_printed(fields)
        return found


def _is_count(data: bytes, at: int) -> bool:
    return data.startswith(_CHECKPOINT + b'"action": "' + _COUNTS.encode() + b'"', at)


def _own_pattern(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as exc:
        raise ValueError(f"the progress pattern {pattern!r} is not a regular expression: {exc}") from exc
    unknown = sorted(set(compiled.groupindex) - set(GROUPS))
    if unknown or not compiled.groupindex:
        found = ", ".join(unknown) if unknown else "no named group"
        raise ValueError(f"the progress pattern {pattern!r} has {found}; it may name {', '.join(GROUPS)}")
    return compiled


def _last_lines(data: bytes, *, cut: bool) -> list[bytes]:
    """Returns the last lines of `data`, which must end with a line end. With `cut`, drops the incomplete first line."""
    lines = data.replace(b"\r", b"\n").split(b"\n")
    if cut:
        lines = lines[1:]
    return [line for line in lines[-_LINES - 1 :] if line]


def _known(line: bytes) -> Progress | None:
    """Returns the progress in a line of a known format."""
    return recognise(line.decode("utf-8", "replace")) if len(line) <= 2 * LINE_CHARS and is_hint(line) else None


def _progress_of(lines: Iterable[bytes], read: list[Progress]) -> Iterator[Progress | None]:
    """Yields the progress in each line, reading no line ahead, and appends it to `read`."""
    for line in lines:
        if fields := _known(line):
            read.append(fields)
        yield fields


def _newest(lines: Iterator[Progress | None]) -> Progress | None:
    """Returns the newest value of each field. `lines` is the progress of each line, newest line first."""
    found: Progress = {}
    left = _LINES + 1
    for fields in lines:
        left -= 1
        if fields:
            for together in _TOGETHER:
                if not any(name in found for name in together):
                    found.update((name, fields[name]) for name in together if name in fields)
            if "step" in found:
                left = 0 if "loss" in found else min(left, _LINES_AFTER_STEP)
        if left == 0:
            break
    return found or None


# ---------------------------------------------------------------- structured lines and the job's expression


def _from_json(data: bytes) -> dict[str, Any]:
    """Returns the JSON object in a line; empty if the line contains none."""
    try:
        value = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _checked(value: dict[str, Any], fields: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    """Returns the valid fields of a structured line, converted by `fields`."""
    found = {name: check(value[name]) for name, check in fields.items() if name in value}
    return {name: checked for name, checked in found.items() if checked is not None}


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < INTEGER_LIMIT else None


def _figure(value: Any) -> Any:
    if isinstance(value, str):
        return value if value in NOT_FINITE else None
    return json_safe(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _positive(value: Any) -> Any:
    number = _figure(value)
    return number if isinstance(number, (int, float)) and number >= 0 else None


def _text(value: Any) -> str | None:
    return value[:LINE_CHARS] if isinstance(value, str) else None


def _metrics(value: Any) -> dict[str, Any] | None:
    return _checked(value, dict.fromkeys(value, _figure)) or None if isinstance(value, dict) else None


_PROGRESS_FIELDS = {
    "step": _count,
    "total": _count,
    "epoch": _figure,
    "loss": _figure,
    "rate": _figure,
    "samples_per_second": _figure,
    "percent": _figure,
    "phase": _text,
    "message": _text,
    "metrics": _metrics,
}
_CHECKPOINT_FIELDS = {
    "step": _count,
    "bytes": _count,
    "blocked_at": _positive,
    "blocked_seconds": _positive,
    "seconds": _positive,
    "name": _text,
    "reason": _text,
}


def _from_own(pattern: re.Pattern[str], line: bytes) -> Progress | None:
    if len(line) > 2 * LINE_CHARS:
        return None
    match = pattern.search(line.decode("utf-8", "replace"))
    if match is None:
        return None
    found: Progress = {}
    for group, text in match.groupdict().items():
        if not text:
            continue
        name = "samples_per_second" if group == "samples" else group
        value = number(text)
        if group in ("step", "total"):
            if isinstance(value, float) and 0 <= value < INTEGER_LIMIT:
                found[name] = int(value)
        elif value is not None:
            found[name] = whole(value) if group == "epoch" else value
    return found
