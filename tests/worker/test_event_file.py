"""Event files: every scalar once, whatever the pieces in which it is written; no wrong value from a damaged file."""

from __future__ import annotations

import contextlib
import io
import math
import struct
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.runs.event_files import write_event_file
from windlass.runs.metrics import Series
from windlass.worker.event_file import MAX_RECORD_BYTES, Damaged, EventFile, Point, masked_crc, scalars_of

WALL = 1_790_000_000.5


def varint(value: int) -> bytes:
    """Encodes an integer as protobuf does."""
    value %= 1 << 64
    digits = []
    while True:
        value, low = divmod(value, 128)
        digits.append(low + 128 * (value > 0))
        if not value:
            return bytes(digits)


def field(number: int, content: bytes | int) -> bytes:
    if isinstance(content, int):
        return varint(number * 8) + varint(content)
    return varint(number * 8 + 2) + varint(len(content)) + content


def fixed(number: int, layout: str, value: float) -> bytes:
    return varint(number * 8 + {"<d": 1, "<f": 5}[layout]) + struct.pack(layout, value)


def event(step: int, *values: bytes, wall: float = WALL) -> bytes:
    return fixed(1, "<d", wall) + field(2, step) + field(5, b"".join(field(1, value) for value in values))


def scalar(tag: str, value: float) -> bytes:
    return field(1, tag.encode()) + fixed(2, "<f", value)


def tensor(tag: str, *fields: bytes) -> bytes:
    return field(1, tag.encode()) + field(8, b"".join(fields))


def crc32c(data: bytes) -> int:
    """Computes CRC-32C bit by bit, by its definition."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 * (crc & 1))
    return crc ^ 0xFFFFFFFF


def record(data: bytes) -> bytes:
    def masked(part: bytes) -> bytes:
        crc = crc32c(part)
        return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) % (1 << 32))

    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def read(data: bytes) -> list[Point]:
    return [point for points in EventFile().read(io.BytesIO(data)) for point in points]


FILE = b"".join(
    record(one)
    for one in (
        fixed(1, "<d", WALL) + field(3, b"brain.Event:2"),
        event(1, scalar("loss", 0.5)),
        event(2, scalar("loss", 0.25), scalar("lr", 1.0)),
        event(300, scalar("loss", math.inf)),
    )
)
POINTS = [
    Point("loss", 1, WALL, 0.5),
    Point("loss", 2, WALL, 0.25),
    Point("lr", 2, WALL, 1.0),
    Point("loss", 300, WALL, math.inf),
]


def test_checksum_is_that_of_the_standard() -> None:
    # RFC 3720, appendix B.4: 32 bytes of zeros, and 0 to 31
    for data, crc in ((bytes(32), 0x8A9136AA), (bytes(range(32)), 0x46DD794E)):
        assert crc32c(data) == crc
        assert masked_crc(data) == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) % (1 << 32)


def test_scalars_have_their_steps_times_and_tags() -> None:
    assert read(FILE) == POINTS


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ((field(1, 1), field(5, struct.pack("<f", 0.5))), 0.5),
        ((field(1, 2), field(6, struct.pack("<d", 0.1))), 0.1),
        ((field(1, 3), field(7, varint(-7))), -7.0),
        ((field(1, 9), field(10, 1 << 40)), float(1 << 40)),
        ((field(1, 1), field(2, b""), field(4, struct.pack("<f", 0.5))), 0.5),
        ((field(1, 9), field(4, struct.pack("<q", -3))), -3.0),
        ((field(1, 1), field(2, field(2, field(1, 1))), field(5, struct.pack("<f", 2.0))), 2.0),
        ((field(1, 1), field(2, field(2, field(1, 3))), field(5, struct.pack("<3f", 1, 2, 3))), None),
        ((field(1, 7), field(8, b"text")), None),
        ((field(1, 1),), None),
    ],
)
def test_tensors_of_one_number_are_scalars(fields: tuple[bytes, ...], value: float | None) -> None:
    expected = [] if value is None else [Point("x", 4, WALL, value)]
    assert scalars_of(event(4, tensor("x", *fields))) == expected


@given(st.lists(st.integers(0, len(FILE)), max_size=6))
def test_any_growth_of_the_file_gives_the_same_points(sizes: list[int]) -> None:
    reader = EventFile()
    found: list[Point] = []
    for size in [*sorted(sizes), len(FILE)]:
        found += [point for points in reader.read(io.BytesIO(FILE[:size])) for point in points]
    assert found == POINTS


@given(st.integers(0, 8 * len(FILE) - 1))
@settings(max_examples=300)
def test_a_flipped_bit_gives_no_wrong_point(bit: int) -> None:
    damaged = bytearray(FILE)
    damaged[bit // 8] ^= 1 << bit % 8
    found: list[Point] = []
    with pytest.raises(Damaged):
        found.extend(point for points in EventFile().read(io.BytesIO(damaged)) for point in points)
    assert found == POINTS[: len(found)]


@given(st.binary(max_size=300))
def test_any_message_is_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        scalars_of(data)
    for _ in EventFile().read(io.BytesIO(record(data))):
        pass  # a record with a valid checksum is skipped if its data is no event


@pytest.mark.slow
def test_large_records_are_skipped_without_being_read() -> None:
    image = record(event(1, field(1, b"image") + field(4, bytes(MAX_RECORD_BYTES))))
    assert read(image + FILE) == POINTS


def test_records_of_impossible_length_are_not_read() -> None:
    length = struct.pack("<Q", 1 << 30)
    crc = struct.pack("<I", masked_crc(length))
    assert read(FILE + length + crc) == POINTS  # may be a graph that is still being written
    length = struct.pack("<Q", (1 << 64) - 1)
    with pytest.raises(Damaged):
        read(FILE + length + struct.pack("<I", masked_crc(length)))


def test_written_files_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1.windlass"
    series = [
        Series("loss", "report", 0, (1, 1, 2), (1.0, 2.0, 2.0), (10.0, 12.0, 14.0), (0.5, math.nan, 0.25)),
        Series("größe", "csv", 0, (1, 1), (None, None), (11.0, 13.0), (1e300, -2.0)),
    ]
    write_event_file(path, series)
    found = read(path.read_bytes())
    assert [point[:3] for point in found] == [
        ("loss", 1, 10.0), ("größe", 0, 11.0), ("loss", 2, 12.0), ("größe", 1, 13.0), ("loss", 2, 14.0)
    ]  # fmt: skip
    assert [str(point.value) for point in found] == ["0.5", "inf", "nan", "-2.0", "0.25"]
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_failed_writes_leave_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1.windlass"
    write_event_file(path, [])
    before = path.read_bytes()

    def series() -> Iterable[Series]:
        yield Series("loss", "report", 0, (1,), (1.0,), (1.0,), (1.0,))
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        write_event_file(path, series())
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
