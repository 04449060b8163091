"""The engine protocol: what an engine plans, and what it does with runs once it is connected to the records."""

from __future__ import annotations

import contextlib
import copy
import io
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, Final, Protocol

from windlass.errors import UsageError, WindlassError
from windlass.runs.context import Context, here
from windlass.runs.events import Event, RunResumed
from windlass.runs.phase import TERMINAL, Phase
from windlass.runs.record import Status
from windlass.runs.store import RunWriter, Store

if TYPE_CHECKING:
    from windlass.diagnose.observations import Observations
    from windlass.engines.checks import Check, ObjectChange
    from windlass.plan.plan import Note, Plan
    from windlass.runs.ledger import Billed, Cost
    from windlass.spec.job import Job
    from windlass.storage.progress import Progress
    from windlass.worker.tarpipe import Received

RESUMABLE: Final = frozenset({Phase.FAILED, Phase.STOPPED, Phase.LOST})
"""Ends after which there may be something left to do."""
POLL_SECONDS: Final = 0.03
EVENTS_SECONDS: Final = 0.1
"""Between two reads of the events of a run that is followed."""
CHECKPOINT_DIR: Final = "WINDLASS_CHECKPOINT_DIR"


# -- values -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Placement:
    """The pods of a run, as far as their cluster lists them; or the hosts of its training job."""

    namespace: str
    """Empty where the target has none."""
    attempt: int
    """The newest for which pods were made; 0 before the first."""
    pods_ready: int
    pods_total: int
    pods: tuple[Mapping[str, Any], ...] = ()
    """Those of the newest attempt as JSON data, such as `node`, `name`, `machine` and `state`; only where one run is
    shown."""


@dataclass(frozen=True, slots=True)
class RunState:
    """A status, and how current it is."""

    status: Status
    as_of: float
    """Unix seconds: when the status was true."""
    stale: str = ""
    """Why it may be otherwise by now; empty where it is as of now."""
    is_recorded: bool = True
    """Whether the run was started by this user on this machine, so that there are events, a plan and logs of it."""
    placement: Placement | None = None
    """None where it was not read from the target."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was found of a target."""

    checks: Iterable[Check]
    """In order; they may be made only as they are read."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else `-o json` prints: where the target is, which rights are missing, figures of its network."""


@dataclass(frozen=True, slots=True)
class Manifests:
    """The objects of a plan, in the order of their creation."""

    run_id: str
    namespace: str
    objects: tuple[Mapping[str, Any], ...]
    kinds: tuple[str, ...]
    """All kinds among them, as `kubectl delete` takes them: owner objects first."""
    notes: tuple[Note, ...]
    """What Windlass would do for the run, and these objects do not."""
    head: tuple[str, ...] = ()
    """What a reader of the file has to know; empty where that is what all objects of pods have in common."""
    upload: Upload | None = None
    """What a store has to have before the objects are made."""


@dataclass(frozen=True, slots=True)
class Upload:
    """Files that a store has to have before a job is created by other programs."""

    address: str
    """Where the store begins, with a slash at its end."""
    files: Mapping[str, bytes]
    """By their path below it."""


@dataclass(frozen=True, slots=True)
class WrittenRequest:
    """The request that creates a run's job, for another program to send."""

    run_id: str
    body: Mapping[str, Any]
    upload: Upload
    notes: tuple[Note, ...]
    """What Windlass would do for the run, and the job alone does not."""


class Watch(Protocol):
    """The runs of a target, kept up to date."""

    answered_at: float
    """When it last answered, in Unix seconds."""

    @property
    def trouble(self) -> str | None:
        """Why the target is unavailable now."""

    def has_changed(self) -> bool:
        """Whether anything is new since the last call."""

    def runs(self) -> list[RunState]:
        """All runs, newest first."""


@dataclass(frozen=True, slots=True)
class ResultsPlace:
    """Where the outputs of a run are."""

    kind: str
    """`folder` of this machine, `claim`, `pods`, with which they are deleted, or `store`."""
    path: str
    """Of the folder, or in the claim, or in a pod; an address."""
    claim: str = ""
    """Its name; empty elsewhere."""
    copied: str = ""
    """The folder of this machine to which they were copied; empty where they were not."""
    elsewhere: str = ""
    """Why they cannot be copied to this machine, such as that another one has them; empty where that is not known."""
    note: str = ""
    """Why they are not where they should be."""


class ClaimFiles(Protocol):
    """The files of a claim; paths are below it."""

    def fetch(self, path: str, local: Path, told: Callable[[int], None]) -> Received:
        """Copy a path of the claim to this machine. Raises EngineError, OSError."""

    def put(self, local: Path, path: str, told: Callable[[int], None]) -> Received:
        """Copy `local` of this machine to a path of the claim. Raises EngineError, OSError."""

    def execute(self, command: Sequence[str], stdin: IO[bytes] | None, stdout: IO[bytes], stderr: IO[bytes]) -> int:
        """Run a command in the folder of the claim; returns its exit code. Raises EngineError."""


class Terminal(io.FileIO):
    """Standard input of a command that is to run on the terminal of this process."""


# -- the protocol -----------------------------------------------------------------------------------------------------


class Engine:
    """One kind of target. Class methods plan and check; an instance is connected to the records of this user.

    A method that an engine does not override raises UsageError: "exec is not supported by engine fake".
    """

    kind: ClassVar[str]
    """The kind of its targets, and what plans and messages call the engine."""
    target_model: ClassVar[Any] = None
    """The pydantic model of its targets in targets.yaml, for kinds that Windlass itself does not know."""
    is_remote: ClassVar[bool] = False
    """Whether the folders of its runs are out of reach of this machine's file system."""
    has_prices: ClassVar[bool] = True
    """Whether its targets name what a node costs an hour."""
    can_follow: ClassVar[bool] = False
    """Whether runs of this engine may wait for the success of each other (`--after`)."""
    left_words: ClassVar[str] = "pods that still ran were deleted"
    """What a stop did to what `left_running` names."""
    final_phases: ClassVar[frozenset[Phase]] = TERMINAL
    """Phases of runs that a stop need not wait for."""

    def __init__(self, store: Store) -> None:
        self.store = store

    # -- targets ------------------------------------------------------------------------------------------------------

    @classmethod
    def connect(cls, store: Store, target: Any = None, context: Context | None = None) -> Engine:
        """The engine with the records of `store`; with a `target`, also with the runs that only the target knows of."""
        return cls(store)

    def reconnected(self, store: Store) -> Engine:
        """The same engine, and what it knows of its target, with another connection to the records: for another thread
        or a forked process.
        """
        engine = copy.copy(self)
        engine.store = store
        return engine

    @classmethod
    def make_plan(cls, job: Job, target: Any, run_id: str, base: Path, context: Context) -> Plan:
        """The plan of a run of `job`, whose paths are relative to `base`, by the facts of the target. Changes nothing.

        Raises UsageError, EngineError.
        """
        raise cls.unsupported("plan")

    @classmethod
    def export(cls, plan: Plan, context: Context) -> Manifests:
        """The objects of a plan, for other programs to make. Raises UsageError, PlanError."""
        raise cls.unsupported("plan -o manifest")

    @classmethod
    def export_request(cls, plan: Plan, context: Context) -> WrittenRequest:
        """The request that creates the job of a plan, for other programs to send. Raises UsageError, PlanError."""
        raise cls.unsupported("plan -o request")

    @classmethod
    def check(cls, target: Any, context: Context) -> Report:
        """Checks of the target itself, whatever the job. Starts nothing. Raises UsageError, EngineError."""
        raise cls.unsupported("check")

    @classmethod
    def check_network(cls, report: Report, target: Any, context: Context, told: Callable[[str], None]) -> Report:
        """The report with checks of the network between nodes; `told` is called with a line for each step. Objects that
        it creates are removed again. Raises UsageError, EngineError.
        """
        raise cls.unsupported("check --network")

    @classmethod
    def role(cls, target: Any, context: Context) -> list[dict[str, Any]]:
        """The objects that grant the rights which Windlass needs there. Raises UsageError, EngineError."""
        raise cls.unsupported("check --role")

    @classmethod
    def setup_objects(cls, target: Any, context: Context) -> list[dict[str, Any]]:
        """The objects that `setup` creates, in this order, for others to create. Changes nothing.

        Raises UsageError, EngineError.
        """
        raise cls.unsupported("target setup")

    @classmethod
    def setup(cls, target: Any, context: Context, *, remove: bool = False) -> list[ObjectChange]:
        """Create what supervisors at the target need once, or change it to what this version needs; or remove it.

        Raises UsageError for an object of the same name that is not ours, and for a removal while unfinished runs use
        it; EngineError where the target refuses.
        """
        raise cls.unsupported("target setup")

    def kept_warm(self) -> tuple[int, int]:
        """How many processes are kept to start later runs faster, and the bytes of memory that they hold."""
        return 0, 0

    @classmethod
    def switch_warm(cls, home: Path, *, on: bool) -> None:
        """Let runs use such processes, or end all and let no run start one. Raises StoreError."""
        raise cls.unsupported("warm on" if on else "warm off")

    @classmethod
    def list_warm(cls, home: Path) -> list[dict[str, Any]]:
        """The processes kept to start ranks faster; `state` is `importing`, `ready`, `busy` or `refused`."""
        raise cls.unsupported("warm ls")

    @classmethod
    def stop_warm(cls, home: Path, name: str | None = None) -> list[str]:
        """End one such process, or all; runs go on. Returns the names of those ended. Raises UsageError."""
        raise cls.unsupported("warm stop")

    @classmethod
    def instance_type(cls, plan: Mapping[str, Any]) -> str | None:
        """The instance type that all nodes of a recorded plan have; None where it is not known."""
        return None

    @classmethod
    def is_spot(cls, plan: Mapping[str, Any]) -> bool:
        """Whether list prices of a recorded plan are those of spot instances: its nodes can be no others."""
        return False

    # -- runs: what every engine has ----------------------------------------------------------------------------------

    def submit(self, plan: Plan) -> Status:
        """Write the record, then start the run; returns as soon as the run no longer needs the caller.

        Raises PlanError if the plan is blocked, EngineError if the target refuses, StoreError if the record cannot be
        written. On any error nothing is left behind.
        """
        raise self.unsupported("run")

    def status(self, run_id: str) -> Status:
        """The status as of now: where the supervisor died, another is started or the run is ended as `lost`.

        Raises NoSuchRun.
        """
        raise self.unsupported("status")

    def stop(self, run_id: str, *, now: bool = False) -> None:
        """Ask the run to end: SIGTERM, its grace period, SIGKILL; `now` leaves out the grace. A no-op once ended."""
        raise self.unsupported("stop")

    def resume(self, run_id: str, plan: Plan | None = None, checkpoint: str | None = None) -> Status:
        """Give an ended run new attempts, with the same record and folders; returns once it no longer needs the caller.

        `plan` replaces the run's own, such as one for another number of nodes; it has the same run id. `checkpoint`, a
        name or a path, is restored by the ranks instead of the newest one, as `WINDLASS_RESUME_FROM`, until they
        have saved one of their own. Restarts and the time limit are reset.

        Raises NoSuchRun, UsageError for a run that is active or has succeeded, PlanError if the plan is blocked,
        EngineError, StoreError.
        """
        raise self.unsupported("resume")

    def delete(self, run_id: str) -> None:
        """Remove an ended run and everything it left. Raises UsageError while it runs."""
        raise self.unsupported("rm")

    # -- runs: by the record, unless the engine knows better ----------------------------------------------------------

    def find(self, run: str | None) -> tuple[Engine, str]:
        """The engine and the id of the run that `run` stands for, as `naming.choose`; the newest without one.

        Raises NoSuchRun.
        """
        return self, self.store.find(run)

    def note(self, run_id: str) -> str:
        """The note on a run, as it is now; empty for none. Raises UsageError for a run without a record here."""
        self._require_record(run_id)
        return self.store.status(run_id, with_progress=False).note

    def write_note(self, run_id: str, text: str) -> None:
        """Replace the note on a run; an empty text removes it. Raises as `note`, StoreError, EngineError."""
        self._require_record(run_id)
        self.store.write_note(run_id, text)

    def _require_record(self, run_id: str) -> None:
        if not self.plan_of(run_id):
            raise UsageError(
                f"the record of {run_id}, and its note with it, is on the machine that started it",
                f"there: windlass note {run_id}",
            )

    def statuses(self, recorded: Iterable[Status]) -> list[Status]:
        """These runs as `status` has them; one that cannot be looked at is as recorded."""
        found = list(recorded)
        for place, status in enumerate(found):
            with contextlib.suppress(WindlassError):  # it must not hide the others
                found[place] = self.status(status.id)
        return found

    def states(self, statuses: Iterable[Status], now: float, *, is_thorough: bool = False) -> list[RunState]:
        """Recorded runs as they are `now` (Unix seconds), with what the target reports where a record may be old.

        `is_thorough` asks also for runs that were declared lost long ago.
        """
        if not self.store.is_read_only:
            return [RunState(status, now) for status in statuses]
        why = f"{self.store.home} cannot be written, so that runs are shown as recorded"
        return [
            RunState(status, now)
            if status.phase.is_terminal
            else RunState(status, max(status.phase_since, status.progress.get("at", 0.0)), why)
            for status in statuses
        ]

    def state(self, run_id: str, now: float) -> RunState:
        """One run as it is `now`. Raises NoSuchRun."""
        [state] = self.states([self.status(run_id)], now, is_thorough=True)
        return state

    def staleness(self) -> Callable[[Status], str]:
        """A function that returns why the newest status may be old, or "", at once; it asks the target in a thread."""
        return lambda status: ""

    def plan_of(self, run_id: str) -> dict[str, Any]:
        """The recorded plan as JSON; empty for a run without a record."""
        return dict(self.store.plan(run_id))

    def events(self, run_id: str, *, follow: bool = False, after: int = 0) -> Iterator[Event]:
        """The events of a run after number `after`; with `follow` also those to come, until the run has ended."""
        while True:
            is_over = self.status(run_id).phase.is_terminal  # read first: an ended run has all its events
            for event in self.store.events(run_id, after):
                after = event.seq
                yield event
            if is_over or not follow:
                return
            time.sleep(EVENTS_SECONDS)

    @contextlib.contextmanager
    def logs(self, run_id: str, *, follow: bool = False) -> Iterator[tuple[Path, Callable[[], bool] | None]]:
        """The folder of a run's logs, and with `follow` a function that returns whether all lines have arrived."""
        yield self.store.run_dir(run_id), (lambda: self.status(run_id).phase.is_terminal) if follow else None

    def observe(self, run_id: str) -> Observations:
        """Everything that can be seen of a run, for a diagnosis. Changes nothing. Raises NoSuchRun."""
        from windlass.diagnose.observe import observe

        return observe(self.store, self.status(run_id))

    def grace_seconds(self, run_id: str) -> float:
        """How long the ranks have to exit once they are asked to."""
        return float(self.plan_of(run_id)["policy"].get("grace_seconds", 0))

    def can_kill(self, run_id: str) -> bool:
        """Whether a stop without the grace period ends a run of this engine sooner than one with it."""
        return True

    def left_running(self, run_id: str) -> list[str]:
        """What still runs of a run that has ended by its record. Raises EngineError."""
        return []

    def billed(self, run_id: str, cost: Cost | None) -> Billed | None:
        """What the target itself reports to bill for a run, priced as `cost` is; None where it reports nothing."""
        return None

    def only_copy(self, run_id: str) -> str:
        """What a resume needs and `delete` would remove at the target; empty where there is nothing."""
        return ""

    def checkpoint_dir(self, run_id: str) -> str:
        """The folder of a run's checkpoints, or its address: as its ranks know it, else in the run's own folder."""
        for step in self.plan_of(run_id).get("steps", ()):
            request = step.get("request", {})
            for rank in (request, *request.get("ranks", ())):
                if folder := rank.get("env", {}).get(CHECKPOINT_DIR):
                    return str(folder)
        return str(self.store.run_dir(run_id) / "checkpoints")

    def wait(self, run_id: str, timeout: float | None = None) -> Status:
        """Block until the run has ended, at most `timeout` seconds; returns the last status either way."""
        give_up = None if timeout is None else time.monotonic() + timeout
        while True:
            status = self.status(run_id)
            if status.phase in self.final_phases or (give_up is not None and time.monotonic() >= give_up):
                return status
            time.sleep(POLL_SECONDS)

    # -- runs: what an engine may lack --------------------------------------------------------------------------------

    def plan(self, job: Job, run_id: str) -> Plan:
        """The plan of a run on the one target of this engine, for programs that connect it themselves."""
        raise self.unsupported("a plan without a target")

    def list(self, *, is_everywhere: bool = False) -> list[RunState]:
        """All runs of the target, newest first, whichever machine started them; `is_everywhere`: of all namespaces.

        Raises UsageError, EngineError.
        """
        raise UsageError(self.unsupported("ps --on").message, "windlass ps lists the runs of this machine")

    def watch(self, run_id: str = "") -> AbstractContextManager[Watch]:
        """The runs of the target, or one of them, kept up to date. Raises as `list`."""
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
        """Run a command as a rank of a node, or with what all ranks of the node share; returns its exit code.

        Where `stdin` is a `Terminal`, the command has a terminal.

        Raises UsageError, EngineError.
        """
        raise self.unsupported("exec")

    def list_data(self, claim: str | None) -> Sequence[Mapping[str, Any]]:
        """The data sets that are staged in a claim of the target, or in the one that it names; as `storage.volume` has
        them. Raises UsageError, EngineError.
        """
        raise self.unsupported("data ls --on")

    def stage_data(
        self,
        claim: str | None,
        source: str,
        progress: Progress,
        told: Callable[[str], None],
        *,
        secrets: Sequence[str] = (),
        service_account: str | None = None,
    ) -> Mapping[str, Any]:
        """Stage the set of a source there, ahead of the runs that read it; gives the line of `storage/staging.py`, with
        the claim. `told` is called with what it waits for. Raises UsageError, EngineError.
        """
        raise self.unsupported("data stage --on")

    def remove_data(self, claim: str | None, which: str) -> Mapping[str, Any]:
        """Remove one of them, by its source or its digest; gives what it was. Raises UsageError, EngineError."""
        raise self.unsupported("data rm --on")

    def claim_files(self, claim: str) -> AbstractContextManager[ClaimFiles]:
        """The files of a claim of the target, without a run. Raises UsageError, EngineError."""
        raise self.unsupported("claim:")

    def fetch(self, run_id: str, node: int, path: str, local: Path, told: Callable[[int], None]) -> Received:
        """Copy `path` of a run, relative to its results or absolute, to `local`; `told` gets the bytes so far.

        Raises UsageError, EngineError, OSError.
        """
        raise self.unsupported("cp")

    def put(self, run_id: str, node: int, local: Path, path: str, told: Callable[[int], None]) -> Received:
        """Copy `local` to `path` of a run. Raises as `fetch`."""
        raise self.unsupported("cp")

    def results(self, run_id: str) -> ResultsPlace:
        """Where the results of a run are; asks nothing of the target. Raises NoSuchRun."""
        return ResultsPlace("folder", self.store.status(run_id).output_dir)

    def list_results(self, run_id: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """The outputs of a run as `worker/file_list.py` lists them, and its checkpoints as `list_checkpoints`, of
        which nothing is there where they are in a store. Raises UsageError, EngineError.
        """
        raise self.unsupported("artifacts --files")

    def list_checkpoints(self, run_id: str) -> Mapping[str, Any]:
        """The checkpoint folder of a run as `worker/checkpoint_list.py` lists it. Raises UsageError, EngineError."""
        raise self.unsupported("checkpoints")

    @classmethod
    def unsupported(cls, command: str) -> UsageError:
        """The error of a command that this engine does not have."""
        return UsageError(f"{command} is not supported by engine {cls.kind}")


class TargetRuns(Engine):
    """Runs of one target. A run with a record on this machine is found together with the engine of the record; what is
    left is known by its target alone.
    """

    is_remote = True

    def __init__(self, store: Store, target: Any, context: Context) -> None:
        super().__init__(store)
        self._target = target
        self._context = context

    @classmethod
    def connect(cls, store: Store, target: Any = None, context: Context | None = None) -> Engine:
        """See `Engine`."""
        return cls(store, target, context or here())

    def plan_of(self, run_id: str) -> dict[str, Any]:
        """See `Engine`."""
        return {}

    def events(self, run_id: str, *, follow: bool = False, after: int = 0) -> Iterator[Event]:
        """See `Engine`."""
        raise self.unsupported("events")

    def observe(self, run_id: str) -> Observations:
        """See `Engine`."""
        raise self.unsupported("why")


def require_resumable(status: Status) -> None:
    """Raise UsageError for a run that cannot be resumed: before anything is changed for that."""
    if status.phase not in RESUMABLE:
        if status.phase is Phase.SUCCEEDED:
            raise UsageError(
                f"{status.id} has succeeded: nothing is left to do", f"a new run of its job: windlass rerun {status.id}"
            )
        raise UsageError(f"{status.id} has not ended: it is {status.phase}", f"windlass logs -f {status.id}")


def reopen(writer: RunWriter, run_dir: Path, plan: Plan | None, checkpoint: str | None) -> None:
    """Record that an ended run is resumed, with the changed fields. Raises UsageError, StoreError."""
    status = writer.status
    require_resumable(status)
    from windlass.plan.plan import Plan  # a list of runs needs neither
    from windlass.runs.stop_request import clear_stop_request

    clear_stop_request(run_dir)
    policy = (Plan.from_json(writer.store.plan(status.id)) if plan is None else plan).policy
    new: dict[str, Any] = {"machine": writer.store.machine}
    if "max_restarts" in policy:
        new["restarts"] = policy["max_restarts"]
    if plan is not None:
        new["nodes"] = plan.num_nodes
    if checkpoint is not None:
        new["from_"] = checkpoint
    writer.append(RunResumed("asked", **new), plan=None if plan is None else plan.to_text())
