"""Objects of a run in the target's store: its code, the files that start each attempt, its model."""

from __future__ import annotations

import contextlib
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import windlass.worker
from windlass.code.unpack import extract_permitted
from windlass.engines.aws_codes import LOGIN_HINT
from windlass.engines.sagemaker import layout
from windlass.errors import EngineError, LoginFailed
from windlass.plan.steps import ModelStep
from windlass.storage.address import Address
from windlass.stores.errors import Missing, MissingBucket, NoLogin
from windlass.stores.folder import FolderStore
from windlass.stores.ranged import BLOCK_BYTES
from windlass.stores.store import Store

HINT: Final = "the store is storage: of the target"


def has_file(address: str, name: str, size: int, home: Path) -> bool:
    """Whether the store has a file of this size. Raises EngineError."""
    with _opened(address, home, "read") as (store, prefix):
        return store.has(f"{prefix}{name}", size)


def has_any(address: str, home: Path) -> bool:
    """Whether any object exists below an address. Raises EngineError."""
    with _opened(address, home, "read") as (store, prefix), contextlib.suppress(MissingBucket):
        return next(store.listed(prefix), None) is not None
    return False


def names(address: str, home: Path) -> list[str]:
    """Returns the names of all objects below an address, relative to it. Raises EngineError."""
    with _opened(address, home, "read") as (store, prefix), contextlib.suppress(MissingBucket):
        return [one.key.removeprefix(prefix) for one in store.listed(prefix) if not isinstance(one, str)]
    return []


def put(address: str, files: Mapping[str, bytes], home: Path) -> None:
    """Writes files below an address; several runs may do so at once. Uses the standard library only.

    Raises EngineError.
    """
    with _opened(address, home, "written") as (store, prefix):
        for name, data in files.items():
            store.write(f"{prefix}{name}", [data], is_new=False)


def upload(address: str, name: str, file: Path, home: Path) -> None:
    """Writes a file of this machine below an address; an object of the same size is left as it is.

    Raises EngineError.
    """
    with _opened(address, home, "written") as (store, prefix), file.open("rb") as source:
        if not store.has(f"{prefix}{name}", file.stat().st_size):
            store.write(f"{prefix}{name}", iter(lambda: source.read(BLOCK_BYTES), b""), is_new=False)


def get(address: str, name: str, home: Path) -> bytes:
    """Returns the content of a small file below an address. Raises EngineError."""
    with _opened(address, home, "read") as (store, prefix):
        return store.get(f"{prefix}{name}")


def start_files(nodes: bytes) -> dict[str, bytes]:
    """Returns the files of the channel that starts an attempt; `nodes` are its packed node specs."""
    folder = Path(windlass.worker.__file__).parent
    programs = {name: (folder / name).read_bytes() for name in ("boot.py", "sagemaker_start.py")}
    return {**programs, layout.NODES: nodes}


def model_address(model: ModelStep, run_id: str, attempt: int) -> str:
    """Returns the address at which SageMaker stores the model of an attempt."""
    return f"{model.source}/{layout.job_name(run_id, attempt)}/output"


def fetch_model(address: str, into: Path, home: Path) -> list[str]:
    """Unpacks the model below an address, if there is one, into a folder.

    Members whose names or links lead out of the folder are skipped, and returned with the reason. Raises EngineError,
    OSError.
    """
    skipped: list[str] = []
    archive = into.parent / f".{into.name}.tar.gz"
    try:
        with _opened(address, home, "read") as (store, prefix):
            try:
                store.fetch(f"{prefix}{layout.MODEL_ARCHIVE}", str(archive))
            except MissingBucket:
                raise
            except Missing:
                return skipped
            with tarfile.open(archive) as tar:
                skipped = extract_permitted(tar, into)
    except (tarfile.TarError, EOFError, zlib.error) as error:  # a truncated or damaged archive
        raise EngineError(f"the model in {address} cannot be read: {error}", HINT) from error
    finally:
        archive.unlink(missing_ok=True)
    return skipped


def remove(address: str, home: Path) -> None:
    """Removes all objects below an address. Raises EngineError."""
    with _opened(address, home, "removed") as (store, prefix), contextlib.suppress(MissingBucket):
        store.remove_below(prefix)


@contextmanager
def _opened(address: str, home: Path, use: str) -> Iterator[tuple[Store, str]]:
    """Opens the store of an address and yields it with the prefix of its keys; converts errors to EngineError."""
    found = Address.parse(address, home)
    try:
        if found.is_folder:
            yield FolderStore(found.path), ""
        else:
            from windlass.stores.s3.store import S3Store  # imported late: a local store does not need it

            yield S3Store(found.bucket), f"{found.path}/" if found.path else ""
    except NoLogin as error:
        raise LoginFailed(f"{address} cannot be {use}: {error.strerror}", LOGIN_HINT) from error
    except OSError as error:
        raise EngineError(f"{address} cannot be {use}: {error.strerror or error}", HINT) from error
