"""TFRecord files of `tf.train.Example`: as TensorFlow documents the record format and protobuf its wire format.

A record is its length (8 bytes, little-endian), the masked CRC-32C of these bytes, the data, and the masked CRC-32C of
the data. https://www.tensorflow.org/tutorials/load_data/tfrecord
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final

POLYNOMIAL: Final = 0x82F63B78
"""Of CRC-32C (Castagnoli), with its bits in reverse order."""
MASK_DELTA: Final = 0xA282EAD8


def records(rows: Sequence[bytes]) -> Iterator[bytes]:
    """A record for each of these data, which have one length."""
    length = struct.pack("<Q", len(rows[0]) if rows else 0)
    head = length + struct.pack("<I", masked(crc32c([length])[0]))
    for row, crc in zip(rows, crc32c(rows), strict=True):
        yield b"".join((head, row, struct.pack("<I", masked(crc))))


def example(features: Mapping[str, bytes | int]) -> bytes:
    """A `tf.train.Example` with one value for each feature: a `bytes_list` or an `int64_list`, in the order given."""
    return _field(
        1,
        b"".join(_field(1, _field(1, name.encode()) + _field(2, _feature(value))) for name, value in features.items()),
    )


def crc32c(rows: Sequence[bytes]) -> list[int]:
    """CRC-32C of each of these data, which have one length (RFC 3720, appendix B.4 has values to compare).

    All rows are taken together, byte by byte: a loop over the bytes of each takes twenty times as long.
    """
    if not rows:
        return []
    count, length, data = len(rows), len(rows[0]), b"".join(rows)
    if len(data) != count * length:
        raise ValueError("the rows differ in length")
    ones = int.from_bytes(b"\xff" * count, "little")
    planes = [ones] * 4
    """The four bytes of each checksum, the lowest first: all first ones, all second ones, …"""
    for at in range(length):
        index = (planes[0] ^ int.from_bytes(data[at::length], "little")).to_bytes(count, "little")
        found = [int.from_bytes(index.translate(table), "little") for table in _tables()]
        planes = [above ^ one for above, one in zip((*planes[1:], 0), found, strict=True)]
    columns = [(plane ^ ones).to_bytes(count, "little") for plane in planes]
    return [int.from_bytes(one, "little") for one in zip(*columns, strict=True)]


def masked(crc: int) -> int:
    """As it is stored: a checksum of data that has checksums in it would be weak."""
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF


@cache
def _tables() -> tuple[bytes, ...]:
    """What each byte does to the checksum: a table for each of its four bytes, the lowest first."""
    found = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (POLYNOMIAL if value & 1 else 0)
        found.append(value)
    return tuple(bytes(value >> shift & 0xFF for value in found) for shift in (0, 8, 16, 24))


def _feature(value: bytes | int) -> bytes:
    if isinstance(value, bytes):
        return _field(1, _field(1, value))  # bytes_list
    return _field(3, _field(1, _varint(value & 0xFFFFFFFFFFFFFFFF)))  # int64_list, packed


def _field(number: int, data: bytes) -> bytes:
    """A field of protobuf with a length."""
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))
