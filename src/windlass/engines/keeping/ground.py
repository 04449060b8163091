"""What an engine gives to whoever keeps its runs: where attempts take place, and the nodes that play them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from windlass.engines.keeping.recording import Recording
from windlass.errors import EngineError
from windlass.plan.plan import Plan
from windlass.runs.store import Store


class NotNow(EngineError):
    """The target cannot be used now, and may be later: nothing that was asked of it is refused."""

    def __init__(self, kind: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.kind = kind
        """The type of the run's condition meanwhile: `LoginFailed`, `ClusterUnreachable`, `HolderUnknown`."""


class HeldElsewhere(EngineError):
    """Another supervisor holds the run: this one must not write, start or delete anything of it."""


class Node(Protocol):
    """One node of an attempt; what it has told is read by `Told`."""

    number: int
    ranks: tuple[int, ...]
    failures: list[dict[str, Any]]
    ended: bool
    lost: bool
    begun: bool
    alone: tuple[int, ...]
    not_started: bool
    pid: int | None
    start_ticks: int

    @property
    def over(self) -> bool:
        """Whether nothing more will come of it."""

    @property
    def exit_code(self) -> int:
        """How it ended, if it died without a word."""

    def news(self) -> Iterator[dict[str, Any]]:
        """What it has said since the last call."""

    def lives(self) -> bool:
        """Whether it may say more than is there to be read."""

    def send(self, number: signal.Signals) -> None:
        """Signal it, if it lives."""

    def sweep(self) -> None:
        """End whatever has outlived it."""

    def last_words(self) -> str:
        """What is known of its end, which is nothing unless it broke."""


class Attempt(Protocol):
    """All nodes of one attempt."""

    folder: Path
    refusals: list[str]
    """Why nodes that were to start warm did not."""

    @property
    def nodes(self) -> Sequence[Node]:
        """Its nodes, by place."""

    @property
    def over(self) -> bool:
        """Whether all nodes have ended."""

    @property
    def is_taken_back(self) -> bool:
        """Whether whoever grants machines has taken all of them back: its ranks then end for no fault of theirs."""

    @property
    def is_past_deadline(self) -> bool:
        """Whether the target itself has ended it because the job's time limit was over."""

    def live_nodes(self) -> Sequence[Node]:
        """Nodes that have not ended."""

    def send(self, number: signal.Signals) -> None:
        """Signal every live node."""

    def kill(self) -> None:
        """End every live node with all that it has started."""

    def failures(self) -> list[dict[str, Any]]:
        """Of all nodes, what `blame` needs."""

    def last_sign_of_life(self) -> float:
        """When any of its files was last written, in unix seconds; 0 where there is none."""

    def close(self) -> None:
        """It is over: give back what was held for it."""


class Ground(Protocol):
    """Where the attempts of one run take place."""

    outlives_supervisor: bool
    """Whether nodes go on where the machine of the supervisor goes down."""

    def hold(self) -> bool:
        """Make sure that no other supervisor acts for the run; False while that is not known yet.

        Raises NotNow, HeldElsewhere.
        """

    @property
    def is_lost_to_another(self) -> bool:
        """Whether another supervisor has taken the run over."""

    def is_started(self, folder: Path) -> bool:
        """Whether the attempt with this folder, which the record knows, was started; else it may be started again."""

    def start(self, record: Recording, folder: Path, number: int, members: Sequence[int], wake: int) -> Attempt:
        """Start the nodes that take part; a byte is written to `wake` whenever one says something.

        `folder` is the attempt's, in that of the run. Raises EngineError, OSError, and NotNow where the same may be
        asked for again.
        """

    def adopt(self, folder: Path, number: int, members: Sequence[int], wake: int) -> Attempt:
        """The attempt that another keeper has started. Raises EngineError."""

    def unplugged(self) -> set[int]:
        """Nodes that are known not to be reachable now."""

    def trouble(self) -> NotNow | None:
        """Why the target cannot be asked about the attempt now; None while it can."""

    def lives(self) -> bool:
        """Whether anything of the run still works, or might: where the target does not answer, it does."""

    def clear(self, record: Recording) -> None:
        """The run is about to end: remove what outlives its attempts, as far as it cannot fail or take long."""

    def finish(self, record: Recording, *, is_patient: bool = True) -> None:
        """The end is recorded: clean up the rest, and record what could not be cleaned up.

        Tries again for a bounded time if `is_patient`, else once.
        """

    def see_off(self, store: Store) -> None:
        """The run's keeper holds it no longer: see what goes of itself after its end, as long as that takes."""


GroundOf = Callable[[Plan, Path], Ground]
"""Makes the ground of a run, from its plan and its folder."""
Request = Mapping[str, Any]
