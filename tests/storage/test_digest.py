"""Files are split into parts, and parts and files have digests."""

from __future__ import annotations

import hashlib
from base64 import b64encode

from hypothesis import given
from hypothesis import strategies as st

from windlass.storage.digest import Parts, StreamDigest, combined, from_s3, to_s3
from windlass.stores.part_sizes import COPY_PART_BYTES, MAX_PARTS

SIZES = st.integers(0, 6 * 2**40)


@given(SIZES)
def test_parts_cover_a_file_once(size: int) -> None:
    parts = Parts.of(size)
    assert 1 <= len(parts) <= MAX_PARTS
    first, last = parts.span(0), parts.span(len(parts) - 1)
    assert first[0] == 0
    assert sum(last) == size
    assert all(parts.span(number)[1] == parts.part_bytes for number in {0, len(parts) // 2} if number < len(parts) - 1)


def test_an_empty_file_has_one_part() -> None:
    assert (len(Parts.of(0)), Parts.of(0).span(0)) == (1, (0, 0))
    assert (len(Parts.of(COPY_PART_BYTES)), len(Parts.of(COPY_PART_BYTES + 1))) == (1, 2)


def test_the_digest_is_that_of_s3() -> None:
    one, two = (hashlib.sha256(data).digest() for data in (b"one", b"two"))
    assert combined([one]) == f"sha256:{one.hex()}" == from_s3(to_s3(one))
    both = hashlib.sha256(one + two).digest()
    assert combined([one, two]) == f"sha256-2:{both.hex()}" == from_s3(b64encode(both).decode() + "-2")


@given(st.binary(max_size=40), st.lists(st.integers(1, 15), max_size=8))
def test_a_stream_has_the_digest_of_its_parts_wherever_it_is_cut(data: bytes, cuts: list[int]) -> None:
    parts = Parts(len(data), 10)
    spans = [parts.span(number) for number in range(len(parts))]
    expected = combined([hashlib.sha256(data[start : start + length]).digest() for start, length in spans])
    stream, rest = StreamDigest(parts.part_bytes), data
    for length in [*cuts, len(data) + 1]:
        stream.update(rest[:length])
        rest = rest[length:]
    assert stream.digest() == expected


@given(st.text(max_size=60))
def test_invalid_checksum_gives_no_digest(text: str) -> None:
    found = from_s3(text)
    assert found == "" or len(found.partition(":")[2]) == 64
