"""Reads rows of Parquet files. Each row group is decoded once per node and cached on disk as Arrow, from which rows are
read.

A row cannot be read alone, because its columns are compressed together with those of its row group.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from windlass.stores.ranged import RangedFile
from windlass.train.stream.cache import CachedSet
from windlass.train.stream.errors import StreamError
from windlass.train.stream.index import Index, Member
from windlass.train.stream.reader import Reader, Span, block_name
from windlass.train.stream.source import Object

NUM_IN_MEMORY = 4
"""Row groups that a process keeps in memory if the cache has no space."""


class ObjectFile(RangedFile):
    """An object as a file for pyarrow, which reads only the ranges that it needs."""

    def __init__(self, reader: Reader, number: int, size: int) -> None:
        super().__init__(size)
        self._reader, self._number = reader, number

    def read(self, length: int = -1) -> bytes:
        """Reads `length` bytes; fewer only at the end of the file."""
        end = self._end_of(length)
        if end <= self._at:
            return b""
        [data] = self._reader.read([Span(self._number, self._at, end - self._at)], fills=False)
        self._at = end
        return data


def row_groups(reader: Reader, one: Object, number: int, address: str) -> list[tuple[str, Sequence[Member]]]:
    """Returns the row groups of a file: the number of each as `offset`, and its number of rows as `size`."""
    metadata = _opened(reader, one, number, address).metadata
    return [
        (f"{one.name}#{group}", [Member(number, group, metadata.row_group(group).num_rows, "rows")])
        for group in range(metadata.num_row_groups)
    ]


class Rows:
    """Rows of all row groups of an index."""

    def __init__(
        self, index: Index, reader: Reader, cached: CachedSet, columns: tuple[str, ...] | None, address: str
    ) -> None:
        _pyarrow()
        self._index, self._reader, self._cached = index, reader, cached
        self._columns, self._address = columns, address
        self._ends = list(accumulate(index.members(group)[0].size for group in range(len(index))))
        self._tables: OrderedDict[int, Any] = OrderedDict()

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Reads the rows with these numbers. Raises StreamError."""
        found: dict[int, dict[str, Any]] = {}
        for number in sorted(set(numbers)):
            group = bisect_right(self._ends, number)
            row = number - (self._ends[group - 1] if group else 0)
            [values] = self._table(group).slice(row, 1).to_pylist()
            found[number] = {"__key__": f"{self._index.key(group)}/{row}", **values}
        return [found[number] for number in numbers]

    def _table(self, group: int) -> Any:
        if group in self._tables:
            self._tables.move_to_end(group)
            return self._tables[group]
        table = self._of_cache(group)
        self._tables[group] = table
        if len(self._tables) > NUM_IN_MEMORY:
            self._tables.popitem(last=False)
        return table

    def _of_cache(self, group: int) -> Any:
        """Returns a row group, mapped from the cache if it is cached or can be cached."""
        pyarrow = _pyarrow()
        member = self._index.members(group)[0]
        one = self._index.object(member.object)
        name = f"{block_name(one, member.offset)}-{'all' if self._columns is None else _mark(self._columns)}.arrow"
        path = self._cached.path(name)
        if not self._cached.has(name):
            table = self._decoded(member, one)
            sink = pyarrow.BufferOutputStream()
            with pyarrow.ipc.new_file(sink, table.schema) as file:
                file.write_table(table)
            if not self._cached.put(name, sink.getvalue().to_pybytes()):
                return table
        try:
            return pyarrow.ipc.open_file(pyarrow.memory_map(path)).read_all()
        except (OSError, pyarrow.ArrowInvalid):
            return self._decoded(member, one)

    def _decoded(self, member: Member, one: Object) -> Any:
        pyarrow = _pyarrow()
        file = _opened(self._reader, one, member.object, self._address)
        if self._columns is not None and (missing := set(self._columns) - set(file.schema_arrow.names)):
            raise StreamError(
                f"{one.name} has no column {', '.join(sorted(missing))}; it has {file.schema_arrow.names}"
            )
        try:
            columns = None if self._columns is None else list(self._columns)
            return file.read_row_group(member.offset, columns=columns).combine_chunks()
        except pyarrow.ArrowException as error:
            raise StreamError(f"{self._address}{one.name}: row group {member.offset}: {error}") from error


def _opened(reader: Reader, one: Object, number: int, address: str) -> Any:
    pyarrow = _pyarrow()
    import pyarrow.parquet as parquet

    try:
        return parquet.ParquetFile(pyarrow.PythonFile(ObjectFile(reader, number, one.size)), pre_buffer=True)
    except pyarrow.ArrowException as error:
        raise StreamError(f"{address}{one.name} cannot be read as Parquet: {error}") from error


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise StreamError("Parquet needs pyarrow: pip install pyarrow") from error
    return pyarrow


def _mark(columns: tuple[str, ...]) -> str:
    import hashlib

    return hashlib.blake2b("\0".join(columns).encode(), digest_size=8).hexdigest()
