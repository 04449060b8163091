"""What an engine gives to whoever keeps its runs: where attempts take place, and the nodes that play them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from windlass.engines.keeping.recording import Recording
from windlass.plan.plan import Plan
from windlass.runs.store import Store


class Node(Protocol):
    """One node of an attempt; what it has told is read by `Told`."""

    number: int
    ranks: tuple[int, ...]
    failures: list[dict[str, Any]]
    ended: bool
    lost: bool
    begun: bool
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

    def start(self, record: Recording, folder: Path, number: int, members: Sequence[int], wake: int) -> Attempt:
        """Start the nodes that take part; a byte is written to `wake` whenever one says something.

        `folder` is the attempt's, in that of the run. Raises EngineError, OSError.
        """

    def adopt(self, folder: Path, number: int, members: Sequence[int], wake: int) -> Attempt:
        """The attempt that another keeper has started. Raises EngineError."""

    def unplugged(self) -> set[int]:
        """Nodes that are known not to be reachable now."""

    def clear(self, record: Recording) -> None:
        """The run ends: remove what outlives its attempts."""

    def see_off(self, store: Store) -> None:
        """The run's keeper holds it no longer: see what goes of itself after its end, as long as that takes."""


GroundOf = Callable[[Plan, Path], Ground]
"""Makes the ground of a run, from its plan and its folder."""
Request = Mapping[str, Any]
