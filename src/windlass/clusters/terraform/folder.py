"""Keeps the working folder of a cluster: Terraform configuration, variables, backend, logs, and the lock on it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final

from windlass.errors import UsageError, WindlassError

NAME: Final = re.compile(r"[a-z][a-z0-9-]{1,28}[a-z0-9]")
VARIABLES: Final = "terraform.tfvars.json"
BACKEND: Final = "backend.tf.json"
MANIFEST: Final = "configuration.json"
"""Names and digests of the files that Windlass wrote; any other file in the folder is the user's own."""
STATE: Final = "terraform.tfstate"
LOCK: Final = "windlass.lock"
README: Final = """\
Terraform working folder of the cluster {name}, made by Windlass.

Windlass runs Terraform here, and so can you:

    cd {path}
    terraform init
    terraform plan
    terraform state list

Files named in {manifest} are rewritten when Windlass changes; put changes of your own into further .tf files (or
*_override.tf), which Windlass leaves as they are. Change cluster.yaml rather than {variables}.
End Terraform with Ctrl-C once and wait; kill -9 loses track of what it has made, and AWS bills it.
Do not delete this folder while the cluster exists{state}.
"""


class FolderError(WindlassError):
    """The working folder of a cluster cannot be used as it is."""


class FolderBusy(UsageError):
    """Another command works on this cluster."""


@dataclass(frozen=True, slots=True)
class LocalBackend:
    """State in the working folder."""

    def configuration(self) -> dict[str, Any]:
        """The content of `backend.tf.json`."""
        return {"terraform": {"backend": {"local": {"path": STATE}}}}


@dataclass(frozen=True, slots=True)
class S3Backend:
    """State in an object of an S3 bucket, with a lock file beside it."""

    bucket: str
    key: str
    region: str
    endpoint: str = ""
    """URL of an S3 other than AWS's, such as an emulator; empty for AWS."""

    def configuration(self) -> dict[str, Any]:
        """The content of `backend.tf.json`; credentials come from the environment and are in no file."""
        settings: dict[str, Any] = {
            "bucket": self.bucket,
            "key": self.key,
            "region": self.region,
            "encrypt": True,
            "use_lockfile": True,
        }
        if self.endpoint:
            settings |= {"endpoints": {"s3": self.endpoint}, "use_path_style": True}
            settings |= dict.fromkeys(_SKIPPED_CHECKS, True)
        return {"terraform": {"backend": {"s3": settings}}}


_SKIPPED_CHECKS: Final = (
    "skip_credentials_validation",
    "skip_metadata_api_check",
    "skip_region_validation",
    "skip_requesting_account_id",
)
Backend = LocalBackend | S3Backend


@dataclass(frozen=True, slots=True)
class ClusterFolder:
    """The working folder of one cluster; making this object touches nothing."""

    home: Path
    name: str

    @classmethod
    def of(cls, home: Path, name: str) -> ClusterFolder:
        """The folder of the cluster `name`. Raises UsageError for a name that no cluster can have."""
        if not NAME.fullmatch(name):
            hint = "3 to 30 lower-case letters, digits and dashes; the first is a letter"
            raise UsageError(f"{name!r} is not a name of a cluster", hint)
        return cls(home, name)

    @classmethod
    def all_in(cls, home: Path) -> list[ClusterFolder]:
        """The folders that exist, by name."""
        with contextlib.suppress(FileNotFoundError):
            names = sorted(path.name for path in (home / "clusters").iterdir() if path.is_dir())
            return [cls(home, name) for name in names if NAME.fullmatch(name)]
        return []

    @property
    def path(self) -> Path:
        """`HOME/clusters/NAME`."""
        return self.home / "clusters" / self.name

    @property
    def exists(self) -> bool:
        """Whether a configuration was written into it."""
        return (self.path / MANIFEST).exists()

    @property
    def logs(self) -> Path:
        """Holds the output of the last Terraform commands."""
        return self.path / "logs"

    @property
    def plans(self) -> Path:
        """Holds saved plans."""
        return self.path / "plans"

    def backend(self) -> Backend | None:
        """The backend that was written; None for a folder without one. Raises FolderError."""
        found = _read_json(self.path / BACKEND)
        if found is None:
            return None
        try:
            ((kind, settings),) = found["terraform"]["backend"].items()
            if kind == "local":
                return LocalBackend()
            endpoint = settings.get("endpoints", {}).get("s3", "")
            return S3Backend(settings["bucket"], settings["key"], settings["region"], endpoint)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FolderError(f"{self.path / BACKEND} is not a backend that Windlass wrote") from error

    def variables(self) -> dict[str, Any]:
        """The variables that were written; none for a folder without them. Raises FolderError."""
        return _read_json(self.path / VARIABLES) or {}

    def local_state(self) -> dict[str, Any] | None:
        """The state of Terraform where it is in this folder; None where there is none. Raises FolderError."""
        try:
            return _read_json(self.path / STATE)
        except FolderError as error:
            hint = f"restore it, or have it made again from AWS: windlass cluster up {self.name} --recover"
            raise FolderError(error.message, hint) from error

    def write(self, configuration: Traversable, variables: Mapping[str, Any], backend: Backend) -> None:
        """Make the folder say what Windlass wants: `configuration` is a directory with *.tf files, and *.json
        that they read.

        Files that are right already keep their time; further files of the user are left, also one that has the name
        of a file that Windlass no longer has. Call it inside `locked`. Raises FolderError for a change of backend:
        Terraform would not see the resources of the other state.
        """
        before = self.backend()
        if before is not None and before != backend:
            self._leave(before, backend)
        _make(self.path)
        _make(self.logs)
        _make(self.plans)
        wanted = {one.name: one.read_bytes() for one in configuration.iterdir() if one.name.endswith((".tf", ".json"))}
        if not any(name.endswith(".tf") for name in wanted):
            raise FolderError(f"no .tf files in {configuration}", "reinstall windlass: pip install --force-reinstall")
        wanted[VARIABLES] = _json(variables)
        wanted[BACKEND] = _json(backend.configuration())
        wanted["README.txt"] = self._readme(backend)
        self._remove_retired(wanted)
        self._write_changed(wanted)

    def _leave(self, before: Backend, backend: Backend) -> None:
        """Forget a backend that has no state. Raises FolderError for one that may have it."""
        initialized = self.path / ".terraform" / STATE
        if isinstance(before, LocalBackend):
            has_state = bool((self.local_state() or {}).get("resources"))
        else:
            has_state = initialized.exists()  # what a bucket holds is not known here
        if has_state:
            content = json.dumps(backend.configuration())
            raise FolderError(
                f"the state of {self.name} is in {_where(before)}, and {_where(backend)} was asked for",
                f"keep the backend, or move the state: in {self.path}, write {content} into {BACKEND}, then terraform "
                "init -migrate-state",
            )
        initialized.unlink(missing_ok=True)

    def written(self) -> list[str]:
        """Names of the files that the last `write` wrote, or found right; the manifest itself apart."""
        return sorted((_read_json(self.path / MANIFEST) or {}).get("files", {}))

    def _remove_retired(self, wanted: Mapping[str, bytes]) -> None:
        """Files of an earlier Windlass go, if the user has not changed them since."""
        known = (_read_json(self.path / MANIFEST) or {}).get("files", {})
        for name in known:
            if name not in wanted and _digest(self.path / name) == known[name]:
                (self.path / name).unlink()

    def _write_changed(self, wanted: Mapping[str, bytes]) -> None:
        for name, content in wanted.items():
            if _read(self.path / name) != content:
                write_private(self.path / name, content)
        digests = {name: _sha256(content) for name, content in sorted(wanted.items())}
        manifest = _json({"files": digests})
        if _read(self.path / MANIFEST) != manifest:  # last: only then the folder counts as written
            write_private(self.path / MANIFEST, manifest)

    def _readme(self, backend: Backend) -> bytes:
        state = "" if isinstance(backend, S3Backend) else f": {STATE} in it is the only record of what the cluster owns"
        text = README.format(name=self.name, path=self.path, manifest=MANIFEST, variables=VARIABLES, state=state)
        return text.encode()

    @contextlib.contextmanager
    def locked(self, purpose: str) -> Iterator[None]:
        """Hold the folder for one command (`cluster up`), so that two never work on one cluster at once.

        Raises FolderBusy, which names the command that holds it.
        """
        _make(self.path)
        descriptor = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._take(descriptor)
            holder = json.dumps({"pid": os.getpid(), "purpose": purpose, "since": time.time()})
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, holder.encode(), 0)
            yield
        finally:
            os.close(descriptor)

    def _take(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise FolderError(f"cannot lock {self.path}: {error.strerror}", "use a local disk") from error
            raise FolderBusy(
                f"cluster {self.name} is in use by {_holder(descriptor)}", "wait for it to end, or stop it with Ctrl-C"
            ) from error

    def remove(self) -> None:
        """Delete the folder. Raises FolderError while a local state still names resources."""
        is_elsewhere = isinstance(self.backend(), S3Backend)  # terraform leaves the file of a state that it has moved
        state = None if is_elsewhere else self.local_state()
        if state and state.get("resources"):
            count = len(state["resources"])
            hint = f"windlass cluster down {self.name}"
            raise FolderError(f"the state in {self.path} still names {count} resources", hint)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.path)


def _holder(descriptor: int) -> str:
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
        since = time.strftime("%H:%M:%S", time.localtime(found["since"]))
        return f"windlass {found['purpose']} (pid {found['pid']}, since {since})"
    except (ValueError, KeyError, TypeError):
        return "another windlass command"


def _where(backend: Backend) -> str:
    return f"s3://{backend.bucket}/{backend.key}" if isinstance(backend, S3Backend) else "the working folder"


def _make(path: Path) -> None:
    """A folder for this user only: state and plans hold secrets."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_mode & 0o077:
        path.chmod(0o700)


def write_private(path: Path, content: bytes) -> None:
    """Replace a file at once, readable by this user only."""
    beside = path.with_name(f".{path.name}.new")
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _read_json(path: Path) -> dict[str, Any] | None:
    content = _read(path)
    if content is None:
        return None
    try:
        found = json.loads(content)
    except ValueError as error:
        raise FolderError(f"{path} is not JSON: {error}", "restore it, or delete it if Windlass wrote it") from error
    if not isinstance(found, dict):
        raise FolderError(f"{path} is not a JSON object")
    return found


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _digest(path: Path) -> str:
    content = _read(path)
    return "" if content is None else _sha256(content)
