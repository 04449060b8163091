"""Reads ranges of objects from the cache of the node or else from the source, with parallel requests.

The ranges of a batch are read exactly, close ranges with one request. The blocks around them are then fetched in the
background as long as the cache has space, so that each byte is transferred about once per node.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from windlass.stores.retry import repeated
from windlass.train.stream.cache import CachedSet
from windlass.train.stream.errors import Busy, StreamError
from windlass.train.stream.pool import Pool
from windlass.train.stream.source import Object, Source

BLOCK_BYTES = 8 << 20
"""Size of a block; equal to the parts over which a manifest computes digests of large files."""
GAP_BYTES = 128 << 10
"""Maximum gap between two ranges that are read in one request; reading the gap costs less than a request."""
NUM_REQUESTS = 16
"""Maximum number of parallel requests of a process."""
NUM_READS = 3
"""Maximum number of reads of an object that does not match its manifest."""
NUM_FILLS = 2
"""Maximum number of parallel requests in the background."""


class Span(NamedTuple):
    """A range of bytes of an object."""

    object: int
    start: int
    length: int


class Reader:
    """Reads spans; safe for threads and forks."""

    def __init__(self, source: Source, objects: Callable[[int], Object], cached: CachedSet | None) -> None:
        """`objects(number)` returns an object; without `cached`, nothing is cached."""
        self._source, self._object, self._cached = source, objects, cached
        self._pid = 0
        self._start_again()

    def _start_again(self) -> None:
        """Creates new thread pools after a fork, because the parent's threads do not exist in the child."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._requests, self._fills = Pool(NUM_REQUESTS), Pool(NUM_FILLS)
            self._asked: set[tuple[int, int]] = set()
            """Blocks that were fetched in the background, or are queued to be fetched."""

    def read(self, spans: Sequence[Span], *, fills: bool = True) -> list[bytes]:
        """Returns the bytes of each span. With `fills`, the blocks around the spans are fetched in the background.

        Raises StreamError, and SourceChanged if an object was overwritten.
        """
        self._start_again()
        if self._cached is None and self._source.is_local:
            return [self._source.read(self._object(one.object), one.start, one.length) for one in spans]
        found: dict[Span, bytes] = {}
        missing: list[Span] = []
        for span in dict.fromkeys(spans):
            data = self._of_cache(span)
            if data is None:
                missing.append(span)
            else:
                found[span] = data
        if missing:
            groups = _near(missing)
            for group, data in zip(groups, self._fetch(list(map(_around, groups))), strict=True):
                first = group[0].start
                for span in group:
                    at = span.start - first
                    found[span] = data if len(data) == span.length else data[at : at + span.length]
            if fills:
                self._fill(groups)
        return [found[span] for span in spans]

    # -- the cache ----------------------------------------------------------------------------------------------------

    def _of_cache(self, span: Span) -> bytes | None:
        if span.length == 0:
            return b""
        if self._cached is None:
            return None
        one, pieces = self._object(span.object), []
        for number in _blocks(span):
            start = max(span.start - number * BLOCK_BYTES, 0)
            end = min(span.start + span.length - number * BLOCK_BYTES, BLOCK_BYTES)
            piece = self._cached.get(block_name(one, number), start, end - start)
            if piece is None:
                return None
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _keep(self, span: Span, data: bytes) -> None:
        """Caches the blocks that are completely contained in `data`."""
        if self._cached is not None:
            one = self._object(span.object)
            for number in _blocks(span):
                first, last = number * BLOCK_BYTES, min((number + 1) * BLOCK_BYTES, one.size)
                if span.start <= first and last <= span.start + span.length:
                    block = data[first - span.start : last - span.start]
                    self._cached.put(block_name(one, number), block)

    # -- the source ---------------------------------------------------------------------------------------------------

    def _fetch(self, spans: Sequence[Span]) -> Iterator[bytes]:
        """Yields the bytes of spans of the source; requests are made in parallel, each for at most one block."""
        parts = [list(_parts(span)) for span in spans]
        pieces = iter(self._requests.run(self._request, [part for each in parts for part in each]))
        for span, each in zip(spans, parts, strict=True):
            if len(each) == 1:
                yield next(pieces)
                continue
            data = b"".join(next(pieces) for _ in each)
            data = self._verified(span, data, lambda each=each: b"".join(self._requests.run(self._request, each)))  # type: ignore[misc]
            self._keep(span, data)
            yield data

    def _request(self, object: int, start: int, length: int, is_all: bool) -> bytes:
        """Requests at most a block. `is_all` means that the request covers its whole span; the span is then cached.
        Runs in a thread.
        """
        one = self._object(object)

        def read() -> bytes:
            return repeated(lambda: self._source.read(one, start, length), busy=Busy)

        data = read()
        if is_all:
            data = self._verified(Span(object, start, length), data, read)
            self._keep(Span(object, start, length), data)
        return data

    def _verified(self, span: Span, data: bytes, again: Callable[[], bytes]) -> bytes:
        """Compares a whole object with its digest, and reads it again if it differs, because a byte may have changed in
        transit.

        Raises StreamError if it still differs after `NUM_READS` reads.
        """
        one = self._object(span.object)
        if not one.digest or span.length != one.size:
            return data
        for _ in range(NUM_READS - 1):
            if digest_of(data, one.digest) == one.digest:
                return data
            data = again()
        if digest_of(data, one.digest) == one.digest:
            return data
        raise StreamError(
            f"{self._source.address}{one.name} does not match its manifest: it was damaged, or replaced by one of "
            "the same size; windlass data verify finds all such files"
        )

    # -- prefetching --------------------------------------------------------------------------------------------------

    def block(self, object: int, number: int) -> bytes:
        """Returns a whole block and caches it. Raises StreamError."""
        self._start_again()
        start = number * BLOCK_BYTES
        span = Span(object, start, min(BLOCK_BYTES, self._object(object).size - start))
        found = self._of_cache(span)
        return next(self._fetch([span])) if found is None else found

    def _fill(self, groups: Sequence[Sequence[Span]]) -> None:
        """Queues the blocks around these spans to be fetched in the background."""
        if self._cached is None or self._cached.is_full:
            return
        for around in map(_around, groups):
            is_whole = around.start == 0 and around.length == self._object(around.object).size
            for number in _blocks(around) if not is_whole else ():
                if (around.object, number) not in self._asked:
                    self._asked.add((around.object, number))
                    self._fills.submit(partial(self._fill_one, around.object, number))

    def _fill_one(self, object: int, number: int) -> None:
        """Fetches and caches a block. Errors are ignored: a batch that needs the block reads it again and reports the
        error.
        """
        assert self._cached is not None
        one = self._object(object)
        name = block_name(one, number)
        if self._cached.is_full or self._cached.has(name):
            return
        start = number * BLOCK_BYTES
        length = min(BLOCK_BYTES, one.size - start)
        data = self._source.read(one, start, length)
        data = self._verified(Span(object, start, length), data, lambda: self._source.read(one, start, length))
        self._cached.put(name, data)


def block_name(one: Object, number: int) -> str:
    """Returns the name of a block in the cache."""
    return f"{block_key(one)}-{number}"


def block_key(one: Object) -> str:
    """Returns the prefix of the names of all blocks of an object. Another version of the object has another prefix."""
    key = hashlib.blake2b(f"{one.name}\0{one.version}\0{one.size}".encode("utf-8", "surrogateescape"), digest_size=16)
    return key.hexdigest()


def digest_of(data: bytes, like: str) -> str:
    """Returns the digest of a whole file in the format of a manifest. The digest covers parts if `like` has several."""
    kind = like.partition(":")[0]
    if kind == "sha256":
        return f"sha256:{hashlib.sha256(data).hexdigest()}"
    part_bytes = BLOCK_BYTES
    while len(data) > 10_000 * part_bytes:
        part_bytes *= 2
    view = memoryview(data)
    parts = [hashlib.sha256(view[at : at + part_bytes]).digest() for at in range(0, len(data), part_bytes)]
    return f"sha256-{len(parts)}:{hashlib.sha256(b''.join(parts)).hexdigest()}"


def _blocks(span: Span) -> range:
    return range(span.start // BLOCK_BYTES, max(0, span.start + span.length - 1) // BLOCK_BYTES + 1)


def _parts(span: Span) -> Iterator[tuple[int, int, int, bool]]:
    """Splits a span into requests that end at block boundaries, unless one request covers the span.

    Yields object, start, length, and whether one request covers the span.
    """
    if span.length <= BLOCK_BYTES:
        yield *span, True
        return
    for number in _blocks(span):
        start = max(span.start, number * BLOCK_BYTES)
        yield span.object, start, min(span.start + span.length, (number + 1) * BLOCK_BYTES) - start, False


def _near(spans: Sequence[Span]) -> list[list[Span]]:
    """Groups spans that one request can read: close ranges of one object, together at most one block long."""
    groups: list[list[Span]] = []
    for span in sorted(spans):
        if groups:
            around = _around(groups[-1])
            end = span.start + span.length
            is_near = span.object == around.object and span.start - (around.start + around.length) <= GAP_BYTES
            if is_near and end - around.start <= BLOCK_BYTES:
                groups[-1].append(span)
                continue
        groups.append([span])
    return groups


def _around(group: Sequence[Span]) -> Span:
    start = group[0].start
    return Span(group[0].object, start, max(one.start + one.length for one in group) - start)
