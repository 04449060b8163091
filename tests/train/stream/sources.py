"""Sources for tests of streams: an in-memory store that counts reads, tar shards, and folders."""

from __future__ import annotations

import io
import json
import random
import tarfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from windlass.train.stream.cache import Cache
from windlass.train.stream.dataset import Stream
from windlass.train.stream.errors import SourceChanged
from windlass.train.stream.source import Object, Source


class Memory(Source):
    """In-memory store."""

    address = "mem://set/"

    def __init__(self, files: Mapping[str, bytes], own: Mapping[str, bytes] | None = None) -> None:
        self.files = dict(files)
        self.versions = dict.fromkeys(files, 1)
        self.own = dict(own or {})
        self.reads: list[tuple[str, int, int]] = []
        self.num_listings = 0
        self.fault: Callable[[str], None] = lambda _name: None
        """Called before each read."""
        self._lock = threading.Lock()

    def objects(self) -> list[Object]:
        self.num_listings += 1
        return [Object(name, len(data), str(self.versions[name])) for name, data in sorted(self.files.items())]

    def read(self, one: Object, start: int, length: int) -> bytes:
        self.fault(one.name)
        with self._lock:
            self.reads.append((one.name, start, length))
        if one.version not in ("", str(self.versions.get(one.name))):
            raise SourceChanged(f"{one.name} was written")
        return self.files[one.name][start : start + length]

    def read_own(self, name: str) -> bytes | None:
        return self.own.get(name)

    def write(self, name: str, data: bytes) -> None:
        self.files[name] = data
        self.versions[name] = self.versions.get(name, 0) + 1


def open_in(folder: Path, source: Source, cache_bytes: int | None = None, **settings: Any) -> Stream[Any]:
    return Stream(source, cache=Cache(folder / "cache", cache_bytes), **settings)


def tar_of(members: Iterable[tuple[str, bytes]], format: int = tarfile.PAX_FORMAT) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=format) as shard:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            shard.addfile(info, io.BytesIO(data))
    return made.getvalue()


def pictures(num: int, num_bytes: int = 1000, first: int = 0) -> list[tuple[str, bytes]]:
    """Returns pairs of files; picture number N has the label N."""
    found = []
    for number in range(first, first + num):
        found.append((f"{number:05}.jpg", random.Random(number).randbytes(num_bytes)))
        found.append((f"{number:05}.cls", str(number).encode()))
    return found


def shards(num: int, num_samples: int, num_bytes: int = 1000) -> dict[str, bytes]:
    return {
        f"shard-{number:03}.tar": tar_of(pictures(num_samples, num_bytes, number * num_samples))
        for number in range(num)
    }


def assert_pictures(found: Iterable[Mapping[str, bytes]], numbers: Iterable[int], num_bytes: int = 1000) -> None:
    """Asserts that samples are the pictures with these numbers, byte for byte."""
    for one, number in zip(found, numbers, strict=True):
        jpg = random.Random(number).randbytes(num_bytes)
        assert one == {"__key__": f"{number:05}", "jpg": jpg, "cls": str(number).encode()}


def assert_each_once(folder: Path, num_samples: int, world_sizes: set[int]) -> None:
    """Asserts, from the files of `tests/storage/scripts/seen.py`, that each epoch has each sample once, and that a
    repeated step has the same samples.
    """
    steps: dict[tuple[int, int], dict[int, list[str]]] = {}
    """Keys by attempt, for each epoch and step."""
    worlds = set()
    for path in folder.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            one = json.loads(line)
            worlds.add(one["world_size"])
            by_attempt = steps.setdefault((one["epoch"], one["step"]), {})
            by_attempt.setdefault(one["attempt"], []).extend(one["keys"])
    assert worlds == world_sizes
    for epoch in range(2):
        last = [keys[max(keys)] for (of, _), keys in sorted(steps.items()) if of == epoch]
        assert Counter(key for keys in last for key in keys) == Counter(f"{n:05}" for n in range(num_samples))
    assert [keys for keys in steps.values() if len(keys) > 1], "each kill came right after a checkpoint"
