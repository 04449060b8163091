"""What a run has in the store of its target: its code, what starts each attempt, its model."""

from __future__ import annotations

import contextlib
import secrets
import shutil
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
from windlass.storage.files import write_whole
from windlass.stores.errors import NoLogin

HINT: Final = "the store is storage: of the target"
LOGIN_HINT: Final = "log in again: aws sso login, or aws configure; see: aws sts get-caller-identity"


def is_there(address: str, name: str, size: int, home: Path) -> bool:
    """Whether the store has a file of this size. Raises EngineError."""
    found = Address.parse(address, home)
    with _said(f"{address} cannot be read"):
        if found.is_folder:
            path = Path(found.path, name)
            return path.is_file() and path.stat().st_size == size
        from windlass.stores.s3 import objects as s3  # a store on this machine needs none of it
        from windlass.stores.s3.bucket import Bucket

        listed = s3.listed(Bucket(found.bucket), found.key(name))
        return any(isinstance(one, s3.Object) and (one.key, one.size) == (found.key(name), size) for one in listed)


def has_any(address: str, home: Path) -> bool:
    """Whether anything is below an address. Raises EngineError."""
    found = Address.parse(address, home)
    with _said(f"{address} cannot be read"):
        if found.is_folder:
            return Path(found.path).is_dir() and any(Path(found.path).iterdir())
        from windlass.stores.errors import MissingBucket
        from windlass.stores.s3 import objects as s3
        from windlass.stores.s3.bucket import Bucket

        with contextlib.suppress(MissingBucket):  # removed, with all that was in it
            return any(isinstance(one, s3.Object) for one in s3.listed(Bucket(found.bucket), f"{found.path}/"))
    return False


def put(address: str, files: Mapping[str, bytes], home: Path) -> None:
    """Write small files below an address, by the standard library. Raises EngineError."""
    found = Address.parse(address, home)
    with _said(f"{address} cannot be written"):
        if found.is_folder:
            folder = Path(found.path)
            folder.mkdir(parents=True, exist_ok=True)
            for name, data in files.items():
                own = folder / f".{name}.{secrets.token_hex(4)}"  # several runs may send the same code at once
                write_whole(own, data)
                own.replace(folder / name)
            return
        from windlass.stores.s3 import objects as s3
        from windlass.stores.s3.bucket import Bucket

        bucket = Bucket(found.bucket)
        for name, data in files.items():
            s3.write(bucket, found.key(name), [data])


def get(address: str, name: str, home: Path) -> bytes:
    """A small file of S3 below an address. Raises EngineError."""
    from windlass.stores.s3.bucket import Bucket
    from windlass.stores.s3.objects import opened

    found = Address.parse(address, home)
    with _said(f"{address}{name} cannot be read"), opened(Bucket(found.bucket), found.key(name)) as file:
        return file.read()


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
        with _said(f"the model in {address} cannot be read"):
            if _bring(address, archive, home):
                into.mkdir(mode=0o700, parents=True, exist_ok=True)
                with tarfile.open(archive) as tar:
                    left_out = extract_good(tar, into)
    except tarfile.TarError as error:
        raise EngineError(f"the model in {address} cannot be read: {error}", HINT) from error
    finally:
        archive.unlink(missing_ok=True)
    return left_out


def _bring(address: str, archive: Path, home: Path) -> bool:
    """Copy the model that is below an address; returns whether there is one. Raises OSError."""
    found = Address.parse(address, home)
    if found.is_folder:
        model = Path(found.path, layout.MODEL_ARCHIVE)
        if is_there := model.is_file():
            shutil.copyfile(model, archive)
        return is_there
    from windlass.stores.errors import Missing, MissingBucket
    from windlass.stores.s3.fetch import fetch

    try:
        fetch(f"{address}{layout.MODEL_ARCHIVE}", str(archive))
    except MissingBucket:
        raise
    except Missing:
        return False
    return True


def remove(address: str, home: Path) -> None:
    """Remove all that is below an address. Raises EngineError."""
    found = Address.parse(address, home)
    if found.is_folder:
        shutil.rmtree(found.path, ignore_errors=True)
        return
    from windlass.stores.errors import MissingBucket
    from windlass.stores.s3 import objects as s3
    from windlass.stores.s3.bucket import Bucket

    with _said(f"{address} cannot be removed"), contextlib.suppress(MissingBucket):  # removed, with all that was in it
        bucket = Bucket(found.bucket)
        for one in list(s3.listed(bucket, f"{found.path}/")):
            if isinstance(one, s3.Object):
                bucket.send("DELETE", one.key)


@contextmanager
def _said(what: str) -> Iterator[None]:
    """Errors of a store as ours; those of S3 are errors of the system too."""
    try:
        yield
    except NoLogin as error:
        raise LoginFailed(f"{what}: {error.strerror}", LOGIN_HINT) from error
    except OSError as error:
        raise EngineError(f"{what}: {error.strerror or error}", HINT) from error
