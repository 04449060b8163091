"""What a run has in the store of its target: its code, what starts each attempt, its model."""

from __future__ import annotations

import asyncio
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import windlass.worker
from windlass.engines.sagemaker import layout
from windlass.errors import EngineError, StorageError, WindlassError
from windlass.s3 import objects as s3
from windlass.s3.bucket import Bucket
from windlass.s3.errors import StoreError
from windlass.storage.address import Address
from windlass.storage.opening import open_place
from windlass.storage.place import Entry, Place

HINT: Final = "the store is storage: of the target"
MODEL: Final = "model.tar.gz"


def is_there(address: str, name: str, size: int, home: Path) -> bool:
    """Whether the store has a file of this size. Raises EngineError."""
    found = Address.parse(address, home)
    if found.kind != "s3":
        return any(one.name == name and one.size == size for one in _entries(_place(address, home)))
    with _said(f"{address} cannot be read"):
        listed = s3.listed(Bucket(found.bucket), found.key(name))
        return any(isinstance(one, s3.Object) and (one.key, one.size) == (found.key(name), size) for one in listed)


def put(address: str, files: Mapping[str, bytes], home: Path) -> None:
    """Write small files below an address. Raises EngineError.

    S3 is written by the standard library: it is done before the libraries of `windlass.storage` are imported.
    """
    found = Address.parse(address, home)
    with _said(f"{address} cannot be written"):
        if found.kind != "s3":
            place = _place(address, home)
            for name, data in files.items():
                place.put(name, data)
            return
        bucket = Bucket(found.bucket)
        for name, data in files.items():
            s3.write(bucket, found.key(name), [data])


def get(address: str, name: str, home: Path) -> bytes:
    """A small file below an address. Raises EngineError."""
    place = _place(address, home)
    entry = next((one for one in _entries(place) if one.name == name), None)
    if entry is None:
        raise EngineError(f"{name} is not in {address}", HINT)
    try:
        return b"".join(place.pieces(entry, 0, entry.size))
    except StorageError as error:
        raise EngineError(f"{address} cannot be read: {error.message}", error.hint or HINT) from error


def starters(nodes: bytes) -> dict[str, bytes]:
    """The files of the channel that starts an attempt, whose packed node specs are `nodes`."""
    folder = Path(windlass.worker.__file__).parent
    programs = {name: (folder / name).read_bytes() for name in ("boot.py", "sagemaker_start.py")}
    return {**programs, layout.NODES: nodes}


def fetch_model(address: str, into: Path, home: Path) -> tuple[int, int]:
    """Unpack the model that is below an address into a folder; gives its files and bytes, 0 where there is none.

    Raises EngineError, OSError.
    """
    place = _place(address, home)
    entry = next((one for one in _entries(place) if one.name == MODEL), None)
    if entry is None:
        return 0, 0
    into.mkdir(mode=0o700, parents=True, exist_ok=True)
    archive = into.parent / f".{into.name}.tar.gz"
    try:
        with archive.open("wb") as file:
            for piece in place.pieces(entry, 0, entry.size):
                file.write(piece)
        return _unpack(archive, into)
    except (StorageError, tarfile.TarError) as error:
        words = error.message if isinstance(error, WindlassError) else str(error)
        raise EngineError(f"the model in {address} cannot be read: {words}", HINT) from error
    finally:
        archive.unlink(missing_ok=True)


def remove(address: str, home: Path) -> None:
    """Remove all that is below an address. Raises EngineError."""
    found = Address.parse(address, home)
    if found.is_folder:
        shutil.rmtree(found.path, ignore_errors=True)
        return
    with _said(f"{address} cannot be removed"):
        bucket = Bucket(found.bucket)
        for one in list(s3.listed(bucket, f"{found.path}/")):
            if isinstance(one, s3.Object):
                s3.remove(bucket, one.key)


@contextmanager
def _said(what: str) -> Iterator[None]:
    """Errors of a store as ours."""
    try:
        yield
    except StoreError as error:
        raise EngineError(f"{what}: {error.strerror or error}", HINT) from error
    except StorageError as error:
        raise EngineError(f"{what}: {error.message}", error.hint or HINT) from error


def _unpack(archive: Path, into: Path) -> tuple[int, int]:
    """Members whose names or links lead out of the folder are refused. Raises tarfile.TarError, OSError."""
    with tarfile.open(archive) as tar:
        members: list[Any] = tar.getmembers()
        tar.extractall(into, members, filter="data")
    files = [one for one in members if one.isreg()]
    return len(files), sum(one.size for one in files)


def _place(address: str, home: Path) -> Place:
    try:
        return open_place(Address.parse(address, home), home)
    except WindlassError as error:
        raise EngineError(f"{address} cannot be used: {error.message}", error.hint or HINT) from error


def _entries(place: Place) -> list[Entry]:
    async def read() -> list[Entry]:
        return [one async for batch in place.entries() for one in batch]

    if place.address.is_folder and not Path(place.address.path).is_dir():
        return []
    try:
        return asyncio.run(read())
    except StorageError as error:
        raise EngineError(f"{place.address} cannot be read: {error.message}", error.hint or HINT) from error
