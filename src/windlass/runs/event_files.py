"""Writes metrics as an event file of TensorBoard; `windlass.worker.event_file` describes the format."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from windlass.runs.metrics import Series
from windlass.worker.event_file import masked_crc

PREFIX: Final = "events.out.tfevents."
"""Start of the names that TensorBoard reads."""
VERSION: Final = b"brain.Event:2"
_PARTIAL: Final = ".windlass-partial"


def write_event_file(path: Path, series: Iterable[Series]) -> None:
    """Writes the points of `series` as scalars into an event file, in the order of their times; tags are the names.

    TensorBoard reads files whose name starts with `PREFIX`. The file appears when it is complete, and replaces another
    of its name. Steps are whole numbers: fractions are cut, and points without a step are counted from 0 on. Values are
    float32. Raises OSError.
    """
    partial = path.with_name(_PARTIAL)  # TensorBoard reads any file with `tfevents` in its name
    try:
        partial.unlink(missing_ok=True)  # of a process that was killed
        append_to_event_file(partial, series)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def append_to_event_file(path: Path, series: Iterable[Series]) -> None:
    """Appends points to an event file as `write_event_file` writes them; begins the file if it does not exist. Raises
    OSError.
    """
    with open(path, "ab") as file:
        if file.tell() == 0:
            file.write(_record(_event(0.0, 0, 3, VERSION)))
        for time, step, tag, value in sorted(_points(series), key=lambda point: point[0]):
            file.write(_record(_event(time, step, 5, _summary(tag, value))))


def _points(series: Iterable[Series]) -> Iterator[tuple[float, int, bytes, float]]:
    """Yields time, step, tag and value of each point."""
    for one in series:
        for index, (time, step, value) in enumerate(zip(one.times, one.steps, one.values, strict=True)):
            yield time, index if step is None else int(step), one.name.encode("utf-8", "replace"), value


def _event(time: float, step: int, number: int, data: bytes) -> bytes:
    """Returns an `Event` message with `file_version` (field 3) or `summary` (field 5)."""
    return b"\x09" + struct.pack("<d", time) + b"\x10" + _varint(step) + _field(number, data)


def _summary(tag: bytes, value: float) -> bytes:
    """Returns a `Summary` message with one scalar."""
    try:
        number = struct.pack("<f", value)
    except OverflowError:
        number = struct.pack("<f", math.copysign(math.inf, value))
    return _field(1, _field(1, tag) + b"\x15" + number)


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))
