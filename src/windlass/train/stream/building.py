"""Opens the index of a source: the run's index, a cached index of the unchanged source, or a new one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from windlass.train.stream.cache import CachedSet
from windlass.train.stream.errors import StreamError
from windlass.train.stream.grouping import grouped
from windlass.train.stream.index import Index, Member, Samples, digest_of, write_index
from windlass.train.stream.manifest import listed
from windlass.train.stream.reader import Reader, Span, block_key
from windlass.train.stream.shared import SharedFile, shared_file
from windlass.train.stream.source import Object, Source
from windlass.train.stream.tables import BadTables
from windlass.train.stream.tar import RangeFile, members

NUM_SHARDS = 8
"""Number of shards that are indexed in parallel."""
SUFFIXES = {"tar": (".tar",), "parquet": (".parquet", ".pq")}
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
LATEST = "latest.index"
OLD_SECONDS = 7 * 86400
"""Age in seconds at which an outdated index is removed. Worker processes that use the index have started long
before."""


def open_index(source: Source, cached: CachedSet, format: str | None, group: bool) -> Index:
    """Opens or builds the index of a source. Raises StreamError.

    All ranks and attempts of a run share one index, stored in its checkpoint folder: a resumed epoch has the same
    samples as before, and nothing is listed again.
    """
    # Nodes may have separate copies of a local folder, with other modification times, so its index is not shared.
    shared = None if source.is_local else shared_file(f"{cached.folder.name}.index", os.environ)
    try:
        if shared is not None and (found := _fetched(shared, cached)) is not None:
            return found
        with cached.exclusive():
            if shared is not None and (found := _fetched(shared, cached)) is not None:
                return found
            found = _built(source, cached, format, group)
            if shared is None:
                return found
            shared.publish(found.path)
        if (found := _fetched(shared, cached)) is None:
            raise StreamError(f"{shared} cannot be read: remove it")
        return found
    except OSError as error:
        raise StreamError(f"the index of {source.address}: {error}") from error


def _fetched(shared: SharedFile, cached: CachedSet) -> Index | None:
    """Copies the index of the run to the disk of this node, because mapped pages of a network file system may fail."""
    part = cached.folder / f".run-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        if not shared.fetch(part) or (found := _opened(part)) is None:
            return None
        path = cached.folder / f"{found.digest}.index"
        known = _opened(path)
        if known is not None:
            return known
        part.replace(path)
        return Index(path)
    finally:
        part.unlink(missing_ok=True)


def _opened(path: Path) -> Index | None:
    try:
        return Index(path)
    except (OSError, BadTables):
        return None


# -- building an index ------------------------------------------------------------------------------------------------


def _built(source: Source, cached: CachedSet, format: str | None, group: bool) -> Index:
    """Builds the index of the current source; shards that were indexed before are not read again."""
    objects = listed(source)
    if not objects:
        raise StreamError(f"{source.address} has no files: check the address")
    format = format or format_of(source.address, objects)
    objects = [one for one in objects if one.name.endswith(SUFFIXES.get(format, ""))]
    if not objects:
        raise StreamError(f"{source.address} has no {' or '.join(SUFFIXES[format])} files: leave out format={format!r}")
    digest = digest_of(objects, format, group, with_versions=not source.is_local)
    version = digest_of(objects, format, group, with_versions=True)
    path = cached.folder / f"{version}.index"
    before = _opened(cached.folder / LATEST)
    found = _opened(path)
    if found is None:
        found = write_index(path, format, digest, objects, _samples(source, cached, format, group, objects, before))
    if before is None or before.path.resolve() != path:
        _forget(found, cached)
        link = cached.folder / f".{LATEST}.{os.getpid()}"
        link.unlink(missing_ok=True)
        link.symlink_to(path.name)
        link.replace(cached.folder / LATEST)
        for old in cached.folder.glob("*.index"):
            if old != path and not old.is_symlink() and time.time() - old.stat().st_mtime > OLD_SECONDS:
                old.unlink(missing_ok=True)
    return found


def _forget(found: Index, cached: CachedSet) -> None:
    """Removes cached blocks and decoded row groups of objects that are no longer in the source."""
    if names := cached.names():
        kept = {block_key(one) for one in found.objects()}
        cached.remove([name for name in names if name.partition("-")[0] not in kept])


def format_of(address: str, objects: Sequence[Object]) -> str:
    """Returns the format derived from the file names. Raises StreamError if shards are mixed with other files."""
    if packed := next((one.name for one in objects if one.name.endswith(COMPRESSED)), None):
        raise StreamError(
            f"{address}: {packed} is compressed, so its members cannot be read individually: write shards as .tar with "
            "compressed members, or give format='files'"
        )
    for format, suffixes in SUFFIXES.items():
        shards = sum(one.name.endswith(suffixes) for one in objects)
        if shards == len(objects):
            return format
        if shards:
            raise StreamError(
                f"{address} has {shards} {suffixes[0]} files among {len(objects)}: give format={format!r} to read the "
                "samples in these only, or format='files' if each file is part of a sample"
            )
    return "files"


def _samples(
    source: Source, cached: CachedSet, format: str, group: bool, objects: Sequence[Object], before: Index | None
) -> Samples:
    samples = Samples()
    found: Iterable[tuple[str, Sequence[Member]]]
    if format == "files":
        files = ((one.name, number, 0, one.size) for number, one in enumerate(objects))
        found = grouped(files, source.address, group)
    else:
        found = _of_shards(source, cached, format, group, objects, before)
    for key, parts in found:
        samples.add(key, parts)
    return samples


def _of_shards(
    source: Source, cached: CachedSet, format: str, group: bool, objects: Sequence[Object], before: Index | None
) -> Iterator[tuple[str, Sequence[Member]]]:
    """Yields the samples of all shards, read in parallel. Samples of shards in the previous index `before` are taken
    from it.
    """
    reader = Reader(source, objects.__getitem__, None if source.is_local else cached)
    known = {} if before is None or before.format != format else {one: n for n, one in enumerate(before.objects())}

    def of_shard(number: int) -> list[tuple[str, Sequence[Member]]]:
        if before is not None and (old := known.get(objects[number])) is not None:
            samples = before.samples_of(old)
            return [(before.key(one), [m._replace(object=number) for m in before.members(one)]) for one in samples]
        if format == "parquet":
            from windlass.train.stream.parquet import row_groups

            return row_groups(reader, objects[number], number, source.address)
        return _of_tar(reader, objects[number], number, group, source.address)

    with ThreadPoolExecutor(NUM_SHARDS, "windlass-index") as threads:
        for found in threads.map(of_shard, range(len(objects))):
            yield from found


def _of_tar(reader: Reader, one: Object, number: int, group: bool, address: str) -> list[tuple[str, Sequence[Member]]]:
    file = RangeFile(
        one.size,
        lambda block: reader.block(number, block),
        lambda start, length: reader.read([Span(number, start, length)], fills=False)[0],
    )
    what = f"{address.rstrip('/')}/{one.name}"
    files = ((name, number, offset, size) for name, offset, size in members(file, one.size, what))
    return list(grouped(files, what, group))
