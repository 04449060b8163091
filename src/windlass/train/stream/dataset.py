"""Map-style dataset over a source: reads samples by number, and a batch with many parallel requests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from windlass.compat import override
from windlass.train.stream.building import open_index
from windlass.train.stream.cache import Cache
from windlass.train.stream.errors import SourceChanged, StreamError
from windlass.train.stream.index import FORMATS, Index
from windlass.train.stream.opening import open_source
from windlass.train.stream.reader import Reader, Span
from windlass.train.stream.source import Source

T = TypeVar("T")
if TYPE_CHECKING:
    from torch.utils.data import Dataset
else:
    Dataset = Generic  # a DataLoader needs only the methods of Dataset, and importing torch takes a second
Sample = dict[str, Any]
"""`__key__` and the bytes of each field; for Parquet, the value of each column."""
AT_ONCE = 32
"""Samples read in parallel when iterating without a DataLoader."""


class Stream(Dataset[T]):
    """Samples of a source, for a DataLoader. Safe for threads, forks and pickling; each worker has its own reader.

    A batch is read with parallel requests (`__getitems__`), so it takes about as long as one request.
    """

    @override
    def __init__(
        self,
        source: Source,
        *,
        transform: Callable[[Sample], T] | None = None,
        format: str | None = None,
        group: bool = True,
        columns: Sequence[str] | None = None,
        cache: Cache,
    ) -> None:
        if format is not None and format not in FORMATS:
            raise StreamError(f"format={format!r}: known are {', '.join(FORMATS)}")
        self._source = source
        self._transform = transform
        self._columns = tuple(columns) if columns is not None else None
        self._cached = cache.set(f"{source.address} {format} {group}")
        self._use(open_index(source, self._cached, format, group))

    def _use(self, index: Index) -> None:
        self._index = index
        cached = None if self._source.is_local else self._cached
        self._reader = Reader(self._source, index.object, cached)
        self._rows: Any = None
        if index.format == "parquet":
            from windlass.train.stream.parquet import Rows

            self._rows = Rows(index, self._reader, self._cached, self._columns, self._source.address)
        elif self._columns is not None:
            raise StreamError(f"columns={list(self._columns)}: {self._source.address} is not Parquet")

    @property
    def digest(self) -> str:
        """Digest of the names, sizes and versions of all objects. Streams with equal digests have equal samples in
        equal order.
        """
        return self._index.digest

    def __len__(self) -> int:
        return len(self._index) if self._rows is None else len(self._rows)

    def __getitem__(self, number: int) -> T:
        """Returns one sample. Raises IndexError, StreamError."""
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[T]:
        """Returns the samples of a batch, in its order. Raises IndexError, StreamError."""
        places = [self._place(number) for number in numbers]
        found = self._samples(places) if self._rows is None else self._rows.read(places)
        if self._transform is None:
            return cast("list[T]", found)
        return [self._transform(one) for one in found]

    def __iter__(self) -> Iterator[T]:
        """Yields all samples in order, reading `AT_ONCE` of them in parallel."""
        for first in range(0, len(self), AT_ONCE):
            yield from self.__getitems__(range(first, min(first + AT_ONCE, len(self))))

    def state_dict(self) -> dict[str, Any]:
        """Returns the identity of the samples. As part of a Checkpoint, it prevents a resume with another source."""
        return {"digest": self.digest, "samples": len(self)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Checks that the checkpoint was made with the same samples. Raises SourceChanged."""
        if state["digest"] != self.digest:
            raise SourceChanged(
                f"{self._source.address} has changed since the checkpoint: it had {state['samples']:,} samples, and "
                f"has {len(self):,}; samples would be lost or seen twice. Use the data of that time, or "
                "start without that checkpoint"
            )

    def _place(self, number: int) -> int:
        size = len(self)
        if not -size <= number < size:
            raise IndexError(f"sample {number} of {size}")
        return number % size

    def _samples(self, numbers: Sequence[int]) -> list[Sample]:
        parts = [self._index.members(number) for number in numbers]
        spans = [Span(one.object, one.offset, one.size) for members in parts for one in members]
        data = iter(self._reader.read(spans))
        return [
            {"__key__": self._index.key(number), **{one.field: next(data) for one in members}}
            for number, members in zip(numbers, parts, strict=True)
        ]

    def __getstate__(self) -> dict[str, Any]:
        kept = {"source": self._source, "transform": self._transform, "columns": self._columns, "cached": self._cached}
        return {**kept, "index": self._index.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._source, self._transform = state["source"], state["transform"]
        self._columns, self._cached = state["columns"], state["cached"]
        self._use(Index(state["index"]))


def open_stream(name: str | os.PathLike[str], **settings: Any) -> Stream[Any]:
    """Opens a data set for streaming; `windlass.train.stream` describes the settings. Raises StreamError."""
    cache, cache_bytes = settings.pop("cache"), settings.pop("cache_bytes")
    if cache_bytes is not None and cache_bytes < 0:
        raise StreamError(f"cache_bytes={cache_bytes}: must be at least 0; 0 keeps no samples")
    folder = Path(cache) if cache is not None else cache_folder(os.environ)
    return Stream(open_source(address_of(name, os.environ)), cache=Cache(folder.absolute(), cache_bytes), **settings)


def address_of(name: str | os.PathLike[str], environ: Mapping[str, str]) -> str:
    """Returns the address of a data set of the job by its name; addresses and paths are returned unchanged."""
    text = os.fspath(name)
    variable = f"WINDLASS_DATA_{text.upper().replace('-', '_')}"
    if not isinstance(name, str) or "/" in text or text in (".", ".."):
        return text
    if found := environ.get(variable):
        return found
    raise StreamError(
        f"stream({text!r}): ${variable} is not set: add data: [{{name: {text}, source: …, via: stream}}] to the "
        f"job, or give an address such as s3://bucket/prefix or ./{text}"
    )


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Returns the default cache folder of this user."""
    base = environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base, "windlass", "stream")
