"""The engine protocol: planning and checking of a target kind, and operations on its runs."""

from __future__ import annotations

import contextlib
import copy
import io
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, Final, Protocol

from windlass.compat import override
from windlass.engines.values import ResultsLocation, RunState
from windlass.errors import UsageError, WindlassError
from windlass.runs.context import Context, here
from windlass.runs.events import Event
from windlass.runs.phase import TERMINAL, Phase
from windlass.runs.record import Status
from windlass.runs.store import Store

if TYPE_CHECKING:
    from windlass.diagnose.observations import Observations
    from windlass.engines.checks import CheckReport, ObjectChange
    from windlass.engines.deployments import Deployments
    from windlass.engines.exported import Manifests, WrittenRequest
    from windlass.plan.exposure import Exposure
    from windlass.plan.plan import Plan
    from windlass.runs.ledger import Billed, Cost
    from windlass.runs.metrics import Series
    from windlass.spec.job import Job
    from windlass.storage.progress import Progress
    from windlass.worker.tarpipe import Received

POLL_SECONDS: Final = 0.03
EVENTS_SECONDS: Final = 0.1
"""Seconds between two reads of the events of a followed run."""
CHECKPOINT_DIR: Final = "WINDLASS_CHECKPOINT_DIR"


class Watch(Protocol):
    """A continuously updated list of the runs of a target."""

    answered_at: float
    """Unix seconds of the target's last response."""

    @property
    def trouble(self) -> str | None:
        """Why the target is unavailable now; None if it is available."""

    def has_changed(self) -> bool:
        """Whether any run has changed since the last call."""

    def runs(self) -> list[RunState]:
        """All runs, newest first."""


class ClaimFiles(Protocol):
    """The files of a PersistentVolumeClaim; paths are relative to its root."""

    def fetch(self, path: str, local: Path, on_progress: Callable[[int], None]) -> Received:
        """Copies a path of the claim to this machine; `on_progress` receives the number of bytes so far. Raises
        EngineError, OSError.
        """

    def put(self, local: Path, path: str, on_progress: Callable[[int], None]) -> Received:
        """Copies `local` to a path of the claim; `on_progress` receives the number of bytes so far. Raises EngineError,
        OSError.
        """

    def execute(self, command: Sequence[str], stdin: IO[bytes] | None, stdout: IO[bytes], stderr: IO[bytes]) -> int:
        """Runs a command in the root folder of the claim and returns its exit code. Raises EngineError."""


OpenPort = Callable[[int, int], socket.socket]
"""Opens a connection to a port of a node, given both numbers. Several threads may call it. Raises EngineError."""


class Terminal(io.FileIO):
    """Standard input of a command that shares the terminal of this process."""


# -- the protocol -----------------------------------------------------------------------------------------------------


class Engine:
    """One kind of target. Class methods plan and check; instances operate on the runs in this user's store.

    A method that an engine does not override raises UsageError: "exec is not supported by engine fake".
    """

    kind: ClassVar[str]
    """The `kind` of its targets, which is also the name of the engine in plans and messages."""
    target_model: ClassVar[Any] = None
    """The pydantic model of its targets in targets.yaml, for engines from other packages."""
    is_remote: ClassVar[bool] = False
    """Whether the folders of its runs are outside this machine's file system."""
    has_prices: ClassVar[bool] = True
    """Whether its targets have a price for an hour of a node."""
    has_list_prices: ClassVar[bool] = False
    """Whether its nodes are billed by the list prices of EC2 in the region of the target."""
    can_follow: ClassVar[bool] = False
    """Whether a run may wait for the success of another one (`--after`)."""
    runs_services: ClassVar[bool] = False
    """Whether a run may be a service, such as a notebook: its ranks then find credentials in a private folder."""
    stopped_words: ClassVar[str] = "pods that still ran were deleted"
    """Words for what a stop did to the objects that `still_running` lists."""
    final_phases: ClassVar[frozenset[Phase]] = TERMINAL
    """Phases that end a wait for a run."""

    def __init__(self, store: Store) -> None:
        self.store = store

    # -- targets ------------------------------------------------------------------------------------------------------

    @classmethod
    def connect(cls, store: Store, target: Any = None, context: Context | None = None) -> Engine:
        """Returns the engine for the runs in `store` and, with a `target`, for all other runs of that target."""
        return cls(store)

    def reconnected(self, store: Store) -> Engine:
        """Returns a copy of the engine with another store connection, for use in another thread or a forked process.

        The copy keeps the cached state of the target.
        """
        engine = copy.copy(self)
        engine.store = store
        return engine

    @classmethod
    def make_plan(cls, job: Job, target: Any, run_id: str, base: Path, context: Context) -> Plan:
        """Returns the plan of a run of `job` from the facts of the target, without changing anything.

        Paths in the job are relative to `base`. Raises UsageError, EngineError.
        """
        raise cls.unsupported("plan")

    @classmethod
    def export(cls, plan: Plan, context: Context) -> Manifests:
        """Returns the objects of a plan for other programs to create. Raises UsageError, PlanError."""
        raise cls.unsupported("plan -o manifest")

    @classmethod
    def export_request(cls, plan: Plan, context: Context) -> WrittenRequest:
        """Returns the request that creates the job, for other programs to send. Raises UsageError, PlanError."""
        raise cls.unsupported("plan -o request")

    @classmethod
    def check(cls, target: Any, context: Context) -> CheckReport:
        """Checks the target independently of any job, without starting anything. Raises UsageError, EngineError."""
        raise cls.unsupported("check")

    @classmethod
    def check_network(
        cls, report: CheckReport, target: Any, context: Context, on_line: Callable[[str], None]
    ) -> CheckReport:
        """Adds checks of the network between nodes to `report`; calls `on_line` with a line for each step.

        Deletes all objects that it creates. Raises UsageError, EngineError.
        """
        raise cls.unsupported("check --network")

    @classmethod
    def role(cls, target: Any, context: Context) -> list[dict[str, Any]]:
        """Returns the objects that grant Windlass its permissions on the target. Raises UsageError, EngineError."""
        raise cls.unsupported("check --role")

    @classmethod
    def setup_objects(cls, target: Any, context: Context) -> list[dict[str, Any]]:
        """Returns the objects that `setup` would create, in order of creation, without changing anything.

        Raises UsageError, EngineError.
        """
        raise cls.unsupported("target setup")

    @classmethod
    def setup(cls, target: Any, context: Context, *, remove: bool = False) -> list[ObjectChange]:
        """Creates or updates the objects that supervisors at the target need, or removes them.

        Raises UsageError if an object of the same name was not created by Windlass, and for a removal while unfinished
        runs use the objects; EngineError if the target refuses.
        """
        raise cls.unsupported("target setup")

    def kept_warm(self) -> tuple[int, int]:
        """Returns the number of warm processes and the bytes of memory that they use."""
        return 0, 0

    @classmethod
    def switch_warm(cls, home: Path, *, on: bool) -> None:
        """Allows warm processes, or ends all and keeps runs from starting any. Raises StoreError."""
        raise cls.unsupported("warm on" if on else "warm off")

    @classmethod
    def list_warm(cls, home: Path) -> list[dict[str, Any]]:
        """Lists warm processes; `state` is `importing`, `ready`, `busy` or `refused`."""
        raise cls.unsupported("warm ls")

    @classmethod
    def stop_warm(cls, home: Path, name: str | None = None) -> list[str]:
        """Ends one warm process, or all, and returns their names; runs continue. Raises UsageError."""
        raise cls.unsupported("warm stop")

    @classmethod
    def instance_type(cls, plan: Plan) -> str | None:
        """Returns the instance type that all nodes of a recorded plan have; None if unknown."""
        return None

    @classmethod
    def is_spot(cls, plan: Plan) -> bool:
        """Whether all nodes of a recorded plan are spot instances, so that spot prices apply."""
        return False

    # -- runs: operations of every engine -----------------------------------------------------------------------------

    def submit(self, plan: Plan) -> Status:
        """Writes the record, starts the run, and returns as soon as the run no longer depends on this process.

        Raises PlanError if the plan is blocked, EngineError if the target refuses, StoreError if the record cannot be
        written. After an error no record and no object remains.
        """
        raise self.unsupported("run")

    def status(self, run_id: str) -> Status:
        """Returns the current status. If the supervisor has died, starts another one or ends the run as `lost`.

        Raises NoSuchRun.
        """
        raise self.unsupported("status")

    def stop(self, run_id: str, *, now: bool = False) -> None:
        """Requests a stop: SIGTERM, grace period (skipped by `now`), SIGKILL. No effect on ended runs."""
        raise self.unsupported("stop")

    def resume(self, run_id: str, plan: Plan | None = None, checkpoint: str | None = None) -> Status:
        """Continues an ended run with new attempts in the same record and folders.

        Returns as soon as the run no longer depends on this process. `plan` replaces the recorded plan, such as for
        another number of nodes, and must have the same run id. Ranks restore `checkpoint` (a name or a path, passed as
        `WINDLASS_RESUME_FROM`) instead of the newest one until they have saved another. Resets restarts and time limit.

        Raises NoSuchRun, UsageError for a run that is active or has succeeded, PlanError if the plan is blocked,
        EngineError, StoreError.
        """
        raise self.unsupported("resume")

    def delete(self, run_id: str) -> None:
        """Deletes an ended run with all its files and objects. Raises UsageError while the run is active."""
        raise self.unsupported("rm")

    # -- runs: read from the store unless an engine overrides ---------------------------------------------------------

    def find(self, run: str | None) -> tuple[Engine, str]:
        """Resolves a run id, a prefix or a job name, as `naming.choose`; without `run`, the newest run.

        Returns the engine that operates on the run, and the run id.

        Raises NoSuchRun.
        """
        return self, self.store.find(run)

    def note(self, run_id: str) -> str:
        """Returns the user's note on a run, or "". Raises UsageError for a run without a record here."""
        self._require_record(run_id)
        return self.store.status(run_id, with_progress=False).about.note

    def write_note(self, run_id: str, text: str) -> None:
        """Replaces the user's note on a run; an empty text deletes it. Raises as `note`, StoreError, EngineError."""
        self._require_record(run_id)
        self.store.write_note(run_id, text)

    def _require_record(self, run_id: str) -> None:
        if self.plan_of(run_id) is None:
            raise UsageError(
                f"the record of {run_id}, and its note with it, is on the machine that started it",
                f"there: windlass note {run_id}",
            )

    def statuses(self, recorded: Iterable[Status]) -> list[Status]:
        """Returns the current status of each run, or the recorded one if `status` fails."""
        found = list(recorded)
        for place, status in enumerate(found):
            with contextlib.suppress(WindlassError):  # one failure must not hide the other runs
                found[place] = self.status(status.id)
        return found

    def states(self, statuses: Iterable[Status], now: float, *, is_thorough: bool = False) -> list[RunState]:
        """Returns the states of recorded runs at `now` (Unix seconds); asks the target if a record may be out of date.

        `is_thorough` also asks about runs that were declared lost long ago.
        """
        if not self.store.is_read_only:
            return [RunState(status, now) for status in statuses]
        why = f"{self.store.home} cannot be written, so that runs are shown as recorded"
        return [
            RunState(status, now)
            if status.phase.is_terminal
            else RunState(status, max(status.times.phase_since, status.progress.at or 0.0), why)
            for status in statuses
        ]

    def state(self, run_id: str, now: float) -> RunState:
        """Returns the state of one run at `now` (Unix seconds). Raises NoSuchRun."""
        [state] = self.states([self.status(run_id)], now, is_thorough=True)
        return state

    def staleness(self) -> Callable[[Status], str]:
        """Returns a non-blocking function that maps a status to the reason why it may be out of date, or "".

        The target is asked in a thread.
        """
        return lambda status: ""

    def plan_of(self, run_id: str) -> Plan | None:
        """Returns the recorded plan; None for a run without a record. Raises StoreError if it cannot be read."""
        return self.store.plan(run_id)

    def events(self, run_id: str, *, follow: bool = False, after: int = 0) -> Iterator[Event]:
        """Yields the events of a run after number `after`; with `follow`, also new ones until the run has ended."""
        while True:
            is_over = self.status(run_id).phase.is_terminal  # read before the events: an ended run gets no more
            for event in self.store.events(run_id, after):
                after = event.seq
                yield event
            if is_over or not follow:
                return
            time.sleep(EVENTS_SECONDS)

    @contextlib.contextmanager
    def logs(self, run_id: str, *, follow: bool = False) -> Iterator[tuple[Path, Callable[[], bool] | None]]:
        """Yields the folder of a run's logs and, with `follow`, a predicate: the logs are complete."""
        yield self.store.run_dir(run_id), (lambda: self.status(run_id).phase.is_terminal) if follow else None

    def metrics(self, run_id: str) -> tuple[Series, ...]:
        """Returns the series of a run's metrics; of an active run, those recorded so far. Raises EngineError, OSError.

        An engine whose supervisors run elsewhere first copies new points to the run's folder.
        """
        from windlass.runs.metrics import FILE, read_metrics

        return read_metrics(self.store.run_dir(run_id) / FILE)

    def observe(self, run_id: str) -> Observations:
        """Collects the observations of a run for its diagnosis, without changing anything. Raises NoSuchRun."""
        from windlass.diagnose.observe import observe

        return observe(self.store, self.status(run_id))

    def grace_seconds(self, run_id: str) -> float:
        """Returns the seconds that ranks have to exit after SIGTERM."""
        return self.store.plan(run_id).policy.grace_seconds

    def can_kill(self, run_id: str) -> bool:
        """Whether a stop without grace period ends a run of this engine sooner than a stop with one."""
        return True

    def still_running(self, run_id: str) -> list[str]:
        """Lists the objects of an ended run that still run. Raises EngineError."""
        return []

    @classmethod
    def billed(cls, run_dir: Path, cost: Cost | None) -> Billed | None:
        """Returns the billed time that the target has reported to the folder of a run, priced like `cost`; None without
        any.
        """
        return None

    def only_copy(self, run_id: str) -> str:
        """Describes data at the target that a resume needs and `delete` would remove; empty if there is none."""
        return ""

    def checkpoint_dir(self, run_id: str) -> str:
        """Returns the folder or address of a run's checkpoints: the ranks' `WINDLASS_CHECKPOINT_DIR`, if recorded."""
        plan = self.plan_of(run_id)
        folder = "" if plan is None else plan.nodes.common.get(CHECKPOINT_DIR)
        return folder or str(self.store.run_dir(run_id) / "checkpoints")

    def wait(self, run_id: str, timeout: float | None = None) -> Status:
        """Waits until the run has ended, for at most `timeout` seconds, and returns the last status."""
        give_up = None if timeout is None else time.monotonic() + timeout
        while True:
            status = self.status(run_id)
            if status.phase in self.final_phases or (give_up is not None and time.monotonic() >= give_up):
                return status
            time.sleep(POLL_SECONDS)

    # -- runs: optional operations --------------------------------------------------------------------------------

    def plan(self, job: Job, run_id: str) -> Plan:
        """Returns the plan of a run on the target to which this engine is connected."""
        raise self.unsupported("a plan without a target")

    def list(self, *, is_everywhere: bool = False) -> list[RunState]:
        """Lists the runs of the target from all machines, newest first; with `is_everywhere`, from all namespaces.

        Raises UsageError, EngineError.
        """
        raise UsageError(self.unsupported("ps --on").message, "windlass ps lists the runs of this machine")

    def watch(self, run_id: str = "") -> AbstractContextManager[Watch]:
        """Watches the runs of the target, or the run `run_id`. Raises as `list`."""
        raise self.unsupported("--watch")

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
        """Runs a command in the environment of a rank, or of a node if `rank` is None, and returns its exit code.

        The command gets a terminal if `stdin` is a `Terminal`.

        Raises UsageError, EngineError.
        """
        raise self.unsupported("exec")

    def ports(self, run_id: str) -> AbstractContextManager[OpenPort]:
        """Gives access to the ports of a run's nodes, also to those that listen on loopback alone. Raises UsageError,
        EngineError.

        If a node has no direct connection to this machine, the sockets are `PortSocket`s.
        """
        raise self.unsupported("port-forward")

    def service_files(self, run_id: str) -> Mapping[str, bytes]:
        """Returns the files of an active service by name, such as `tls.crt` and `token`. Raises UsageError,
        EngineError.
        """
        raise self.unsupported("services")

    def expose(self, run_id: str, exposure: Exposure, seconds: float) -> None:
        """Exposes a service by a load balancer for `seconds`. Raises UsageError, EngineError."""
        raise self.unsupported("--expose")

    def conceal(self, run_id: str) -> bool:
        """Removes the load balancer of a service and waits until it is gone; returns whether there was one. Raises
        EngineError.
        """
        return False

    def list_data(self, claim: str | None) -> Sequence[Mapping[str, Any]]:
        """Lists the data sets staged in a claim, in the form of `storage.volume`.

        Default claim: the one in the target's settings. Raises UsageError, EngineError.
        """
        raise self.unsupported("data ls --on")

    def stage_data(
        self,
        claim: str | None,
        source: str,
        progress: Progress,
        on_line: Callable[[str], None],
        *,
        secrets: Sequence[str] = (),
        service_account: str | None = None,
    ) -> Mapping[str, Any]:
        """Stages the data set of `source` in a claim before any run reads it; `on_line` receives a line for each new
        reason for waiting.

        Returns the entry of `storage/staging.py` and the claim. Raises UsageError, EngineError.
        """
        raise self.unsupported("data stage --on")

    def remove_data(self, claim: str | None, which: str) -> Mapping[str, Any]:
        """Deletes a staged data set by source or digest and returns its entry. Raises UsageError, EngineError."""
        raise self.unsupported("data rm --on")

    def deployments(self) -> Deployments:
        """Returns the deployments of models at the target to which this engine is connected. Raises UsageError."""
        raise self.unsupported("deploy")

    def claim_files(self, claim: str) -> AbstractContextManager[ClaimFiles]:
        """Gives access to the files of a claim without a run. Raises UsageError, EngineError."""
        raise self.unsupported("claim:")

    def fetch(self, run_id: str, node: int, path: str, local: Path, on_progress: Callable[[int], None]) -> Received:
        """Copies `path` of a run (absolute, or relative to its results) to `local`; `on_progress` receives the number
        of bytes so far.

        Raises UsageError, EngineError, OSError.
        """
        raise self.unsupported("cp")

    def put(self, run_id: str, node: int, local: Path, path: str, on_progress: Callable[[int], None]) -> Received:
        """Copies `local` to `path` of a run. Raises as `fetch`."""
        raise self.unsupported("cp")

    def results(self, run_id: str) -> ResultsLocation:
        """Returns the location of a run's results, without asking the target. Raises NoSuchRun."""
        return ResultsLocation("folder", self.store.status(run_id).output_dir)

    def list_results(self, run_id: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Returns the output files as `worker/file_list.py` lists them, and the checkpoints as `list_checkpoints`.

        The second value is empty if the checkpoints are in a store. Raises UsageError, EngineError.
        """
        raise self.unsupported("artifacts --files")

    def list_checkpoints(self, run_id: str) -> Mapping[str, Any]:
        """Returns a run's checkpoints in the form of `worker/checkpoint_list.py`. Raises UsageError, EngineError."""
        raise self.unsupported("checkpoints")

    @classmethod
    def unsupported(cls, command: str) -> UsageError:
        """Returns the error for a command that this engine does not implement."""
        return UsageError(f"{command} is not supported by engine {cls.kind}")


class TargetRuns(Engine):
    """Engine for runs that are listed at a target and have no record on this machine.

    `find` returns another engine for runs that have a record.
    """

    is_remote = True

    def __init__(self, store: Store, target: Any, context: Context) -> None:
        super().__init__(store)
        self._target = target
        self._context = context

    @classmethod
    @override
    def connect(cls, store: Store, target: Any = None, context: Context | None = None) -> Engine:
        return cls(store, target, context or here())

    @override
    def plan_of(self, run_id: str) -> Plan | None:
        return None

    @override
    def events(self, run_id: str, *, follow: bool = False, after: int = 0) -> Iterator[Event]:
        raise self.unsupported("events")

    @override
    def metrics(self, run_id: str) -> tuple[Series, ...]:
        raise self.unsupported("metrics")

    @override
    def observe(self, run_id: str) -> Observations:
        raise self.unsupported("why")
