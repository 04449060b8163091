"""Observations on a run: its record, the output of its ranks, facts about its nodes, and additions of its engine."""

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
"""Line that `worker/setup_step.py` adds to the output of a failed setup script."""
NO_CAUSE: Final = RootCause("")
NOTHING_READ: Final = HostReport()


@dataclass(frozen=True, slots=True)
class RankSeen:
    """One rank of the newest attempt."""

    rank: int
    node: int = 0
    exit_code: int | None = None
    """Exit code, −N for signal N; None while the rank runs, or if its end was not observed."""
    ended_at: float | None = None
    ended_by_us: bool = False
    """Whether Windlass stopped the rank, because another rank failed or the run was stopped."""
    tail: str = ""
    """Last 64 KiB of the rank's output, without stacks that Windlass requested."""
    last_output_at: float | None = None
    """Time of the last output in Unix seconds; None for a rank without output."""


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """One node of the newest attempt."""

    node: int
    words: str = ""
    """Output of the node's worker itself, which is empty unless the worker crashed."""
    flights: Mapping[int, Flight] = field(default_factory=dict)
    """Last collectives by rank, if ranks of the node failed."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Tool that manages the packages of the script's interpreter, and the environment's folder."""

    kind: str = ""
    """Name of the tool: `uv-project`, `poetry`, `uv`, `conda`, `venv` or `system`; empty if there is no interpreter."""
    prefix: str = ""
    """Folder of the environment."""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Current facts about this machine, if the run's ranks are processes here."""

    booted_at: float | None = None
    """Boot time in Unix seconds; None if unknown."""
    is_record_disk_full: bool = False
    """Whether the disk of the record is full."""
    environment: Environment = Environment()
    flights: Mapping[int, Flight] = field(default_factory=dict)
    """Last collectives by rank, from dump files of NCCL's watchdog."""


@dataclass(frozen=True, slots=True)
class Silence:
    """Period in which no rank wrote output, with the state of each rank."""

    seconds: float
    reason: str
    """Why stacks were dumped: `silence` (beyond the job's `hang`), `timeout` or `stop`."""
    at: float
    """When stacks were dumped, in Unix seconds."""
    stacks: Mapping[int, str] = field(default_factory=dict)
    """Stacks of all threads by rank, in the format of faulthandler; empty for a rank without stacks."""
    states: Mapping[int, str] = field(default_factory=dict)
    """State of each rank's process as reported by the kernel: `S`, `R`, `D`, `T`."""
    flights: Mapping[int, Flight] = field(default_factory=dict)
    """Last collectives by rank, of ranks that recorded them."""


@dataclass(frozen=True)
class Observations:
    """All inputs of a diagnosis, and values that several rules derive from them."""

    status: Status
    plan: Plan = NO_PLAN
    events: Sequence[Event] = ()
    ranks: Sequence[RankSeen] = ()
    nodes: Sequence[NodeSeen] = ()
    machine: MachineFacts = MachineFacts()
    supervisor_traceback: str = ""
    """Traceback of a crashed supervisor; empty if none crashed."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Source lines that stacks and tracebacks refer to, by `file:line`."""
    near: Mapping[str, str] = field(default_factory=dict)
    """Existing similar names for each file or module that was not found."""
    earlier: Observations | None = None
    """Observations of the previous attempt, as if the run had ended with it. Set only if the previous attempt failed at
    its start and the time limit ended the newest one before it trained."""
    rules: Sequence[Rule] = ()
    """Rules of the run's engine, for observations that only this engine has."""
    not_seen: tuple[str, ...] = ()
    """Data that the engine could not read, each with the reason, such as `nodes cannot be listed: …`."""
    image: str = ""
    """Container image of the script; empty if it runs on the host."""

    # -- the plan -----------------------------------------------------------------------------------------------------

    @property
    def code_dir(self) -> str:
        """Folder of the job; empty if the plan names none."""
        return self.plan.nodes.cwd

    @property
    def python(self) -> str:
        """Interpreter of the script; empty for other programs."""
        argv = self.plan.nodes.argv
        return argv[0] if len(argv) > 1 and argv[1].endswith("worker/rank.py") else ""

    @property
    def grace_seconds(self) -> float:
        """Seconds from SIGTERM to SIGKILL."""
        return self.plan.policy.grace_seconds

    # -- how the run ended --------------------------------------------------------------------------------------------

    @property
    def cause(self) -> RootCause:
        """Recorded root cause; empty if none is recorded."""
        return self.status.cause or NO_CAUSE

    @property
    def failed(self) -> bool:
        """Whether ranks failed by themselves. False for a run that was stopped, timed out or lost."""
        return self.status.phase is Phase.FAILED and not self.timed_out

    @property
    def timed_out(self) -> bool:
        """Whether the job's time limit ended the run."""
        is_failed = self.status.phase is Phase.FAILED and self.cause.rank is None
        return is_failed and self.status.exit_code == TIMEOUT_EXIT_CODE

    def last(self, kind: type[E]) -> E | None:
        """Returns the newest event of a kind since the run was last resumed; None if there is none."""
        for event in reversed(self.events):
            if event.kind == kind.kind:
                return kind.from_json(event.data)
            if event.kind == RunResumed.kind:
                break
        return None

    @cached_property
    def steps(self) -> dict[int, tuple[int, int]]:
        """Last step that each rank printed, and the total number of steps; ranks that print no total are omitted."""
        pattern = self.plan.nodes.progress
        found = {seen.rank: Recogniser(pattern).feed(f"{seen.tail}\n".encode()) or {} for seen in self.ranks}
        if (reported := self.status.progress).rank in found:
            found[reported.rank] = found[reported.rank] or {"step": reported.step, "total": reported.total}
        wanted = ((rank, one.get("step"), one.get("total")) for rank, one in found.items())
        return {rank: (step, total) for rank, step, total in wanted if isinstance(step, int) and isinstance(total, int)}

    # -- silence ------------------------------------------------------------------------------------------------------

    def silence(self) -> Silence | None:
        """Newest silence of the newest attempt, with the reports of all nodes combined."""
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
        """Last collectives of each rank, from the newer of the rank's own file and the dump of NCCL's watchdog."""
        silence = self.silence()
        found: dict[int, Flight] = {}
        for flights in (self.machine.flights, silence.flights if silence else {}, *(one.flights for one in self.nodes)):
            for rank, flight in flights.items():
                if rank not in found or flight.at >= found[rank].at:
                    found[rank] = flight
        return found

    def went_on_after(self, silence: Silence) -> bool:
        """Whether the run succeeded or a rank wrote output after the silence, so that the silence was not a hang."""
        outputs = [seen.last_output_at for seen in self.ranks if seen.last_output_at is not None]
        return self.status.phase is Phase.SUCCEEDED or any(at > silence.at + 0.05 for at in outputs)

    # -- the rank that failed first -----------------------------------------------------------------------------------

    def unstyled(self) -> Observations:
        """Returns a copy whose outputs contain no terminal colours."""
        return replace(self, ranks=[replace(rank, tail=unstyled(rank.tail)) for rank in self.ranks])

    @cached_property
    def first(self) -> RankSeen | None:
        """Rank that failed first."""
        number = self.cause.rank
        if number is None or not self.failed:
            return None
        found = next((seen for seen in self.ranks if seen.rank == number), RankSeen(number))
        # The recorded exit code counts: a rank that its launcher killed failed because of another rank.
        code = self.cause.exit_code
        return found if code is None or code == found.exit_code else replace(found, exit_code=code)

    @cached_property
    def text(self) -> str:
        """Last output of the rank that failed first."""
        return own_words(self.first.tail) if self.first else ""

    @cached_property
    def raised(self) -> Raised | None:
        """Exception that ended the rank that failed first, as its node recorded it; otherwise from the rank's log."""
        if self.first is None or (self.cause.failure == "signal" and self.signal not in ("SIGABRT", "SIGINT")):
            return None
        found = raised(self.cause.traceback)
        if found is None or is_secondary(found.line):  # the log contains more output than the record
            found = raised(self.first.tail) or found
        return found

    @property
    def code(self) -> int:
        """Exit code of the rank that failed first; −N for signal N, also if a shell or launcher reports its child's
        signal.
        """
        return 0 if self.first is None else self.cause.code or self.first.exit_code or 0

    @property
    def signal(self) -> str | None:
        """Signal that ended the rank that failed first."""
        return signal_name(self.code)

    def of_first(
        self, code: str, summary: str, evidence: Sequence[str], fix: str, score: float, *, is_effect: bool = False
    ) -> Verdict:
        """Returns a verdict on the rank that failed first."""
        return Verdict(code, summary, self.first.rank if self.first else None, tuple(evidence), fix, score, is_effect)

    @cached_property
    def setup_end(self) -> str:
        """How the script of `setup:` failed, such as `exit code 7` or `signal 9`; empty if it did not fail."""
        cause = f"{self.cause.summary}\n{self.cause.traceback}"  # an exception during setup is recorded as a traceback
        found = _SETUP_FAILED.search(cause) if self.plan.nodes.setup else None
        return found[1] if found is not None else ""

    @property
    def who(self) -> str:
        """Subject for messages: `rank 1`; `the script` if there is one rank; `the setup script` if no rank started."""
        if self.setup_end:
            return "the setup script"
        return self.name(self.first.rank if self.first else 0)

    def name(self, rank: int) -> str:
        """Returns a rank's name for messages: `rank 1`, or `the script` if there is one rank."""
        return f"rank {rank}" if len(self.status.ranks) > 1 else "the script"

    @property
    def host(self) -> HostReport:
        """Facts that the worker read from its host, for the node of the rank that failed first."""
        return self.cause.host if self.first is not None and self.cause.host is not None else NOTHING_READ

    @cached_property
    def where(self) -> str:
        """Place in the script's own code at which the rank that failed first was; empty if unknown."""
        if self.raised is not None:
            return self.at(own_frame(self.raised.frames, self.code_dir, innermost_first=False))
        return self.at(own_frame(fatal_stack(self.text), self.code_dir, innermost_first=True))

    def at(self, frame: Frame | None) -> str:
        """Returns a place with its source line, such as `train.py:12: x = y[3]`."""
        if frame is None:
            return ""
        source = self.sources.get(frame.key, "").strip()
        return f"{frame.place}: {source}" if source else f"{frame.place} in {frame.name}"

    def kept(self, rank: int, stacks: str) -> str:
        """Returns for example `rank 0 is kept by thread Thread-1 at train.py:9: …` if the rank's script has ended;
        otherwise empty.
        """
        found = kept_after_end(stacks)
        if found is None:
            return ""
        place = self.at(own_frame(found.stack, self.code_dir, innermost_first=True))
        return f"{self.name(rank)} is kept by {found.by}" + (f" at {place}" if place else "")

    @property
    def at_place(self) -> str:
        """Suffix of a sentence with the place, such as ` at train.py:12`; empty if the place is unknown."""
        return f" at {place_alone(self.where)}" if self.where else ""

    @cached_property
    def calls(self) -> dict[int, str]:
        """Lines with the collective in which each failed rank was, such as `rank 0: all_reduce, train.py:12: …`."""
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
        """Whether all failed ranks report only that a peer disconnected or did not respond."""
        return bool(self.failures) and all(lost_peer(seen.exit_code, seen.tail) for seen in self.failures)


def place_alone(place: str) -> str:
    """Returns the place alone: `train.py:12` for `train.py:12: x = y[3]` or `train.py:12 in main`."""
    return place.partition(": ")[0].partition(" in ")[0]


Rule = Callable[[Observations], Iterator[Verdict]]
"""Function that yields the verdicts that the observations support. The verdict with the highest score wins."""
