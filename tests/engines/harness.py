"""The ways in which a job can be run, and a laboratory that runs behaviours in one of them."""

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
"""Within which a run ends that can end; far more than it takes, for machines that are busy."""
OF_OPEN_MPI = ("OMPI_", "PMIX_", "OPAL_", "ORTE_", "IPATH_", "HFI_", "PSM")
"""How the names begin of what Open MPI adds to the environment of a rank."""


class Can(enum.Enum):
    """What a way has that another may lack; the value ends the sentence `this way has no …`.

    A case that needs what a way lacks is not collected for it: there is nothing to run, so there is nothing to skip.
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
    """What is a variant's own; the others of its engine's cases run in another way of the engine."""

    START = "how ranks are started: numbers, environment, arguments"
    MEETING = "where ranks meet"
    ENDS = "how the end of a rank is seen: exit code, first cause"
    SIGNALS = "how ranks are stopped, and what is left of them"
    OUTPUT = "the way of a line to the log"
    OBJECTS = "what is made for a run, stopped and removed with it"
    PROGRAM = "what a rank may be and do: the worker's, which is the same wherever it runs"


@dataclass(frozen=True)
class Way:
    """One way to run a job: an engine, and the job fields that choose this way of it."""

    name: str
    connect: Callable[[Store], Engine]
    plan: Callable[[Job, Path, Path, str], Plan]
    """From a job, the folder that its paths are relative to, the home of the records and a run id."""
    can: frozenset[Can]
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Job fields that all runs of this way have."""
    torch_fields: Mapping[str, Any] = field(default_factory=dict)
    """Job fields of runs whose ranks import torch."""
    adds: tuple[str, ...] = ()
    """How the names begin of variables that its launcher gives to the ranks."""
    patience_seconds: float = PATIENCE_SECONDS
    """How long a run of some seconds may take on a busy machine."""
    clean_up: Callable[[Path], object] = lambda home: None
    """Ends what the way keeps under its home for the next run, such as processes that have imported ahead."""
    differs_in: frozenset[Aspect] = frozenset(Aspect)
    """Of a variant, which has its supervisor, logs and record in common with another way: what is its own."""
    has_every_value: bool = False
    """Whether CI runs cases that have parameters with all their values, not with the first alone."""

    @property
    def is_whole(self) -> bool:
        """Whether it is no variant of another one: all cases are run this way, but for those of its worker."""
        return self.differs_in >= frozenset(Aspect) - {Aspect.PROGRAM}


def needs(*abilities: Can) -> pytest.MarkDecorator:
    """Marks a case that makes sense only where a way can do this."""
    return pytest.mark.needs(*abilities)


def differs(*aspects: Aspect) -> pytest.MarkDecorator:
    """Marks a case for the variants that differ in one of these; a case without the mark is for whole ways alone."""
    return pytest.mark.differs(*aspects)


class Run:
    """A run that was started, and what can be seen of it."""

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
        """The status at the end. A run that does not end is a failed test, and is stopped."""
        patience = self.harness.way.patience_seconds
        status = self.harness.engine.wait(self.id, patience)
        assert status.phase.is_terminal, f"{self.id} is {status.phase} after {patience:g} s\n{self.text()}"
        return status

    def succeeded(self) -> Run:
        """Itself, once it has ended. A run that ends otherwise is a failed test."""
        status = self.wait()
        assert status.phase is Phase.SUCCEEDED, f"{status}\n{self.text()}"
        return self

    @property
    def verdict(self) -> Verdict:
        """What `why` says of it."""
        return diagnose(self.harness.engine.observe(self.id)).verdict

    def until(self, happened: Callable[[Run], object], seconds: float | None = None) -> Run:
        """Wait until something can be seen; without `seconds`, for as long as the way is waited for."""
        seconds = seconds or self.harness.way.patience_seconds
        until(lambda: happened(self), lambda: f"it did not happen; {self.status}\n{self.text()}", seconds)
        return self

    def until_ready(self, num_ranks: int = 1) -> Run:
        """Wait until so many ranks have printed `ready` and the record knows that they work."""
        self.until(lambda run: run.text().count("ready\n") >= num_ranks)
        return self.until(lambda run: run.status.phase not in BEGINNING)

    def lines(self, **chosen: Any) -> list[LogLine]:
        self.bring_logs()
        return list(RunLogs(self.dir).read(**chosen))

    def bring_logs(self) -> None:
        """Fill the folder of the run where its supervisor, which else does, is not on this machine."""
        with contextlib.suppress(EngineError), self.harness.engine.logs(self.id):
            pass

    def text(self, **chosen: Any) -> str:
        return "".join(line.text + "\n" for line in self.lines(**chosen))

    def raw(self, rank: int = 0, attempt: int = 1) -> bytes:
        self.bring_logs()
        return (self.dir / f"attempt-{attempt}" / f"rank-{rank}.log").read_bytes()

    def json_of_ranks(self, attempt: int = 1) -> dict[int, Any]:
        """What each rank printed as its one line of JSON."""
        return {line.rank: json.loads(line.text) for line in self.lines(attempt=attempt) if line.text[:1] in "{["}

    def exit_codes(self) -> list[int | None]:
        return [state.exit_code for state in self.status.ranks]


class Harness:
    """Runs jobs in one way, with records of its own."""

    def __init__(self, way: Way, home: Path) -> None:
        self.way = way
        self.home = home
        self.store = Store(home)
        self.engine = way.connect(self.store)
        self.runs: list[Run] = []
        self._num_planned = 0
        """An id is never used twice: in a cluster, what a removed run has made goes some time later."""
        self._finished: dict[str, Run] = {}

    def plan(self, *words: str, base: Path = BEHAVIOURS.parent, **fields: Any) -> Plan:
        """The plan of a run of these words, a behaviour with its arguments unless the first is a script."""
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
        """A run that has ended. Asked for the same again, the same run: cases share what they look at."""
        key = repr((words, fields))
        if key not in self._finished:
            run = self.start(*words, **fields)
            run.wait()
            self._finished[key] = run
        return self._finished[key]

    def prepare(self) -> None:
        """Have done what a way does once, such as to import ahead: what follows is about time."""
        self.start("leave", "0").wait()

    def close(self) -> None:
        """End what still goes on."""
        for run in self.runs:
            self.engine.stop(run.id, now=True)
        for run in self.runs:
            self.engine.wait(run.id, PATIENCE_SECONDS)
        self.store.close()
        self.way.clean_up(self.home)


def files_of_mpi(run: Run) -> list[Path]:
    """The folder of the mpirun of `scripts/mpi.py` and the memory that its ranks share, as rank 1 told them."""
    lines = [line for line in run.text(ranks=[1]).splitlines() if line.startswith("files ")]
    return [Path(name) for name in lines[0].split()[1:]] if lines else []


class Case:
    """What all cases share. A way is tested by a class `Test…(Contract)` with `way` set."""

    way: Way

    @pytest.fixture(scope="class")
    @classmethod
    def harness(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
        harness = Harness(cls.way, tmp_path_factory.mktemp("home"))
        yield harness
        harness.close()
