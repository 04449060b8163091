"""Buffers the values of every call of `report`, and converts them to the `series` of lines for Windlass.

A series has columns of equal length: with `at` as Unix seconds of its first call,

    {"at": 1790000000.123, "ms": [0, 2], "steps": [1, 2], "values": {"loss": [0.7, 0.65], "lr": [0.1, 0.1]}}
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

MAX_CALLS = 4096
"""Number of calls after which the buffer must be written."""
MAX_POINTS = 200
"""Points per metric in one flush above which they are thinned."""
MAX_SERIES_BYTES = 4060
"""Maximum length of the JSON of one series, so that a line with it has at most 4095 bytes."""
STEP = "step"
NAME_CHARS = 80
"""Maximum length of the name of a metric; metrics with longer names are not written."""
PLAIN = frozenset((int, float))
"""Types of numbers that need no conversion."""
_ROW_BYTES, _VALUE_BYTES = 14, 13
"""Usual length in JSON of a point's time and step, and of a value."""
_EXIT_SECONDS = 1.0


class SeriesBuffer:
    """Values of calls that were not written yet. Numbers on a GPU are copied there, and fetched together."""

    def __init__(self) -> None:
        self._rows: list[tuple[float, dict[str, Any]]] = []
        """For each call: Unix seconds, and the step and the values by name."""
        self._held: list[tuple[dict[str, Any], str]] = []
        """Values that are not converted yet: those of a call, and the name."""

    @property
    def is_full(self) -> bool:
        """Whether the buffer must be written after one more call."""
        return len(self._rows) >= MAX_CALLS - 1

    def add(self, at: float, values: dict[str, Any], *, is_plain: bool) -> None:
        """Adds a call at `at`, in Unix seconds: its step and values by name, which the buffer may change. Never waits
        for a GPU. With `is_plain`, all types are in `PLAIN`.
        """
        if not is_plain:
            self._hold(values)
        self._rows.append((at, values))

    def convert(self, *, at_exit: bool = False) -> dict[str, Any]:
        """Converts all values to Python numbers, and returns those of the newest call. Values that cannot be converted
        are removed.

        Waits for a GPU once per device and type of number. With `at_exit`, waits at most a second: the GPU may
        wait for other ranks forever.
        """
        groups: dict[tuple[Any, ...], list[tuple[dict[str, Any], str]]] = {}
        held, self._held = self._held, []
        for values, name in held:
            value = values[name]
            groups.setdefault((value.device, value.dtype) if _is_tensor(value) else (), []).append((values, name))
        for kind, places in groups.items():
            numbers = _fetched([values[name] for values, name in places], kind[0] if kind else None, at_exit=at_exit)
            for (values, name), number in zip(places, numbers):  # noqa: B905 - `strict` came with Python 3.10
                _set(values, name, number)
        return self._rows[-1][1] if self._rows else {}

    def take(self) -> list[str]:
        """Returns the converted values as the JSON of one or more series, and empties the buffer.

        Metrics with the same points share a series. A metric with more than `MAX_POINTS` is thinned.
        """
        rows, self._rows = self._rows, []
        groups: dict[tuple[int, ...], list[str]] = {}
        names = dict.fromkeys(name for _, values in rows for name in values)
        for name in [name for name in names if name != STEP and len(name) <= NAME_CHARS]:
            points = [index for index, (_, values) in enumerate(rows) if name in values]
            kept = [points[index] for index in kept_points([rows[index][1][name] for index in points])]
            groups.setdefault(tuple(kept), []).append(name)
        return [text for kept, names in groups.items() for text in _texts([rows[index] for index in kept], names)]

    def _hold(self, values: dict[str, Any]) -> None:
        """Replaces the values of a call by numbers, or by copies that the script cannot change."""
        for name, value in [*values.items()]:
            if type(value) not in PLAIN:
                kept = _held(value)
                _set(values, name, kept)
                if kept is not None and type(kept) not in PLAIN:
                    self._held.append((values, name))


def kept_points(values: Sequence[float], most: int = MAX_POINTS) -> list[int]:
    """Returns the indexes of at most about `most` values: the first, last, lowest, highest and first non-finite value
    of each of equal parts.
    """
    if len(values) <= most:
        return [*range(len(values))]
    kept: set[int] = set()
    width = math.ceil(len(values) / (most // 4))
    for at in range(0, len(values), width):
        part = range(at, min(at + width, len(values)))
        finite = [index for index in part if math.isfinite(values[index])]
        kept.update((part[0], part[-1]))
        if finite:
            kept.update((min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)))
        if len(finite) < len(part):
            kept.add(next(index for index in part if not math.isfinite(values[index])))
    return sorted(kept)


def plain(value: Any) -> Any:
    """Converts a value to a number for JSON, or to "nan", "inf" or "-inf"; None if it is not a number."""
    value = value if type(value) in (int, float) else _number(value)
    if value is None or isinstance(value, int):
        return value
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return float(f"{value:.8g}")  # eight digits are about the precision of a 32-bit float


def _set(values: dict[str, Any], name: str, number: Any) -> None:
    """Replaces a value; removes it if it is no number."""
    if number is None:
        del values[name]
    else:
        values[name] = number


def _texts(rows: list[tuple[float, dict[str, Any]]], names: list[str]) -> Iterator[str]:
    """Yields the JSON of series of at most `MAX_SERIES_BYTES`."""
    most = max(1, MAX_SERIES_BYTES // (_ROW_BYTES + _VALUE_BYTES * len(names)))
    for first in range(0, len(rows), most):
        yield from _fitting(rows[first : first + most], names)


def _fitting(rows: list[tuple[float, dict[str, Any]]], names: list[str]) -> Iterator[str]:
    """Yields the JSON of series that are short enough; halves the rows, then the names, until they are."""
    at = round(rows[0][0], 3)
    milliseconds = _column([round((each - at) * 1000) for each, _ in rows])
    steps = _column([values.get(STEP) for _, values in rows])
    columns = ", ".join([f"{json.dumps(name)}: {_column([values[name] for _, values in rows])}" for name in names])
    text = f'{{"at": {at}, "ms": {milliseconds}, "steps": {steps}, "values": {{{columns}}}}}'
    if len(text) <= MAX_SERIES_BYTES:
        yield text
    elif len(rows) > 1:
        yield from _fitting(rows[: len(rows) // 2], names)
        yield from _fitting(rows[len(rows) // 2 :], names)
    elif len(names) > 1:
        yield from _fitting(rows, names[: len(names) // 2])
        yield from _fitting(rows, names[len(names) // 2 :])


def _column(values: list[Any]) -> str:
    """Returns numbers, some of which may be None, as a JSON array with the digits of `plain`."""
    types = {*map(type, values)}
    if types == {int}:
        form = "%d"
    elif types == {float} and math.isfinite(sum(values)):
        form = "%.8g"
    else:
        return json.dumps([plain(value) for value in values])
    # one call that formats all values takes a third of the time of a call for each
    return f"[{', '.join([form] * len(values)) % tuple(values)}]"


def _held(value: Any) -> Any:
    """Returns a value that a script cannot change in place: a number if the value is in host memory, else a copy."""
    if _is_tensor(value):
        return _number(value) if value.is_cpu else value.detach().clone()
    return value if getattr(value, "device", "cpu") != "cpu" else _number(value)  # arrays of JAX cannot be changed


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _fetched(values: list[Any], device: Any, *, at_exit: bool) -> list[Any]:
    """Returns values of one device as numbers; None for those that cannot be converted."""
    try:
        if device is not None:
            if at_exit and not _finishes(device):
                return [None] * len(values)
            return [
                _number(value) for value in sys.modules["torch"].stack([each.reshape(()) for each in values]).tolist()
            ]
    except Exception:
        pass
    return [_number(value) for value in values]


def _finishes(device: Any) -> bool:
    """Whether the GPU finishes its queued work within `_EXIT_SECONDS`."""
    of_type = getattr(sys.modules["torch"], device.type)
    if not hasattr(of_type, "current_stream"):
        return True
    stream, give_up = of_type.current_stream(device), time.monotonic() + _EXIT_SECONDS
    while not stream.query():
        if time.monotonic() >= give_up:
            return False
        time.sleep(0.01)
    return True


def _number(value: Any) -> Any:
    """Converts a value to an integer or a float; None if it is not a number."""
    if not isinstance(value, (int, float)):
        try:
            value = value.item()  # on a GPU, waits for all work that is queued there
        except Exception:
            return None
    if isinstance(value, float):
        return float(value)
    return int(value) if isinstance(value, int) else None
