"""What a run has in the store of its target: its code, what starts each attempt, its model."""

from __future__ import annotations

import contextlib
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import windlass.worker
from windlass.code.unpack import extract_good
from windlass.engines.sagemaker import layout
from windlass.errors import EngineError, LoginFailed
from windlass.plan.steps import ModelStep
from windlass.storage.address import Address
from windlass.stores.errors import Missing, MissingBucket, NoLogin
from windlass.stores.folder import FolderStore
from windlass.stores.store import Store

HINT: Final = "the store is storage: of the target"
LOGIN_HINT: Final = "log in again: aws sso login, or aws configure; see: aws sts get-caller-identity"


def is_there(address: str, name: str, size: int, home: Path) -> bool:
    """Whether the store has a file of this size. Raises EngineError."""
    with _opened(address, home, "read") as (store, prefix):
        return store.has(f"{prefix}{name}", size)


def has_any(address: str, home: Path) -> bool:
    """Whether anything is below an address. Raises EngineError."""
    with _opened(address, home, "read") as (store, prefix), contextlib.suppress(MissingBucket):
        return next(store.listed(prefix), None) is not None
    return False


def put(address: str, files: Mapping[str, bytes], home: Path) -> None:
    """Write files below an address, by the standard library; several runs may do so at once. Raises EngineError."""
    with _opened(address, home, "written") as (store, prefix):
        for name, data in files.items():
            store.write(f"{prefix}{name}", [data], is_new=False)


def get(address: str, name: str, home: Path) -> bytes:
    """A small file below an address. Raises EngineError."""
    with _opened(address, home, "read") as (store, prefix):
        return store.get(f"{prefix}{name}")


def starters(nodes: bytes) -> dict[str, bytes]:
    """The files of the channel that starts an attempt, whose packed node specs are `nodes`."""
    folder = Path(windlass.worker.__file__).parent
    programs = {name: (folder / name).read_bytes() for name in ("boot.py", "sagemaker_start.py")}
    return {**programs, layout.NODES: nodes}


def model_address(model: ModelStep, run_id: str, attempt: int) -> str:
    """Where SageMaker stores the model of an attempt, by the step of the plan."""
    return f"{model.source}/{layout.job_name(run_id, attempt)}/output"


def fetch_model(address: str, into: Path, home: Path) -> list[str]:
    """Unpack the model that is below an address into a folder, if there is one. Members whose names or links lead out
    of the folder are left out, and returned with the reason. Raises EngineError, OSError.
    """
    left_out: list[str] = []
    archive = into.parent / f".{into.name}.tar.gz"
    try:
        with _opened(address, home, "read") as (store, prefix):
            try:
                store.fetch(f"{prefix}{layout.MODEL_ARCHIVE}", str(archive))
            except MissingBucket:
                raise
            except Missing:
                return left_out
            into.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tarfile.open(archive) as tar:
                left_out = extract_good(tar, into)
    except tarfile.TarError as error:
        raise EngineError(f"the model in {address} cannot be read: {error}", HINT) from error
    finally:
        archive.unlink(missing_ok=True)
    return left_out


def remove(address: str, home: Path) -> None:
    """Remove all that is below an address. Raises EngineError."""
    with _opened(address, home, "removed") as (store, prefix), contextlib.suppress(MissingBucket):
        store.remove_below(prefix)


@contextmanager
def _opened(address: str, home: Path, use: str) -> Iterator[tuple[Store, str]]:
    """The store of an address, and what the keys below it begin with; its errors as ours."""
    found = Address.parse(address, home)
    try:
        if found.is_folder:
            yield FolderStore(found.path), ""
        else:
            from windlass.stores.s3.store import S3Store  # a store on this machine needs none of it

            yield S3Store(found.bucket), f"{found.path}/" if found.path else ""
    except NoLogin as error:
        raise LoginFailed(f"{address} cannot be {use}: {error.strerror}", LOGIN_HINT) from error
    except OSError as error:
        raise EngineError(f"{address} cannot be {use}: {error.strerror or error}", HINT) from error
