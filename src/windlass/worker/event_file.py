"""Reads the scalars of a TensorBoard event file while another process appends to it.

An event file is a TFRecord file: each record is a little-endian uint64 length, the masked CRC-32C of the length, the
data, and the masked CRC-32C of the data. The data is an `Event` message, of which only the fields of scalars are
decoded: tensorboard/compat/proto/event.proto, summary.proto and tensor.proto define the numbers.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Generator, Iterator
from typing import BinaryIO, NamedTuple

MAX_RECORD_BYTES = 1 << 20
"""Longer records are skipped without being read: they contain images, audio or graphs."""
MAX_FILE_BYTES = 1 << 40
PIECE_BYTES = MAX_RECORD_BYTES + 16
"""Bytes of one read, so that a record that is not skipped fits."""
ALWAYS_CHECKED_BYTES = 4096
"""The checksum of a longer record is verified only if the record has scalars or cannot be parsed: it takes about 60 ns
per byte in Python."""
MASK_DELTA = 0xA282EAD8
_HEAD = struct.Struct("<QI")
_UINT32 = struct.Struct("<I")
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIZES = {_FIXED64: 8, _FIXED32: 4}
_LAYOUTS = {1: (5, "<f"), 2: (6, "<d"), 3: (7, "<i"), 9: (10, "<q")}
"""For each numeric dtype of a tensor (float, double, int32, int64): number of the field with the values, and their
layout in `tensor_content`."""
_PACKED_VARINTS = (7, 10)
"""Fields of a tensor with integers."""


class Damaged(Exception):
    """Raised if a file cannot be read any further; the message says why."""


class Point(NamedTuple):
    """One value of a metric in a file."""

    name: str
    step: float | None
    time: float
    """Unix seconds."""
    value: float


class EventFile:
    """Reads the scalars that were appended to one event file since the last read."""

    source = "tensorboard"

    def __init__(self, offset: int = 0) -> None:
        """`offset` is the position of the first record to read, in bytes."""
        self._offset = offset

    def read(self, file: BinaryIO) -> Generator[list[Point], None, None]:
        """Yields the scalars of each new record. An incomplete last record is left for the next read.

        Raises OSError, and Damaged at a record with a wrong checksum, after which no further record can be found.
        """
        while True:
            file.seek(self._offset)
            piece, begin = file.read(PIECE_BYTES), self._offset
            while (found := _record_at(piece, self._offset - begin)) is not None:
                end, points = found
                self._offset = begin + end
                yield points
            if self._offset == begin:
                return


def masked_crc(data: bytes) -> int:
    """Returns the masked CRC-32C (Castagnoli) of a TFRecord file."""
    table = _table()
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF


def scalars_of(event: bytes) -> list[Point]:
    """Returns the scalars of a serialized `Event` message; empty for an event of another kind.

    Raises ValueError if the data is not such a message.
    """
    time, step = 0.0, 0
    named: list[tuple[str, float | None]] = []
    try:
        for number, integer, data in _fields(event):
            if number == 1:
                (time,) = struct.unpack("<d", data)
            elif number == 2:
                step = integer
            elif number == 5:
                named += [_named_value(value) for one, _, value in _fields(data) if one == 1]
    except (IndexError, struct.error) as error:
        raise ValueError(f"no message: {error}") from error
    if not math.isfinite(time):
        return []
    return [Point(tag, step, time, value) for tag, value in named if tag and value is not None]


@functools.lru_cache(maxsize=None)  # noqa: UP033 - functools.cache is as new as the worker's oldest Python
def _table() -> tuple[int, ...]:
    """Returns the table of CRC-32C, reflected polynomial 0x82F63B78."""
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


def _record_at(piece: bytes, at: int) -> tuple[int, list[Point]] | None:
    """Returns the end of the record at a position, and its scalars; None if the record is incomplete. Raises Damaged.

    The end is beyond the piece if the record is skipped because of its size.
    """
    if not 0 <= at <= len(piece) - _HEAD.size:
        return None
    length, crc = _HEAD.unpack_from(piece, at)
    if masked_crc(piece[at : at + 8]) != crc:
        raise Damaged("a record's length has a wrong checksum")
    begin, end = at + _HEAD.size, at + _HEAD.size + length + 4
    if length > MAX_FILE_BYTES:
        raise Damaged(f"a record has {length:,} bytes")
    if length > MAX_RECORD_BYTES:
        return end, []
    if end > len(piece):
        return None
    data = piece[begin : end - 4]
    try:
        points, is_message = scalars_of(data), True
    except ValueError:
        points, is_message = [], False
    if (points or not is_message or length <= ALWAYS_CHECKED_BYTES) and (
        masked_crc(data) != _UINT32.unpack_from(piece, end - 4)[0]
    ):
        raise Damaged("a record has a wrong checksum")
    return end, points


def _named_value(summary: bytes) -> tuple[str, float | None]:
    """Returns tag and scalar of a serialized `Summary.Value` message; None for a value of another kind."""
    tag, scalar = "", None
    for number, _, data in _fields(summary):
        if number == 1:
            tag = data.decode("utf-8", "replace")
        elif number == 2:
            (scalar,) = struct.unpack("<f", data)
        elif number == 8:
            scalar = _tensor_scalar(data)
    return tag, scalar


def _tensor_scalar(tensor: bytes) -> float | None:
    """Returns the value of a serialized `TensorProto` message with one number; None for any other tensor."""
    dtype, size, content = 0, 1, b""
    values: dict[int, tuple[int, bytes]] = {}
    for number, integer, data in _fields(tensor):
        if number == 1:
            dtype = integer
        elif number == 2:
            size = _num_elements(data)
        elif number == 4:
            content = data
        values[number] = integer, data
    if dtype not in _LAYOUTS or size != 1:
        return None
    number, layout = _LAYOUTS[dtype]
    if content:
        return float(struct.unpack(layout, content)[0])
    if number not in values:
        return None
    integer, data = values[number]
    if number in _PACKED_VARINTS:
        return float(_varint(data, 0)[0] if data else integer)
    return float(struct.unpack(layout, data)[0])


def _num_elements(shape: bytes) -> int:
    """Returns the number of elements of a serialized `TensorShapeProto` message."""
    size = 1
    for number, _, dim in _fields(shape):
        if number == 2:
            size *= next((integer for one, integer, _ in _fields(dim) if one == 1), 0)
    return size


def _fields(message: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yields number, integer and bytes of each field of a serialized message. A field has either an integer or bytes;
    the other value is 0 or empty.

    Raises IndexError and ValueError if the data is not a message.
    """
    at = 0
    while at < len(message):
        key, at = _unsigned(message, at)
        kind = key & 7
        if kind == _VARINT:
            integer, at = _varint(message, at)
            yield key >> 3, integer, b""
            continue
        size = _SIZES.get(kind, 0)
        if kind == _BYTES:
            size, at = _unsigned(message, at)
        elif not size:
            raise ValueError(f"unknown wire type {kind}")
        if at + size > len(message):
            raise ValueError("a field ends after its message")
        yield key >> 3, 0, message[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns the signed 64-bit varint at a position, and the position after it. Raises IndexError, ValueError."""
    value, at = _unsigned(data, at)
    value &= (1 << 64) - 1
    return (value - (1 << 64) if value >> 63 else value), at


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    """Returns the unsigned varint at a position, and the position after it. Raises IndexError, ValueError."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a varint has more than ten bytes")
