"""Observations with what rules ask of them again and again: the rank it began with, its exception, its place."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from windlass.diagnose.observations import NodeSeen, Observations, RankSeen
from windlass.diagnose.reading import Frame, Raised, collective, fatal_stack, main_stack, own_frame, plain, raised
from windlass.plan.pods import pod_spec
from windlass.runs.record import Phase
from windlass.worker.blame import is_victim, launched_signal
from windlass.worker.traces import is_launched, is_secondary, unstyled

TIMEOUT_EXIT_CODE: Final = 124


class Case:
    """One run, as rules look at it."""

    def __init__(self, seen: Observations) -> None:
        styled = any("\x1b" in rank.head + rank.tail for rank in seen.ranks)
        ranks = [replace(rank, head=unstyled(rank.head), tail=unstyled(rank.tail)) for rank in seen.ranks]
        self.seen = replace(seen, ranks=ranks) if styled else seen
        self.status = seen.status
        self.cause: Mapping[str, Any] = seen.status.cause or {}

    @property
    def failed(self) -> bool:
        """Whether ranks failed by themselves: the run was not stopped, timed out or lost."""
        return self.status.phase is Phase.FAILED and not self.timed_out

    @property
    def timed_out(self) -> bool:
        """Whether the job's time limit ended the run."""
        return (
            self.status.phase is Phase.FAILED
            and "rank" not in self.cause
            and self.status.exit_code == TIMEOUT_EXIT_CODE
        )

    @cached_property
    def first(self) -> RankSeen | None:
        """The rank that failed first."""
        number = self.cause.get("rank")
        if number is None or not self.failed:
            return None
        found = next((seen for seen in self.seen.ranks if seen.rank == number), RankSeen(number))
        if found.exit_code is None:
            return RankSeen(number, found.node, self.cause.get("exit_code"), head=found.head, tail=found.tail)
        return found

    @cached_property
    def text(self) -> str:
        """The last words of that rank."""
        return plain(self.first.tail) if self.first else ""

    @cached_property
    def raised(self) -> Raised | None:
        """The exception that ended that rank; what the record kept of it where the log is gone."""
        if self.first is None:
            return None
        found = raised(self.first.tail)
        kept = raised(str(self.cause.get("traceback") or ""))
        if found is None or (kept is not None and is_secondary(found.line) and not is_secondary(kept.line)):
            found = kept
        if self.signal in (None, "SIGABRT", "SIGINT"):
            return found
        # A launcher that ends its processes may end itself too, by the same signal.
        is_of_child = found is not None and is_launched(self.text) and not is_secondary(found.line)
        return found if is_of_child else None

    @property
    def code(self) -> int:
        """The exit code of that rank; a shell's 128 + N is read as −N, and so is what a launcher says of its child."""
        code = self.first.exit_code if self.first else None
        if self.first is not None and (number := launched_signal(self.first.tail)):
            return -number
        if code is None:
            return 0
        return 128 - code if code in (128 + 4, 128 + 6, 128 + 7, 128 + 9, 128 + 11) else code

    @property
    def signal(self) -> str | None:
        """The signal that ended that rank."""
        if self.code >= 0:
            return None
        try:
            return signal.Signals(-self.code).name
        except ValueError:
            return f"signal {-self.code}"

    @property
    def who(self) -> str:
        """`rank 1`; `the script` where there is one rank."""
        return self.name(self.first.rank if self.first else 0)

    def name(self, rank: int) -> str:
        """`rank 1`; `the script` where there is one rank."""
        return f"rank {rank}" if len(self.status.ranks) > 1 else "the script"

    def at(self, frame: Frame | None) -> str:
        """`train.py:12: x = y[3]`: a place with the line that stands there."""
        if frame is None:
            return ""
        source = self.seen.sources.get(frame.key, "").strip()
        return f"{frame.place}: {source}" if source else f"{frame.place} in {frame.name}"

    @cached_property
    def where(self) -> str:
        """Where in the script's own code that rank failed."""
        if self.raised is not None:
            return self.at(own_frame(self.raised.frames, self.seen.code_dir, innermost_first=False))
        _, stack = fatal_stack(self.text)
        return self.at(own_frame(stack, self.seen.code_dir, innermost_first=True))

    @cached_property
    def calls(self) -> dict[int, str]:
        """Where each rank that failed was in a collective: `rank 0: all_reduce, train.py:12: …`."""
        found = {}
        for seen in self.seen.ranks:
            error = raised(seen.tail)
            stack = tuple(reversed(error.frames)) if error else main_stack(seen.tail)
            if call := collective(stack, self.seen.sources):
                own = own_frame(stack, self.seen.code_dir, innermost_first=True)
                found[seen.rank] = f"{self.name(seen.rank)}: {call}, {self.at(own)}"
        return found

    @cached_property
    def pod_spec(self) -> Mapping[str, Any]:
        """The pods of the run as they were asked for; empty where the run takes place in no cluster."""
        steps = self.seen.plan.get("steps", ())
        return pod_spec(step["request"] for step in steps if step["kind"] in ("attempt-part", "attempt"))

    @property
    def container(self) -> Mapping[str, Any]:
        """The one container of these pods."""
        return next(iter(self.pod_spec.get("containers", ())), {})

    def node(self, rank: RankSeen) -> NodeSeen:
        """The node of a rank."""
        return next((node for node in self.seen.nodes if node.node == rank.node), NodeSeen(rank.node))

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the worker of the rank that failed first saw of its machine."""
        return self.node(self.first).facts if self.first else {}

    @cached_property
    def failures(self) -> tuple[RankSeen, ...]:
        """Ranks that failed by themselves."""
        return tuple(seen for seen in self.seen.ranks if seen.exit_code not in (None, 0) and not seen.ended_by_us)

    @cached_property
    def only_victims(self) -> bool:
        """Whether every rank that failed says no more than that a peer went away or did not answer."""
        return bool(self.failures) and all(
            is_victim({"exit_code": seen.exit_code, "tail": seen.tail}) for seen in self.failures
        )
