"""Local engine: runs on this machine, each with a detached supervisor process."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar

from windlass.compat import override
from windlass.engines import travel
from windlass.engines.checks import CheckReport
from windlass.engines.supervised import SupervisedEngine, supervisor_program
from windlass.errors import EngineError, StoreError, UsageError
from windlass.plan.plan import Plan
from windlass.runs.private import refuse_foreign, service_folder
from windlass.runs.store import RunWriter, locked

if TYPE_CHECKING:
    from windlass.diagnose.observations import Observations
    from windlass.engines.base import OpenPort
    from windlass.engines.local.backend import LocalBackend
    from windlass.engines.local.warm_pool import WarmPool
    from windlass.runs.context import Context
    from windlass.runs.record import Status
    from windlass.spec.job import Job
    from windlass.spec.targets import LocalTarget
    from windlass.worker.tarpipe import Received


class LocalEngine(SupervisedEngine):
    """Engine whose runs are processes of this machine."""

    kind: ClassVar[str] = "local"
    can_follow: ClassVar[bool] = True
    runs_services: ClassVar[bool] = True
    # -I -S: the supervisor needs only the standard library and this package. Without site-packages it starts in half
    # the time.
    _supervisor = supervisor_program("windlass.engines.local.supervisor:make_backend", "-I", "-S")

    @classmethod
    @override
    def make_plan(cls, job: Job, target: LocalTarget, run_id: str, base: Path, context: Context) -> Plan:
        from windlass.engines.local.facts import read_facts
        from windlass.engines.local.plan import plan

        if target.python and not job.python:
            job = job.model_copy(update={"python": target.python})
        facts = read_facts(job, base=base, home=context.home, environ=context.environ)
        return plan(job, target, facts, run_id)

    @classmethod
    @override
    def check(cls, target: LocalTarget, context: Context) -> CheckReport:
        from windlass.engines.local.checks import checks

        return CheckReport(checks(context))

    @override
    def kept_warm(self) -> tuple[int, int]:
        from windlass.engines.local.warm_pool import WarmPool

        return WarmPool(self.store.home).kept()

    @classmethod
    @override
    def switch_warm(cls, home: Path, *, on: bool) -> None:
        try:
            _own_pool(home).switch(on=on)
        except OSError as error:
            raise StoreError(f"{home}/warm cannot be changed ({error.strerror})", "see: windlass doctor") from error

    @classmethod
    @override
    def list_warm(cls, home: Path) -> list[dict[str, Any]]:
        return _own_pool(home).show()

    @classmethod
    @override
    def stop_warm(cls, home: Path, name: str | None = None) -> list[str]:
        stopped = _own_pool(home).stop(name)
        if name is not None and not stopped:
            raise UsageError(f"there is no warm process {name}", "see: windlass warm ls")
        return stopped

    @override
    def exec(
        self,
        run_id: str,
        node: int,
        rank: int | None,
        command: Sequence[str],
        stdin: IO[bytes] | None,
        stdout: IO[bytes],
        stderr: IO[bytes],
    ) -> int:
        from windlass.engines.local import exec_copy

        status = self._status_here(run_id)
        plan, run_dir = self.store.plan(run_id), self.store.run_dir(run_id)
        return exec_copy.execute(run_dir, plan, status, rank, node, command, stdin, stdout, stderr)

    def _status_here(self, run_id: str) -> Status:
        """Returns the status of a run. Raises UsageError if it runs on another machine that shares the records."""
        status = self.store.status(run_id)
        if (host := self.store.host_elsewhere(status)) is not None:
            raise UsageError(f"{run_id} runs on {host}, and this is another machine", f"call this on {host}")
        return status

    @contextlib.contextmanager
    @override
    def ports(self, run_id: str) -> Iterator[OpenPort]:
        from windlass.engines.local.ports_of_nodes import open_port

        self._status_here(run_id)
        networks = self.store.plan(run_id).nodes.networks
        yield lambda node, port: open_port(networks[node].namespace if networks else None, node, port)

    @override
    def fetch(self, run_id: str, node: int, path: str, local: Path, on_progress: Callable[[int], None]) -> Received:
        from windlass.engines.copying import copy
        from windlass.engines.local import exec_copy

        return copy(exec_copy.result(self._folders(run_id), path), local, on_progress, Path(path).name)

    @override
    def put(self, run_id: str, node: int, local: Path, path: str, on_progress: Callable[[int], None]) -> Received:
        from windlass.engines.copying import copy
        from windlass.engines.local import exec_copy

        slash = "/" if path.endswith("/") else ""
        return copy(local, f"{exec_copy.result(self._folders(run_id), path)}{slash}", on_progress, local.resolve().name)

    @override
    def service_files(self, run_id: str) -> Mapping[str, bytes]:
        folder = service_folder(self.store.home, run_id)
        try:
            return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        except OSError as error:
            raise EngineError(f"{run_id} has ended, or runs on another machine ({error})") from error

    def _folders(self, run_id: str) -> tuple[Path, Mapping[str, str]]:
        """Returns the folder of a run, and the environment variables that name its result folders."""
        return self.store.run_dir(run_id), self.store.plan(run_id).nodes.common

    def observe(self, run_id: str) -> Observations:
        """Collects the observations of a run, with facts of this machine. Raises NoSuchRun."""
        from windlass.diagnose.observe import observe
        from windlass.engines.local.diagnose import waits
        from windlass.engines.local.observe import machine_facts

        status = self.status(run_id)
        seen = observe(self.store, status, machine=machine_facts(self.store, status))
        return replace(seen, rules=(waits,))

    def _backend(self, plan: Plan, run_dir: Path) -> LocalBackend:
        # The module is imported late because most commands do not need it.
        from windlass.engines.local.backend import LocalBackend

        return LocalBackend(plan, run_dir)

    def _prepare(self, plan: Plan, writer: RunWriter) -> None:
        make_import_folder(self.store.home)
        if plan.service_files:
            _write_service(service_folder(self.store.home, plan.run_id), plan.service_files)
        refuse_foreign(self.store.home)  # checked again: another user may have created the folder meanwhile


def make_import_folder(home: Path) -> None:
    """Creates the folder on PYTHONPATH for interpreters in which Windlass is not installed. Raises StoreError."""
    package = Path(__file__).parents[2]
    folder = Path(travel.import_folder(str(home), str(package.parent))) / "windlass"
    try:
        if not _is_whole(folder):
            with locked(folder.parent.parent / "lock"):
                if not _is_whole(folder):  # another command may have made it meanwhile
                    _link_parts(folder, package)
    except OSError as error:
        raise StoreError(f"{folder} cannot be made ({error.strerror})", "see: windlass doctor") from error


def _is_whole(folder: Path) -> bool:
    """Whether a folder is no link and has all parts of Windlass."""
    return not folder.is_symlink() and all((folder / part).exists() for part in travel.PARTS)


def _link_parts(folder: Path, package: Path) -> None:
    """Makes a folder again, with links to the parts of `package`. Raises OSError."""
    shutil.rmtree(folder, ignore_errors=True)
    for made in (folder.parent, folder):
        made.mkdir(mode=0o700, exist_ok=True)
    for part in travel.PARTS:
        with contextlib.suppress(FileExistsError):
            (folder / part).symlink_to(package / part)


def _write_service(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes the files of a service, readable by this user only. Raises StoreError."""
    try:
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(mode=0o700)
        for name, data in files.items():
            (folder / name).touch(mode=0o600)
            (folder / name).write_bytes(data)
    except OSError as error:
        raise StoreError(f"{folder} cannot be written ({error.strerror})", "see: windlass doctor") from error


def _own_pool(home: Path) -> WarmPool:
    """Returns the warm processes of a home after checking that no other user can write to it. Raises StoreError."""
    from windlass.engines.local.warm_pool import WarmPool

    refuse_foreign(home)
    return WarmPool(home)
