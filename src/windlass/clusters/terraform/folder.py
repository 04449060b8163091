"""Maintains the working folder of a cluster: Terraform configuration, variables, backend, logs, and its lock."""

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
"""Names and digests of the files that Windlass wrote; all other files in the folder belong to the user."""
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
    """The working folder of a cluster is damaged or unsuitable."""


class FolderBusy(UsageError):
    """Another command is running on this cluster."""


@dataclass(frozen=True, slots=True)
class LocalBackend:
    """Terraform state in the working folder."""

    def configuration(self) -> dict[str, Any]:
        """Returns the content of `backend.tf.json`."""
        return {"terraform": {"backend": {"local": {"path": STATE}}}}


@dataclass(frozen=True, slots=True)
class S3Backend:
    """Terraform state in an S3 object, with a lock file next to it."""

    bucket: str
    key: str
    region: str
    endpoint: str = ""
    """URL of another S3 service, such as an emulator; empty for AWS."""

    def configuration(self) -> dict[str, Any]:
        """Returns the content of `backend.tf.json`; credentials come from the environment and are in no file."""
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
    """The working folder of one cluster; creating this object touches no files."""

    home: Path
    name: str

    @classmethod
    def of(cls, home: Path, name: str) -> ClusterFolder:
        """Returns the folder of the cluster `name`. Raises UsageError for an invalid name."""
        if not NAME.fullmatch(name):
            hint = "3 to 30 lower-case letters, digits and dashes; the first is a letter"
            raise UsageError(f"{name!r} is not a name of a cluster", hint)
        return cls(home, name)

    @classmethod
    def all_in(cls, home: Path) -> list[ClusterFolder]:
        """Returns the existing folders, sorted by name."""
        with contextlib.suppress(FileNotFoundError):
            names = sorted(path.name for path in (home / "clusters").iterdir() if path.is_dir())
            return [cls(home, name) for name in names if NAME.fullmatch(name)]
        return []

    @property
    def path(self) -> Path:
        """Path of the folder: `HOME/clusters/NAME`."""
        return self.home / "clusters" / self.name

    @property
    def exists(self) -> bool:
        """Whether the folder contains a configuration."""
        return (self.path / MANIFEST).exists()

    @property
    def logs(self) -> Path:
        """Folder with the output of the last Terraform commands."""
        return self.path / "logs"

    @property
    def plans(self) -> Path:
        """Folder with saved plans."""
        return self.path / "plans"

    def backend(self) -> Backend | None:
        """Returns the configured backend; None if none was written. Raises FolderError."""
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
        """Returns the Terraform variables; empty if none were written. Raises FolderError."""
        return _read_json(self.path / VARIABLES) or {}

    def local_state(self) -> dict[str, Any] | None:
        """Returns the Terraform state in this folder; None if there is none. Raises FolderError."""
        try:
            return _read_json(self.path / STATE)
        except FolderError as error:
            hint = f"restore it, or rebuild it from AWS: windlass cluster up {self.name} --recover"
            raise FolderError(error.message, hint) from error

    def write(self, configuration: Traversable, variables: Mapping[str, Any], backend: Backend) -> None:
        """Updates the folder with a configuration (a directory of *.tf files and the *.json that they read), variables
        and backend.

        Files of the user are kept; unchanged files keep their modification time. Must be called inside `locked`. Raises
        FolderError for a change of backend, because Terraform would not see the resources of the other state.
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
        """Discards a backend without state. Raises FolderError for a backend that may have one."""
        initialized = self.path / ".terraform" / STATE
        if isinstance(before, LocalBackend):
            has_state = bool((self.local_state() or {}).get("resources"))
        else:
            has_state = initialized.exists()  # a state in S3 is not read here, so resources are assumed
        if has_state:
            content = json.dumps(backend.configuration())
            raise FolderError(
                f"the state of {self.name} is in {_where(before)}, and {_where(backend)} was asked for",
                f"keep the backend, or move the state: in {self.path}, write {content} into {BACKEND}, then terraform "
                "init -migrate-state",
            )
        initialized.unlink(missing_ok=True)

    def written(self) -> list[str]:
        """Returns the names of the files managed by the last `write`, except the manifest itself."""
        return sorted((_read_json(self.path / MANIFEST) or {}).get("files", {}))

    def _remove_retired(self, wanted: Mapping[str, bytes]) -> None:
        """Deletes files of an earlier Windlass version, unless the user has changed them."""
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
        # Written last, because a folder without a manifest counts as not written.
        if _read(self.path / MANIFEST) != manifest:
            write_private(self.path / MANIFEST, manifest)

    def _readme(self, backend: Backend) -> bytes:
        state = "" if isinstance(backend, S3Backend) else f": {STATE} in it is the only record of what the cluster owns"
        text = README.format(name=self.name, path=self.path, manifest=MANIFEST, variables=VARIABLES, state=state)
        return text.encode()

    @contextlib.contextmanager
    def locked(self, purpose: str) -> Iterator[None]:
        """Locks the folder for one command (`cluster up`), so that two commands never work on one cluster at once.

        Raises FolderBusy with the name of the command that holds the lock.
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
        """Deletes the folder. Raises FolderError if a local state still contains resources."""
        # Terraform keeps the local file of a state that it has moved to S3; that file is ignored.
        is_elsewhere = isinstance(self.backend(), S3Backend)
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
    """Creates a folder that only this user can access: state and plans contain secrets."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_mode & 0o077:
        path.chmod(0o700)


def write_private(path: Path, content: bytes) -> None:
    """Replaces a file atomically, readable by this user only."""
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
