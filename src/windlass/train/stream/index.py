"""Index of a source: maps each sample to ranges of bytes in objects."""

from __future__ import annotations

import hashlib
import json
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from windlass.train.stream.source import Object
from windlass.train.stream.tables import BadTables, Strings, Tables, write

FORMATS = ("files", "tar", "parquet")


class Member(NamedTuple):
    """Part of a sample: a file, or a member of a tar shard. For Parquet, a row group with its number as `offset`."""

    object: int
    """Number of the object."""
    offset: int
    size: int
    field: str
    """Field name in the sample."""


@dataclass
class Samples:
    """Samples in their order, while an index is built."""

    fields: dict[str, int] = field(default_factory=dict)
    keys: Strings = field(default_factory=Strings)
    first: array[int] = field(default_factory=lambda: array("Q", [0]))
    """Number of the first member of each sample, followed by the number of all members."""
    objects: array[int] = field(default_factory=lambda: array("Q"))
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    sizes: array[int] = field(default_factory=lambda: array("Q"))
    names: array[int] = field(default_factory=lambda: array("Q"))

    def add(self, key: str, members: Sequence[Member]) -> None:
        """Adds a sample."""
        self.keys.append(key)
        for one in members:
            self.objects.append(one.object)
            self.offsets.append(one.offset)
            self.sizes.append(one.size)
            self.names.append(self.fields.setdefault(one.field, len(self.fields)))
        self.first.append(len(self.objects))


class Index:
    """An index file, mapped into memory."""

    def __init__(self, path: Path) -> None:
        """Opens an index file. Raises OSError, BadTables."""
        self.path = path
        tables = Tables(path)
        head, numbers, strings = tables.head, tables.numbers, tables.strings
        if head.get("kind") != "windlass-stream-index":
            raise BadTables(f"{path} is no index")
        self.format: str = head["format"]
        self.digest: str = head["digest"]
        """Digest of the format and of the names, sizes, versions and digests of all objects."""
        self._fields: list[str] = head["fields"]
        self._names, self._versions, self._digests = strings["name"], strings["version"], strings["digest"]
        self._object_sizes = numbers["object_size"]
        self._keys = strings["key"]
        self._first = numbers["first"]
        self._objects, self._offsets = numbers["object"], numbers["offset"]
        self._sizes, self._field_of = numbers["size"], numbers["field"]

    def __len__(self) -> int:
        return len(self._first) - 1

    def object(self, number: int) -> Object:
        """Returns an object of the source by number."""
        return Object(self._names[number], self._object_sizes[number], self._versions[number], self._digests[number])

    def objects(self) -> list[Object]:
        """Returns all objects of the source."""
        return [self.object(number) for number in range(len(self._object_sizes))]

    def key(self, sample: int) -> str:
        """Returns the key of a sample."""
        return self._keys[sample]

    def members(self, sample: int) -> list[Member]:
        """Returns the members of a sample."""
        places = range(self._first[sample], self._first[sample + 1])
        return [
            Member(self._objects[at], self._offsets[at], self._sizes[at], self._fields[self._field_of[at]])
            for at in places
        ]

    def samples_of(self, object: int) -> range:
        """Returns the samples of a shard; samples are stored in the order of their shards."""

        def shard(sample: int) -> int:
            return int(self._objects[self._first[sample]])

        everything = range(len(self))
        return range(bisect_left(everything, object, key=shard), bisect_right(everything, object, key=shard))


def write_index(path: Path, format: str, digest: str, objects: Sequence[Object], samples: Samples) -> Index:
    """Writes an index file and opens it. Raises StreamError."""
    head: dict[str, Any] = {
        "kind": "windlass-stream-index",
        "format": format,
        "digest": digest,
        "fields": list(samples.fields),
    }
    numbers = {
        "object_size": array("Q", [one.size for one in objects]),
        "first": samples.first,
        "object": samples.objects,
        "offset": samples.offsets,
        "size": samples.sizes,
        "field": samples.names,
    }
    strings = {
        "name": Strings(one.name for one in objects),
        "version": Strings(one.version for one in objects),
        "digest": Strings(one.digest for one in objects),
        "key": samples.keys,
    }
    write(path, head, numbers, strings)
    return Index(path)


def digest_of(objects: Sequence[Object], format: str, group: bool, with_versions: bool) -> str:
    """Returns the digest of the inputs of an index. Without versions, copies of a folder on several nodes have equal
    digests.
    """
    whole = hashlib.sha256(json.dumps([format, group]).encode())
    for one in objects:
        version = one.version if with_versions else ""
        whole.update(json.dumps([one.name, one.size, version, one.digest]).encode())
    return whole.hexdigest()
