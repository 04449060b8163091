"""What was observed of a run: its record, the output of its ranks, facts of its nodes, and what its engine adds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from windlass.diagnose.flights import Flight, flights_of
from windlass.diagnose.reading import (
    Frame,
    Raised,
    collective,
    fatal_stack,
    kept_after_end,
    main_stack,
    own_frame,
    raised,
)
from windlass.diagnose.verdict import Verdict
from windlass.plan.plan import NO_PLAN, Plan
from windlass.runs.events import E, Event, HangDetected, RootCause, RunResumed, entries, of_newest_attempt
from windlass.runs.phase import Phase
from windlass.runs.record import Status
from windlass.runs.restart_policy import TIMEOUT_EXIT_CODE
from windlass.worker.progress import Recogniser
from windlass.worker.protocol import HostReport
from windlass.worker.root_cause import lost_peer, signal_name
from windlass.worker.tracebacks import is_secondary, own_words, unstyled

_SETUP_FAILED: Final = re.compile(r"setup failed with ((?:exit code|signal) \d+)$", re.MULTILINE)
"""What `worker/setup_step.py` adds to the output of a script that failed."""
NO_CAUSE: Final = RootCause("")
NOTHING_READ: Final = HostReport()


@dataclass(frozen=True, slots=True)
class RankSeen:
    """One rank of the newest attempt."""

    rank: int
    node: int = 0
    exit_code: int | None = None
    """−N for signal N; None while it runs, or where its end was not observed."""
    ended_at: float | None = None
    ended_by_us: bool = False
    """Whether it was stopped because another rank had failed, or because the run was to end."""
    tail: str = ""
    """The last 64 KiB of its output, without the stacks that Windlass requested."""
    last_output_at: float | None = None
    """Unix seconds; None for a rank without output."""


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """One node of the newest attempt."""

    node: int
    words: str = ""
    """What its worker itself wrote: nothing, unless it crashed."""
    flights: Mapping[int, Flight] = field(default_factory=dict)
    """The last collectives of its ranks, by rank, if ranks failed."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What the packages of the script's interpreter are managed with."""

    kind: str = ""
    """`uv-project`, `poetry`, `uv`, `conda`, `venv` or `system`; empty where there is no interpreter."""
    prefix: str = ""
    """Its folder."""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What is true of this machine now, where the ranks of the run are its processes."""

    booted_at: float | None = None
    """Unix seconds; None where it is not known."""
    is_record_disk_full: bool = False
    """Whether the disk under the record is full."""
    environment: Environment = Environment()
    flights: Mapping[int, Flight] = field(default_factory=dict)
    """By rank, the last collectives as NCCL's watchdog wrote them."""


@dataclass(frozen=True, slots=True)
class Silence:
    """A time in which no rank wrote anything, and where each rank was then."""

    seconds: float
    reason: str
    """Why stacks were taken: `silence` (the job's `hang`), `timeout` or `stop`."""
    at: float
    """Unix seconds."""
    stacks: Mapping[int, str] = field(default_factory=dict)
    """Stacks of all threads of each rank, as faulthandler writes them; empty where none could be taken."""
    states: Mapping[int, str] = field(default_factory=dict)
    """State of each rank's process, as the kernel reports it: `S`, `R`, `D`, `T`."""
    flights: Mapping[int, Flight] = field(default_factory=dict)
    """The last collectives of the ranks that have recorded them."""


@dataclass(frozen=True)
class Observations:
    """Everything that a diagnosis rests on, and what rules derive from it again and again."""

    status: Status
    plan: Plan = NO_PLAN
    """The recorded plan."""
    events: Sequence[Event] = ()
    ranks: Sequence[RankSeen] = ()
    nodes: Sequence[NodeSeen] = ()
    machine: MachineFacts = MachineFacts()
    supervisor_traceback: str = ""
    """The traceback of a supervisor that crashed; empty where none did."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Lines of the script that stacks and tracebacks name, by `file:line`."""
    near: Mapping[str, str] = field(default_factory=dict)
    """For a file or module that was not found: what is there instead."""
    earlier: Observations | None = None
    """Where the time limit ended an attempt that had not begun to train: the attempt before it, which failed at its
    start, as if the run had ended with it."""
    rules: Sequence[Rule] = ()
    """The rules of the run's engine, which know what it observed besides."""
    not_seen: tuple[str, ...] = ()
    """What the engine could not read, each with the reason: `nodes cannot be listed: …`."""
    image: str = ""
    """The container image in which the script runs; empty where it runs on the host."""

    # -- the plan -----------------------------------------------------------------------------------------------------

    @property
    def code_dir(self) -> str:
        """The job's folder; empty where the plan names none."""
        return self.plan.nodes.cwd

    @property
    def python(self) -> str:
        """The script's interpreter; empty for a program."""
        argv = self.plan.nodes.argv
        return argv[0] if len(argv) > 1 and argv[1].endswith("worker/rank.py") else ""

    @property
    def grace_seconds(self) -> float:
        """Seconds from SIGTERM to SIGKILL."""
        return self.plan.policy.grace_seconds

    # -- how the run ended --------------------------------------------------------------------------------------------

    @property
    def cause(self) -> RootCause:
        """The recorded root cause; an empty one where none is recorded."""
        return self.status.cause or NO_CAUSE

    @property
    def failed(self) -> bool:
        """Whether ranks failed by themselves: the run was not stopped, timed out or lost."""
        return self.status.phase is Phase.FAILED and not self.timed_out

    @property
    def timed_out(self) -> bool:
        """Whether the job's time limit ended the run."""
        is_failed = self.status.phase is Phase.FAILED and self.cause.rank is None
        return is_failed and self.status.exit_code == TIMEOUT_EXIT_CODE

    def last(self, kind: type[E]) -> E | None:
        """What the newest event of a kind carries; None where there is none since the run was last resumed."""
        for event in reversed(self.events):
            if event.kind == kind.kind:
                return kind.from_json(event.data)
            if event.kind == RunResumed.kind:
                break
        return None

    @cached_property
    def steps(self) -> dict[int, tuple[int, int]]:
        """The last step that each rank has printed, and of how many; ranks that print no total are left out."""
        pattern = self.plan.nodes.progress
        found = {seen.rank: Recogniser(pattern).feed(f"{seen.tail}\n".encode()) or {} for seen in self.ranks}
        if (reported := self.status.progress).rank in found:
            found[reported.rank] = found[reported.rank] or {"step": reported.step, "total": reported.total}
        wanted = ((rank, one.get("step"), one.get("total")) for rank, one in found.items())
        return {rank: (step, total) for rank, step, total in wanted if isinstance(step, int) and isinstance(total, int)}

    # -- silence ------------------------------------------------------------------------------------------------------

    def silence(self) -> Silence | None:
        """The newest silence of the newest attempt, with the reports of its nodes taken together."""
        reports = [event for event in of_newest_attempt(self.events) if event.kind == HangDetected.kind]
        if not reports:
            return None
        hangs = list(entries(reports, HangDetected))
        same = [hang for hang in hangs if hang.since == hangs[-1].since]
        ranks = [rank for hang in same for rank in hang.ranks]
        return Silence(
            seconds=same[-1].seconds,
            reason="silence" if any(hang.reason == "silence" for hang in same) else same[-1].reason,
            at=reports[-1].time,
            stacks={rank.rank: rank.stack for rank in ranks},
            states={rank.rank: rank.state for rank in ranks},
            flights=flights_of({rank.rank: rank.flight for rank in ranks if rank.flight}),
        )

    def flights(self) -> dict[int, Flight]:
        """The last collectives of each rank: of its own file and that of NCCL's watchdog, the newest."""
        silence = self.silence()
        found: dict[int, Flight] = {}
        for flights in (self.machine.flights, silence.flights if silence else {}, *(one.flights for one in self.nodes)):
            for rank, flight in flights.items():
                if rank not in found or flight.at >= found[rank].at:
                    found[rank] = flight
        return found

    def went_on_after(self, silence: Silence) -> bool:
        """Whether a rank wrote something after that silence, which then was no hang."""
        outputs = [seen.last_output_at for seen in self.ranks if seen.last_output_at is not None]
        return self.status.phase is Phase.SUCCEEDED or any(at > silence.at + 0.05 for at in outputs)

    # -- the rank that failed first -----------------------------------------------------------------------------------

    def unstyled(self) -> Observations:
        """The same without colours in the output."""
        return replace(self, ranks=[replace(rank, tail=unstyled(rank.tail)) for rank in self.ranks])

    @cached_property
    def first(self) -> RankSeen | None:
        """The rank that failed first."""
        number = self.cause.rank
        if number is None or not self.failed:
            return None
        found = next((seen for seen in self.ranks if seen.rank == number), RankSeen(number))
        # The exit code of the recorded cause: a rank that its launcher ended by a signal has failed by another's code.
        code = self.cause.exit_code
        return found if code is None or code == found.exit_code else replace(found, exit_code=code)

    @cached_property
    def text(self) -> str:
        """The last output of that rank."""
        return own_words(self.first.tail) if self.first else ""

    @cached_property
    def raised(self) -> Raised | None:
        """The exception that ended that rank, as recorded; of its log where its node could not report it."""
        if self.first is None or (self.cause.failure == "signal" and self.signal not in ("SIGABRT", "SIGINT")):
            return None
        found = raised(self.cause.traceback)
        if found is None or is_secondary(found.line):  # the log has more of its output than its node reports
            found = raised(self.first.tail) or found
        return found

    @property
    def code(self) -> int:
        """The exit code of that rank; −N for signal N, also where a shell or a launcher reports its child's signal."""
        return 0 if self.first is None else self.cause.code or self.first.exit_code or 0

    @property
    def signal(self) -> str | None:
        """The signal that ended that rank."""
        return signal_name(self.code)

    def of_first(
        self, code: str, summary: str, evidence: Sequence[str], fix: str, score: float, *, is_effect: bool = False
    ) -> Verdict:
        """A verdict on the rank that failed first."""
        return Verdict(code, summary, self.first.rank if self.first else None, tuple(evidence), fix, score, is_effect)

    @cached_property
    def setup_end(self) -> str:
        """How the script of `setup:` failed, `exit code 7` or `signal 9`; empty where it did not fail."""
        cause = f"{self.cause.summary}\n{self.cause.traceback}"  # one with an exception is quoted whole
        found = _SETUP_FAILED.search(cause) if self.plan.nodes.setup else None
        return found[1] if found is not None else ""

    @property
    def who(self) -> str:
        """`rank 1`; `the script` where there is one rank; `the setup script` where no rank was started."""
        if self.setup_end:
            return "the setup script"
        return self.name(self.first.rank if self.first else 0)

    def name(self, rank: int) -> str:
        """`rank 1`; `the script` where there is one rank."""
        return f"rank {rank}" if len(self.status.ranks) > 1 else "the script"

    @property
    def host(self) -> HostReport:
        """What the worker of that rank read of its machine."""
        return self.cause.host if self.first is not None and self.cause.host is not None else NOTHING_READ

    @cached_property
    def where(self) -> str:
        """Where in the script's own code that rank failed."""
        if self.raised is not None:
            return self.at(own_frame(self.raised.frames, self.code_dir, innermost_first=False))
        return self.at(own_frame(fatal_stack(self.text), self.code_dir, innermost_first=True))

    def at(self, frame: Frame | None) -> str:
        """`train.py:12: x = y[3]`: a place with its source line."""
        if frame is None:
            return ""
        source = self.sources.get(frame.key, "").strip()
        return f"{frame.place}: {source}" if source else f"{frame.place} in {frame.name}"

    def kept(self, rank: int, stacks: str) -> str:
        """`rank 0 is kept by thread Thread-1 at train.py:9: …`, where its script has ended; empty where it has not."""
        found = kept_after_end(stacks)
        if found is None:
            return ""
        place = self.at(own_frame(found.stack, self.code_dir, innermost_first=True))
        return f"{self.name(rank)} is kept by {found.by}" + (f" at {place}" if place else "")

    @property
    def at_place(self) -> str:
        """` at train.py:12`, for a sentence; empty where the place is not known."""
        return f" at {place_alone(self.where)}" if self.where else ""

    @cached_property
    def calls(self) -> dict[int, str]:
        """Where each rank that failed was in a collective: `rank 0: all_reduce, train.py:12: …`."""
        found = {}
        for seen in self.ranks:
            error = raised(seen.tail)
            stack = tuple(reversed(error.frames)) if error else main_stack(seen.tail)
            if call := collective(stack, self.sources):
                own = own_frame(stack, self.code_dir, innermost_first=True)
                found[seen.rank] = f"{self.name(seen.rank)}: {call}, {self.at(own)}"
        return found

    @cached_property
    def failures(self) -> tuple[RankSeen, ...]:
        """Ranks that failed by themselves."""
        return tuple(seen for seen in self.ranks if seen.exit_code not in (None, 0) and not seen.ended_by_us)

    @cached_property
    def only_victims(self) -> bool:
        """Whether every rank that failed reports no more than that a peer went away or did not answer."""
        return bool(self.failures) and all(lost_peer(seen.exit_code, seen.tail) for seen in self.failures)


def place_alone(place: str) -> str:
    """`train.py:12` of `train.py:12: x = y[3]` and of `train.py:12 in main`."""
    return place.partition(": ")[0].partition(" in ")[0]


Rule = Callable[[Observations], Iterator[Verdict]]
"""Every rule reads all observations and gives the verdicts that they support; the highest score wins."""
