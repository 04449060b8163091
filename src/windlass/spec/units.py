"""Parses durations (`1h30m`) and sizes (`16GiB`) into seconds and bytes, and formats them.

Sizes follow Kubernetes: `Gi` and `GiB` are powers of 1024, `G` and `GB` powers of 1000. A single lower-case letter is
refused, because `2g` is 2 GiB in Docker, `2G` is 2 GB in Kubernetes, and `512m` is half a byte in Kubernetes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from windlass.spec.positions import found
from windlass.spec.problems import refuse

MAX_SECONDS = 10 * 365 * 86400
"""Maximum duration, ten years: more than any job needs, and far below the limits of dates and timers."""
MAX_BYTES = 2**60
"""Maximum size, one exbibyte: more than any job needs."""

_LONGEST = 60
_NUMBER = r"[0-9]{1,18}(?:\.[0-9]{1,9})?"
_SECONDS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), Decimal("0.001")),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), Decimal(1)),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), Decimal(60)),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), Decimal(3600)),
    **dict.fromkeys(("d", "day", "days"), Decimal(86400)),
}
_BYTES = {
    **dict.fromkeys(("", "b"), 1),
    **{f"{letter}{end}": 1024**power for power, letter in enumerate("kmgtp", 1) for end in ("i", "ib")},
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgtp", 1)},
}
_CAPITAL = {letter: 1000**power for power, letter in enumerate("KMGTP", 1)}
_DURATION_PATTERN = rf"^\s*{_NUMBER}(\s*[A-Za-z]+(\s*{_NUMBER}\s*[A-Za-z]+)*)?\s*$"
_STEPS_PATTERN = r"^\s*([1-9][0-9]{0,8})\s*steps?\s*$"
_SIZE_PATTERN = rf"^\s*{_NUMBER}\s*([KMGTPkmgtp][Ii]?[Bb]|[KMGTPkmgtp][Ii]|[KMGTPBb])?\s*$"
_DURATION_HINT = "write for example 30s, 5min, 1h30m, or a number of seconds"
_SIZE_HINT = "write for example 16GiB, 2GB or 512Mi, or a number of bytes"


def parse_duration(given: object) -> float:
    """Converts `"5min"`, `"1h30m"`, `"500ms"` or a plain number of seconds to seconds.

    Raises a `ValueError` with the value found and what to write.
    """
    if isinstance(given, int | float) and not isinstance(given, bool):
        return _checked_seconds(given, given)
    text = given.strip() if isinstance(given, str) else ""
    if text.startswith("-"):
        raise refuse(f"a duration cannot be negative, found {found(given)}", _DURATION_HINT)
    if not text or len(text) > _LONGEST or not re.fullmatch(_DURATION_PATTERN, text):
        raise refuse(f"expected a duration, found {found(given)}", _DURATION_HINT)
    if re.fullmatch(_NUMBER, text):
        return _checked_seconds(float(text), given)
    total, smallest = Decimal(0), Decimal("Infinity")
    for number, word in re.findall(rf"({_NUMBER})\s*([A-Za-z]+)", text):
        unit = _SECONDS.get(word.lower()) if word != "M" else None  # `M` is refused, because it can mean months
        if unit is None:
            raise refuse(f"{word} is not a unit of time, found {found(given)}", "the units are ms, s, min, h and d")
        if unit >= smallest:
            raise refuse(f"the units of {found(given)} are not in falling order", _DURATION_HINT)
        smallest = unit
        total += Decimal(number) * unit
    return _checked_seconds(float(total), given)


def _checked_seconds(seconds: float, given: object) -> float:
    if isinstance(seconds, float) and not math.isfinite(seconds):
        raise refuse(f"a duration must be a finite number, found {found(given)}", _DURATION_HINT)
    if seconds < 0:
        raise refuse(f"a duration cannot be negative, found {found(given)}", _DURATION_HINT)
    if seconds > MAX_SECONDS:
        raise refuse(f"a duration can be ten years at most, found {found(given)}")
    return abs(float(seconds))  # abs converts -0.0 to 0.0


def parse_size(given: object) -> int:
    """Converts `"16GiB"`, `"2GB"`, `"512Mi"`, `"1024"` or a plain whole number to bytes; a fraction of a byte is
    rounded up.

    Raises a `ValueError` with the value found and what to write.
    """
    if isinstance(given, int) and not isinstance(given, bool):
        return _checked_bytes(given, given)
    if isinstance(given, float):
        if not math.isfinite(given) or not given.is_integer():
            raise refuse(f"a size must be a whole number of bytes, found {found(given)}", _SIZE_HINT)
        return _checked_bytes(int(given), given)
    text = given.strip() if isinstance(given, str) else ""
    if text.startswith("-"):
        raise refuse(f"a size cannot be negative, found {found(given)}", _SIZE_HINT)
    match = re.fullmatch(rf"({_NUMBER})\s*([A-Za-z]*)", text) if len(text) <= _LONGEST else None
    if match is None:
        raise refuse(f"expected a size, found {found(given)}", _SIZE_HINT)
    number, unit = match.groups()
    factor = _CAPITAL.get(unit) or _BYTES.get(unit.lower())
    if factor is None and unit.upper() in _CAPITAL:
        hint = f"write {number}{unit.upper()}iB or {number}{unit.upper()}B"
        raise refuse(f"{found(given)} means one size to Docker and another to Kubernetes", hint)
    if factor is None:
        raise refuse(f"{unit} is not a unit of size, found {found(given)}", _SIZE_HINT)
    return _checked_bytes(int((Decimal(number) * factor).to_integral_value(ROUND_CEILING)), given)


def _checked_bytes(size: int, given: object) -> int:
    if size < 0:
        raise refuse(f"a size cannot be negative, found {found(given)}", _SIZE_HINT)
    if size > MAX_BYTES:
        raise refuse(f"a size can be 1024PiB at most, found {found(given)}", _SIZE_HINT)
    return size


def _schema(number: dict[str, Any], patterns: Sequence[str], examples: Sequence[Any]) -> WithJsonSchema:
    """Returns the schema of a number that may also be written as text."""
    texts = [{"type": "string", "pattern": pattern} for pattern in patterns]
    return WithJsonSchema({"anyOf": [number, *texts], "examples": list(examples)})


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    _schema(
        {"type": "number", "minimum": 0, "maximum": MAX_SECONDS}, [_DURATION_PATTERN], ["30s", "5min", "1h30m", 90]
    ),
]
"""Seconds as a float; written as a number of seconds or as `30s`, `5min`, `1h30m`, `500ms`."""


def parse_interval(given: object) -> float | str:
    """Converts a duration to seconds and returns `"20 steps"` unchanged. Raises a `ValueError` that says what
    to write.
    """
    if isinstance(given, str) and (match := re.fullmatch(_STEPS_PATTERN, given)):
        return f"{match[1]} steps"
    if isinstance(given, str) and re.search(r"steps?\s*$", given):
        raise refuse(f"expected a number of steps, found {found(given)}", "write for example 100 steps")
    seconds = parse_duration(given)
    if not seconds:
        raise refuse(f"must be more than 0, found {found(given)}", "write for example 5min or 100 steps")
    return seconds


Interval = Annotated[
    float | str,
    BeforeValidator(parse_interval),
    _schema(
        {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_SECONDS},
        [_DURATION_PATTERN, _STEPS_PATTERN],
        ["5min", "30s", "100 steps"],
    ),
]
"""Seconds as a float, or `100 steps` as text; written as a duration or as a number of steps."""

Size = Annotated[
    int,
    BeforeValidator(parse_size),
    _schema({"type": "integer", "minimum": 0, "maximum": MAX_BYTES}, [_SIZE_PATTERN], ["16GiB", "2GB", "512Mi", 1024]),
]
"""Bytes as an int; written as a whole number of bytes or as `16GiB`, `2GB`, `512Mi`."""


def format_duration(seconds: float) -> str:
    """Formats seconds, exact to the millisecond: `1min 30s`, `2h`, `250ms`, `0s`."""
    if not math.isfinite(seconds):
        return str(seconds)
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    left_ms = round(seconds * 1000)
    if left_ms == 0:
        return "0s"
    if left_ms < 1000:
        return f"{left_ms}ms"
    words = []
    for unit, size_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        count, left_ms = divmod(left_ms, size_ms)
        if count:
            words.append(f"{count}{unit}")
    if left_ms:
        words.append(f"{left_ms / 1000:g}s" if left_ms % 1000 else f"{left_ms // 1000}s")
    return " ".join(words)


def format_size(size_bytes: int) -> str:
    """Formats bytes: exactly for multiples of a binary unit (`16GiB`), else with one decimal (`1.2MiB`)."""
    if size_bytes < 0:
        return f"-{format_size(-size_bytes)}"
    for power, unit in ((5, "PiB"), (4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size_bytes >= 1024**power:
            whole, rest = divmod(size_bytes, 1024**power)
            return f"{size_bytes / 1024**power:.1f}{unit}" if rest else f"{whole}{unit}"
    return f"{size_bytes}B"
