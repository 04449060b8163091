"""Ways of running jobs, and a harness that runs functions of `behaviours.py` in one of them."""

from __future__ import annotations

import contextlib
import enum
import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.until import until

from windlass.diagnose.diagnose import diagnose
from windlass.diagnose.verdict import Verdict
from windlass.engines.base import Engine
from windlass.errors import EngineError
from windlass.plan.plan import Plan
from windlass.runs.events import Event
from windlass.runs.logs import LogLine, RunLogs
from windlass.runs.phase import Phase
from windlass.runs.record import Status
from windlass.runs.store import Store
from windlass.spec.job import Job
from windlass.supervise.recorder import BEGINNING

BEHAVIOURS = Path(__file__).with_name("behaviours.py")
SCRIPTS = Path(__file__).with_name("scripts")
PATIENCE_SECONDS = 240.0
"""Time limit of a run in seconds, far more than a run needs on a busy machine."""
OF_OPEN_MPI = ("OMPI_", "PMIX_", "OPAL_", "ORTE_", "IPATH_", "HFI_", "PSM")
"""Prefixes of the environment variables that Open MPI sets for a rank."""


class Can(enum.Enum):
    """Abilities that some ways lack; the value completes the sentence `this way has no …`.

    A case that needs a missing ability is not collected: it would have nothing to run.
    """

    PROCESSES = "processes of its own"
    SCRIPTS = "interpreter that runs files"
    TORCH = "ranks that meet by torch.distributed"
    INTERPRETERS = "choice of interpreters"
    PROGRAMS = "programs besides Python"
    FILES = "files at the paths that they have on this machine"
    LOCAL_DATA = "folder of this machine that its hosts read as data"
    EVERY_LINE = "reader of logs while no command runs: what a kubelet rotates is gone"
    SHELL = "variables of the shell in which the command was called"
    BYTES = "log of bytes: the service keeps text"
    STOPS_AT_ONCE = "stop without a grace period: the service has no such request"
    ANY_LAUNCHER = "way to start ranks without its own launcher"
    QUICK_START = "start within a second"


class Aspect(enum.Enum):
    """Aspects in which a variant differs from another way of its engine. Cases of all other aspects run in that way
    only.
    """

    START = "how ranks are started: numbers, environment, arguments"
    MEETING = "where ranks meet"
    ENDS = "how the end of a rank is seen: exit code, first cause"
    SIGNALS = "how ranks are stopped, and what is left of them"
    OUTPUT = "the way of a line to the log"
    OBJECTS = "what is made for a run, stopped and removed with it"
    PROGRAM = "what a rank may be and do: the worker's, which is the same wherever it runs"


@dataclass(frozen=True)
class Way:
    """One way of running jobs: an engine, and the job fields that select the way."""

    name: str
    connect: Callable[[Store], Engine]
    plan: Callable[[Job, Path, Path, str], Plan]
    """Returns the plan of a job, from the folder of its relative paths, the home of the records and a run id."""
    can: frozenset[Can]
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Job fields of all runs."""
    torch_fields: Mapping[str, Any] = field(default_factory=dict)
    """Job fields of runs whose ranks import torch."""
    adds: tuple[str, ...] = ()
    """Prefixes of the variables that the launcher sets for ranks."""
    patience_seconds: float = PATIENCE_SECONDS
    """Time limit in seconds for a run that takes seconds on an idle machine."""
    clean_up: Callable[[Path], object] = lambda home: None
    """Ends processes that outlive a run under the home, such as warm processes."""
    differs_in: frozenset[Aspect] = frozenset(Aspect)
    """Aspects in which this variant differs from the way with which it shares supervisor, logs and record."""
    has_every_value: bool = False
    """Whether CI runs parametrized cases with all values, and not just with the first."""

    @property
    def is_whole(self) -> bool:
        """Whether this way is not a variant, so that it runs all cases except those of the worker."""
        return self.differs_in >= frozenset(Aspect) - {Aspect.PROGRAM}


def needs(*abilities: Can) -> pytest.MarkDecorator:
    """Marks a case that applies only to ways with these abilities."""
    return pytest.mark.needs(*abilities)


def differs(*aspects: Aspect) -> pytest.MarkDecorator:
    """Marks a case that also runs for variants that differ in one of these aspects."""
    return pytest.mark.differs(*aspects)


class Run:
    """A run that was started, with accessors for its status, events and logs."""

    def __init__(self, harness: Harness, run_id: str) -> None:
        self.harness = harness
        self.id = run_id

    @property
    def status(self) -> Status:
        return self.harness.engine.status(self.id)

    @property
    def events(self) -> list[Event]:
        return self.harness.store.events(self.id)

    @property
    def dir(self) -> Path:
        return self.harness.store.run_dir(self.id)

    def wait(self) -> Status:
        """Waits for the end of the run and returns its status. Fails the test if the run does not end in time."""
        patience = self.harness.way.patience_seconds
        status = self.harness.engine.wait(self.id, patience)
        assert status.phase.is_terminal, f"{self.id} is {status.phase} after {patience:g} s\n{self.text()}"
        return status

    def succeeded(self) -> Run:
        """Waits for the end of the run, asserts that it succeeded, and returns the run."""
        status = self.wait()
        assert status.phase is Phase.SUCCEEDED, f"{status}\n{self.text()}"
        return self

    @property
    def verdict(self) -> Verdict:
        """Verdict that `why` reports."""
        return diagnose(self.harness.engine.observe(self.id)).verdict

    def until(self, happened: Callable[[Run], object], seconds: float | None = None) -> Run:
        """Waits until `happened` is true, for at most `seconds`; default: the time limit of the way."""
        seconds = seconds or self.harness.way.patience_seconds
        until(lambda: happened(self), lambda: f"it did not happen; {self.status}\n{self.text()}", seconds)
        return self

    def until_ready(self, num_ranks: int = 1) -> Run:
        """Waits until `num_ranks` ranks have printed `ready` and the record shows that the run has started."""
        self.until(lambda run: run.text().count("ready\n") >= num_ranks)
        return self.until(lambda run: run.status.phase not in BEGINNING)

    def lines(self, **chosen: Any) -> list[LogLine]:
        self.bring_logs()
        return list(RunLogs(self.dir).read(**chosen))

    def bring_logs(self) -> None:
        """Reads the logs into the folder of the run, for runs whose supervisor is not on this machine."""
        with contextlib.suppress(EngineError), self.harness.engine.logs(self.id):
            pass

    def text(self, **chosen: Any) -> str:
        return "".join(line.text + "\n" for line in self.lines(**chosen))

    def raw(self, rank: int = 0, attempt: int = 1) -> bytes:
        self.bring_logs()
        return (self.dir / f"attempt-{attempt}" / f"rank-{rank}.log").read_bytes()

    def json_of_ranks(self, attempt: int = 1) -> dict[int, Any]:
        """Returns the line of JSON that each rank printed, by rank."""
        return {line.rank: json.loads(line.text) for line in self.lines(attempt=attempt) if line.text[:1] in "{["}

    def exit_codes(self) -> list[int | None]:
        return [state.exit_code for state in self.status.ranks]


class Harness:
    """Runs jobs in one way, with separate records."""

    def __init__(self, way: Way, home: Path) -> None:
        self.way = way
        self.home = home
        self.store = Store(home)
        self.engine = way.connect(self.store)
        self.runs: list[Run] = []
        self._num_planned = 0
        """Number in the last run id. Ids are not reused: a cluster deletes objects of a removed run with a delay."""
        self._finished: dict[str, Run] = {}

    def plan(self, *words: str, base: Path = BEHAVIOURS.parent, **fields: Any) -> Plan:
        """Plans a run of these words: a script with its arguments, or a function of `behaviours.py` with its
        arguments.
        """
        if not fields.get("command") and not words[0].endswith(".py") and words[0] != "-m":
            words = (BEHAVIOURS.name, *words)
        fields = {"name": "case", **({"run": shlex.join(words)} if words else {}), **self.way.fields, **fields}
        self._num_planned += 1
        return self.way.plan(Job(**fields), base, self.home, f"case-{self._num_planned}")

    def start(self, *words: str, **fields: Any) -> Run:
        plan = self.plan(*words, **fields)
        run = Run(self, plan.run_id)
        self.runs.append(run)
        self.engine.submit(plan)
        return run

    def finish(self, *words: str, **fields: Any) -> Run:
        """Returns a run that has ended. The same arguments return the same run, so that cases share it."""
        key = repr((words, fields))
        if key not in self._finished:
            run = self.start(*words, **fields)
            run.wait()
            self._finished[key] = run
        return self._finished[key]

    def prepare(self) -> None:
        """Runs a job once, so that one-time work such as imports in advance does not affect a later measurement."""
        self.start("leave", "0").wait()

    def close(self) -> None:
        """Ends all runs that are still active."""
        for run in self.runs:
            self.engine.stop(run.id, now=True)
        for run in self.runs:
            self.engine.wait(run.id, PATIENCE_SECONDS)
        self.store.close()
        self.way.clean_up(self.home)


def files_of_mpi(run: Run) -> list[Path]:
    """Returns the folder of mpirun and the shared memory files of its ranks, as rank 1 of `scripts/mpi.py` printed
    them.
    """
    lines = [line for line in run.text(ranks=[1]).splitlines() if line.startswith("files ")]
    return [Path(name) for name in lines[0].split()[1:]] if lines else []


class Case:
    """Base class of the cases. A way is tested by a class `Test…(Contract)` with `way` set."""

    way: Way

    @pytest.fixture(scope="class")
    @classmethod
    def harness(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
        harness = Harness(cls.way, tmp_path_factory.mktemp("home"))
        yield harness
        harness.close()
