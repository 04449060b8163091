"""Reads ranges of objects: from the cache of the node, else from the source, many at once.

What a batch needs is read by its exact ranges, near ones in one request. The blocks that they are in are fetched whole
in the background as long as the cache has room, so that each byte comes over the network about once per node.
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
"""As the parts by which a manifest has the digests of large files."""
GAP_BYTES = 128 << 10
"""Between two ranges that are read in one request: less than a request costs."""
NUM_REQUESTS = 16
"""At once, by one process."""
NUM_READS = 3
"""Of an object that is not as its manifest says."""
NUM_FILLS = 2
"""Of these by the background."""


class Span(NamedTuple):
    """A range of an object."""

    object: int
    start: int
    length: int


class Reader:
    """Reads spans; safe for threads and forks."""

    def __init__(self, source: Source, objects: Callable[[int], Object], cached: CachedSet | None) -> None:
        """`objects(number)` gives an object; nothing is kept without `cached`."""
        self._source, self._object, self._cached = source, objects, cached
        self._pid = 0
        self._start_again()

    def _start_again(self) -> None:
        """Threads of a parent are not there after a fork."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._requests, self._fills = Pool(NUM_REQUESTS), Pool(NUM_FILLS)
            self._asked: set[tuple[int, int]] = set()
            """Blocks that the background has fetched, or will."""

    def read(self, spans: Sequence[Span], *, fills: bool = True) -> list[bytes]:
        """The bytes of each span; with `fills` the blocks around them are fetched too.

        Raises StreamError, and SourceChanged for an object that was written.
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
        """Put the blocks that are whole in `data` into the cache."""
        if self._cached is not None:
            one = self._object(span.object)
            for number in _blocks(span):
                first, last = number * BLOCK_BYTES, min((number + 1) * BLOCK_BYTES, one.size)
                if span.start <= first and last <= span.start + span.length:
                    block = data[first - span.start : last - span.start]
                    self._cached.put(block_name(one, number), block)

    # -- the source ---------------------------------------------------------------------------------------------------

    def _fetch(self, spans: Sequence[Span]) -> Iterator[bytes]:
        """Spans of the source, all their requests at once, each of at most a block."""
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
        """At most a block; `is_all` where it is all of a span, which may then be kept. In a thread."""
        one = self._object(object)

        def read() -> bytes:
            return repeated(lambda: self._source.read(one, start, length), busy=Busy)

        data = read()
        if is_all:
            data = self._verified(Span(object, start, length), data, read)
            self._keep(Span(object, start, length), data)
        return data

    def _verified(self, span: Span, data: bytes, again: Callable[[], bytes]) -> bytes:
        """Compare a whole object with its digest; it is read again where it differs, as a byte may have been changed on
        its way. Raises StreamError.
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
            f"{self._source.address}{one.name} is not as its manifest says: it was damaged, or replaced by one of "
            "the same size; windlass data verify finds all such files"
        )

    # -- ahead --------------------------------------------------------------------------------------------------------

    def block(self, object: int, number: int) -> bytes:
        """A whole block, which is kept. Raises StreamError."""
        self._start_again()
        start = number * BLOCK_BYTES
        span = Span(object, start, min(BLOCK_BYTES, self._object(object).size - start))
        found = self._of_cache(span)
        return next(self._fetch([span])) if found is None else found

    def _fill(self, groups: Sequence[Sequence[Span]]) -> None:
        """Have the blocks of these fetched whole, in the background."""
        if self._cached is None or self._cached.is_full:
            return
        for around in map(_around, groups):
            is_whole = around.start == 0 and around.length == self._object(around.object).size
            for number in _blocks(around) if not is_whole else ():
                if (around.object, number) not in self._asked:
                    self._asked.add((around.object, number))
                    self._fills.submit(partial(self._fill_one, around.object, number))

    def _fill_one(self, object: int, number: int) -> None:
        """An error is lost here: a batch that needs the block reads it again, and reports it."""
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
    """Name of a block in the cache."""
    return f"{block_key(one)}-{number}"


def block_key(one: Object) -> str:
    """What the names of all blocks of an object begin with, up to the first `-`: other versions have another."""
    key = hashlib.blake2b(f"{one.name}\0{one.version}\0{one.size}".encode("utf-8", "surrogateescape"), digest_size=16)
    return key.hexdigest()


def digest_of(data: bytes, like: str) -> str:
    """The digest of a whole file as its manifest writes it: SHA-256, of its parts where `like` has several."""
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
    """Object, start and length of its requests, and whether one is all of it; several are cut where blocks are."""
    if span.length <= BLOCK_BYTES:
        yield *span, True
        return
    for number in _blocks(span):
        start = max(span.start, number * BLOCK_BYTES)
        yield span.object, start, min(span.start + span.length, (number + 1) * BLOCK_BYTES) - start, False


def _near(spans: Sequence[Span]) -> list[list[Span]]:
    """Spans that one request reads: of one object, close to each other, within a block's size together."""
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
