"""TFRecord files of `tf.train.Example`: as TensorFlow documents the record format and protobuf its wire format.

A record is its length (8 bytes, little-endian), the masked CRC-32C of these bytes, the data, and the masked CRC-32C of
the data. https://www.tensorflow.org/tutorials/load_data/tfrecord
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Mapping
from functools import cache
from typing import Final

POLYNOMIAL: Final = 0x82F63B78
"""Of CRC-32C (Castagnoli), with its bits in reverse order."""
MASK_DELTA: Final = 0xA282EAD8


def record(data: bytes) -> bytes:
    """One record with this data."""
    length = struct.pack("<Q", len(data))
    return b"".join((length, struct.pack("<I", masked(crc32c(length))), data, struct.pack("<I", masked(crc32c(data)))))


def example(features: Mapping[str, bytes | int]) -> bytes:
    """A `tf.train.Example` with one value for each feature: a `bytes_list` or an `int64_list`, in the order given."""
    return _field(1, b"".join(_field(1, _field(1, name.encode()) + _field(2, _feature(value)))
                              for name, value in features.items()))  # fmt: skip


def crc32c(data: bytes) -> int:
    """CRC-32C (RFC 3720, appendix B.4 has values to compare)."""
    table = _pairs()
    crc = 0xFFFFFFFF
    words = array("H", data[: len(data) & ~1])
    if sys.byteorder == "big":
        words.byteswap()
    for word in words:
        crc = table[(crc ^ word) & 0xFFFF] ^ (crc >> 16)
    if len(data) & 1:
        crc = _singles()[(crc ^ data[-1]) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    """As it is stored: a checksum of data that has checksums in it would be weak."""
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF


@cache
def _singles() -> list[int]:
    """What each byte does to the checksum."""
    found = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (POLYNOMIAL if value & 1 else 0)
        found.append(value)
    return found


@cache
def _pairs() -> list[int]:
    """What each two bytes do: half the steps of a loop that takes all the time."""
    one = _singles()
    return [one[one[low] & 0xFF ^ high] ^ one[low] >> 8 for high in range(256) for low in range(256)]


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
