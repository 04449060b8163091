"""Copies, lists and verifies data sets in folders and object stores."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from windlass.errors import StorageError, UsageError
from windlass.runs.context import Context
from windlass.runs.data import unfinished_readers
from windlass.runs.private import refuse_foreign
from windlass.runs.store import Store
from windlass.storage import manifest as manifests
from windlass.storage.address import Address
from windlass.storage.cache import DataCache
from windlass.storage.copy import Copy
from windlass.storage.failure import first_of
from windlass.storage.folder import Folder
from windlass.storage.helpers import number_here
from windlass.storage.journal import NoJournal
from windlass.storage.manifest import BadManifest, File, Manifest
from windlass.storage.memory import return_freed_blocks
from windlass.storage.opening import journal_for, no_copy_to, note_of, open_place, written_before
from windlass.storage.place import Entry, Place
from windlass.storage.progress import Copied, Preview, Progress
from windlass.storage.retry import repeated
from windlass.storage.selection import CopySource, Selection, open_source
from windlass.storage.sets import CachedSet
from windlass.storage.verify import Verified, note_damage
from windlass.storage.verify import verify as verify_place
from windlass.views.data import (
    CachedData,
    DataCacheList,
    DataCopied,
    DataCopyPreview,
    DataFile,
    DataList,
    DataVerified,
    StagedData,
)
from windlass.views.serialise import view_of

if TYPE_CHECKING:
    from windlass.engines.base import Engine

Answer = TypeVar("Answer")
EVERY_FILE: Final = Selection()
DIGEST: Final = re.compile(r"set:.*|[0-9a-f]{6,64}")
"""Matches the digest of a data set, or a prefix of the digest."""


def copy(
    source: str,
    destination: str,
    context: Context,
    progress: Progress | None = None,
    *,
    by_content: bool = False,
    selection: Selection = EVERY_FILE,
    is_signed: bool = True,
) -> DataCopied:
    """Copies new and changed files from one location to another.

    `by_content` also compares the contents of files with equal size and version. `is_signed` signs requests to a source
    in S3. Raises UsageError, StorageError, MissingExtra.
    """
    home = _own_home(context)
    of, to = _ends(source, destination, selection, home, context, is_signed=is_signed)
    with journal_for(of.root, to, home) as journal:
        work = Copy(
            of.place,
            open_place(to, home),
            journal,
            progress,
            noted=note_of(of.address, to, home),
            num_helpers=number_here,
            by_content=by_content,
            keeps_others=True,
        )
        done: Copied = _wait(work.run())
    return DataCopied(str(of.address), str(to), done)


def preview_copy(
    source: str,
    destination: str,
    context: Context,
    progress: Progress | None = None,
    *,
    by_content: bool = False,
    selection: Selection = EVERY_FILE,
    is_signed: bool = True,
) -> DataCopyPreview:
    """Returns the files that `copy` would copy; writes nothing. Raises UsageError, StorageError, MissingExtra."""
    home = context.home
    of, to = _ends(source, destination, selection, home, context, is_signed=is_signed)
    written = written_before(of.root, to, home)
    place = open_place(to, home) if not to.is_folder else Folder(to, may_be_missing=True)
    work = Copy(of.place, place, NoJournal(), progress, by_content=by_content)
    found: Preview = _wait(work.preview(written))
    files = tuple(DataFile(one.name, one.size, "") for one in sorted(found.entries, key=lambda one: one.name))
    num_bytes = sum(one.bytes for one in files)
    return DataCopyPreview(str(of.address), str(to), files, num_bytes, found.num_unchanged, found.refused)


def _ends(
    source: str, destination: str, selection: Selection, home: Path, context: Context, *, is_signed: bool
) -> tuple[CopySource, Address]:
    """Returns source and destination of a copy. Raises UsageError, StorageError, MissingExtra."""
    if destination == "-":
        raise UsageError("- is no destination: data copy does not write to standard output", "name a folder")
    to = Address.parse(destination, context.cwd)
    if to.is_http:
        raise UsageError(f"{to} is read only", "copy to a folder, s3://, gs:// or az://")
    if to.is_folder and os.path.lexists(to.path) and not Path(to.path).is_dir():
        raise UsageError(f"{to} is no folder", f"name the folder of the copy: {Path(to.path).parent}")
    is_there = destination.endswith("/") or (to.is_folder and Path(to.path).is_dir())
    target = "" if is_there else to.path.rpartition("/")[2]
    return open_source(source, context.cwd, home, selection, to, target, is_signed=is_signed), to


def verify(address: str, context: Context, progress: Progress | None = None) -> DataVerified:
    """Reads every byte of a data set and compares it with its manifest. `set:DIGEST`, or its folder, names a cached
    set.

    Damaged files are marked in the manifest, so that the next copy or run fetches them again. Raises UsageError,
    StorageError, MissingExtra.
    """
    progress = progress or Progress()
    cache = DataCache(context.home / "data", lambda: unfinished_readers(context.home))
    which = address if address.startswith("set:") else str(Address.parse(address, context.cwd))
    if (cached := _wait(cache.verify(which, progress))) is not None:
        return DataVerified(str(cached[0].folder), cached[1])
    if which.startswith("set:"):
        raise UsageError(f"no set of the cache, or more than one, is {address}", "see: windlass data ls")
    place = _open(address, context)
    done: Verified = _wait(verify_place(place, progress))
    if done.damaged:
        # The marks are optional: the manifest may be read-only, or in use by a copy.
        with suppress(StorageError), no_copy_to(place.address, context.home):
            _wait(note_damage(place, done.damaged))
    return DataVerified(str(place.address), done)


def list_files(address: str, context: Context) -> DataList:
    """Lists the files of a location, and the digest of the data set if they match its manifest.

    Raises UsageError, StorageError.
    """
    place = _open(address, context)

    async def find() -> DataList:
        entries = await place.listed()
        manifest, problem = None, ""
        if (stored := await repeated(lambda: place.read_own(manifests.NAME))) is not None:
            try:
                manifest = Manifest.from_bytes(stored)
            except BadManifest as error:
                problem = f"its manifest is damaged: {error}"
        entries.sort(key=lambda one: one.name)
        of = {} if manifest is None else manifest.files
        digests = [_digest_of(one, of.get(one.name)) for one in entries]
        files = tuple(DataFile(one.name, one.size, digest) for one, digest in zip(entries, digests, strict=True))
        if manifest is not None:
            problem = _difference(manifest, entries, digests)
        return DataList(str(place.address), "" if manifest is None or problem else manifest.digest, files, problem)

    return _wait(find())


def _digest_of(entry: Entry, known: File | None) -> str:
    """Returns the digest of a file from the manifest; empty if the manifest has another version of the file."""
    is_same = known is not None and (known.size, known.version) == (entry.size, entry.version) and not known.is_damaged
    return known.digest if known is not None and is_same else ""


def _difference(manifest: Manifest, entries: Sequence[Entry], digests: Sequence[str]) -> str:
    """Describes how a listing differs from a manifest; empty if it does not."""
    names = {one.name for one in entries}
    others = len(names - manifest.files.keys())
    counts = {
        "missing": len(manifest.files.keys() - names),
        "not in it": others,
        "written since": digests.count("") - others,
    }
    said = ", ".join(f"{number:,} {what}" for what, number in counts.items() if number)
    return said and f"not the set of its manifest ({manifest.digest}): {said}"


def stage(source: str, context: Context, progress: Progress | None = None) -> StagedData:
    """Fetches a data set into the cache of this machine. Raises UsageError, StorageError, MissingExtra."""
    began, address = time.monotonic(), Address.parse(source, context.cwd)
    _require_folder(address)
    staged, moved = _wait(_cache(context).stage(address, progress=progress))
    seconds = round(time.monotonic() - began, 3)
    return view_of(StagedData, _cached(staged), sources=(str(address),), fetched_bytes=moved, seconds=seconds)


def list_cache(context: Context) -> DataCacheList:
    """Returns the data sets in the cache of this machine."""
    return DataCacheList(tuple(map(_cached, _cache(context).sets())))


def remove(which: str, context: Context) -> CachedData:
    """Removes a data set from the cache of this machine, by source or digest. Raises UsageError, StorageError."""
    return _cached(_cache(context).remove(_named(which, context)))


def list_staged(on: str, claim: str | None, context: Context) -> DataCacheList:
    """Returns the data sets that are staged in a claim of a target. Raises UsageError, EngineError."""
    with _engine_of(on, context) as engine:
        return DataCacheList(tuple(_staged(one) for one in engine.list_data(claim)))


def stage_in_claim(
    source: str,
    on: str,
    claim: str | None,
    context: Context,
    *,
    progress: Progress,
    on_line: Callable[[str], None],
    secrets: Sequence[str] = (),
    service_account: str | None = None,
) -> StagedData:
    """Stages a data set in a claim of a target before any run needs it; `on_line` receives messages about waiting.

    Raises UsageError, EngineError.
    """
    began, address = time.time(), _without_secret(Address.parse(source, context.cwd))
    with _engine_of(on, context) as engine:
        line = engine.stage_data(claim, address, progress, on_line, secrets=secrets, service_account=service_account)
    now = time.time()
    return StagedData(
        line["digest"],
        f"claim:{line['claim']}",
        line["files"],
        line["bytes"],
        (address,),
        now,
        fetched_bytes=line["moved"],
        seconds=round(now - began, 3),
    )


def _without_secret(of: Address) -> str:
    """Returns the text of an address for storage in a cluster object. Raises UsageError if the address contains a
    secret.
    """
    if of.url is not None and of.url.has_secret:
        raise UsageError(
            f"{of} has a query or a login, which objects of the cluster would keep",
            "windlass data copy 'URL' s3://BUCKET/PREFIX, and stage that",
        )
    return str(of)


def remove_staged(which: str, on: str, claim: str | None, context: Context) -> CachedData:
    """Removes a staged data set that no run reads, by source or digest. Raises UsageError, EngineError."""
    with _engine_of(on, context) as engine:
        return _staged(engine.remove_data(claim, _named(which, context)))


@contextmanager
def _engine_of(on: str, context: Context) -> Iterator[Engine]:
    from windlass.actions.targets import find_target
    from windlass.engines import target_class

    target = find_target(on, context)
    with Store(context.home) as store:
        yield target_class(target.kind, f"target {target.name}").connect(store, target, context)


def _named(which: str, context: Context) -> str:
    """Returns the address of a source given as path or URL; a digest is returned unchanged. Raises UsageError."""
    return which if DIGEST.fullmatch(which) else str(Address.parse(which, context.cwd))


def _cache(context: Context) -> DataCache:
    home = _own_home(context)
    return DataCache(home / "data", lambda: unfinished_readers(home))


def _own_home(context: Context) -> Path:
    """Returns the home folder. Raises StoreError if another user could read or replace fetched files in it."""
    refuse_foreign(context.home)
    return context.home


def _staged(one: Mapping[str, Any]) -> CachedData:
    return CachedData(**{**one, "sources": tuple(one["sources"])})


def _cached(one: CachedSet) -> CachedData:
    return CachedData(one.digest, str(one.folder), one.num_files, one.num_bytes, one.sources, one.used_at)


def _open(address: str, context: Context) -> Place:
    """Opens a location for reading. Raises UsageError, StorageError, MissingExtra."""
    of = Address.parse(address, context.cwd)
    _require_folder(of)
    return open_place(of, context.home)


def _require_folder(of: Address) -> None:
    """Raises UsageError for a folder that does not exist."""
    if of.is_folder and not Path(of.path).is_dir():
        raise UsageError(f"{of}: there is no such folder")


def _wait(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Runs a coroutine to its end. From a group of errors, raises only one, a WindlassError if possible."""
    return_freed_blocks()
    try:
        return asyncio.run(work)
    except BaseExceptionGroup as group:
        raise first_of(group) from group
