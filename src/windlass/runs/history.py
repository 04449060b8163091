"""Follows the steps and checkpoints of a run over its attempts: what is lost, what is made up for, what helped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from windlass.runs.record import Event

LONG_SECONDS: Final = 600.0
"""An attempt that lived so long is no failed start, whatever its script tells."""
NO_PROGRESS: Final = ("adopted", "condition", "warning")
"""Events that a supervisor may record before it crashes again: they do not show that it works."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How one attempt ended, as far as what follows depends on it."""

    reason: str
    step: int | None
    """The highest step that is known of it."""
    way: str | None
    """What would make it the same death again: the line of an exception, or a fatal signal."""
    gained: bool
    """Whether it has come further than all before it: a new checkpoint, a higher step, or where none is told, time."""


@dataclass(slots=True)
class Going:
    """What is known of the attempt that goes on."""

    began_at: float = 0.0
    """Unix seconds."""
    restored: int | None = None
    """The step of the checkpoint that it went on from."""
    first: int | None = None
    """The first step that it reported."""
    last: int | None = None
    highest: int | None = None
    saved: bool = False
    caught_up: bool = False
    """Whether it has made up for what was lost, or has nothing to make up for."""
    is_global: bool = True
    """False once a step was lower than the one before: a count that begins anew with each epoch tells nothing."""
    first_step_of: int | None = None
    """The rank whose first step is known exactly."""
    restored_by: Mapping[str, Any] | None = None
    """The event of the checkpoint that it went on from, of Windlass or as the script has logged it."""

    def is_news_of_restore(self, logged: Mapping[str, Any]) -> bool:
        """Whether a restore that the script has logged adds to what is known: it is the first, or names more."""
        known = self.restored_by
        if known is None:
            return True
        return known.get("source") == "log" and "step" in logged and "step" not in known

    @property
    def step(self) -> int | None:
        """The step that it has come to; None where it is not known."""
        known = [step for step in (self.highest, self.restored) if step is not None]
        return max(known) if known and self.is_global else None


@dataclass(slots=True)
class History:
    """The attempts of a run so far."""

    ended: list[Ended] = field(default_factory=list)
    """Attempts since the run began or was last resumed."""
    highest: int | None = None
    """The highest step that any ended attempt has come to."""
    restarts_left: int | None = None
    """None as long as none of the job's restarts was used."""
    now: Going = field(default_factory=Going)
    obeyed: list[tuple[str, str]] = field(default_factory=list)
    """Action and time of each notice from the machine's metadata."""
    taken_up_at: float = 0.0
    """When a supervisor last took the run up, in unix seconds."""
    take_ups: int = 0
    """How often a supervisor has taken the run up since anything else was last recorded."""
    crashes: list[float] = field(default_factory=list)
    """When supervisors crashed after which nothing else was recorded, in unix seconds."""
    _way: str | None = None

    @classmethod
    def of(cls, events: Iterable[Event]) -> History:
        """What the events of a run tell."""
        history = cls()
        for event in events:
            history.take(event.kind, event.data, event.time)
        return history

    def take(self, kind: str, data: Mapping[str, Any], at: float = 0.0) -> None:
        """One more event of the record, seen at `at` in unix seconds."""
        if kind == "adopted":
            self._take_up(data, at)
        elif kind not in NO_PROGRESS:
            self.take_ups = 0
            self.crashes.clear()
        if kind == "attempt":
            self.now, self._way = Going(began_at=at), None
        elif kind == "progress" and isinstance(data.get("step"), int):
            self.now.highest = max(self.now.highest or 0, data["step"])
        elif kind == "checkpoint":
            self._take_checkpoint(data)
        elif kind == "first-step":
            self.now.first_step_of = data.get("rank")
        elif kind == "caught-up":
            self.now.caught_up = True
        elif kind == "cause":
            self._way = way(data)
        elif kind == "attempt-end":
            self._end(str(data.get("reason", "failure")), data.get("step"), data.get("died_at", at))
            self.restarts_left = data.get("restarts_left", self.restarts_left)
        elif kind == "end":
            self._end(str(data.get("reason", "")), data.get("step"), data.get("died_at", at))
        elif kind == "resume":
            self.ended.clear()
            self.restarts_left = None
        elif kind == "notice" and data.get("source") == "imds":
            self.obeyed.append((str(data.get("action")), str(data.get("time"))))

    def _take_up(self, data: Mapping[str, Any], at: float) -> None:
        self.take_ups += 1
        self.taken_up_at = at
        if "crash" in data:
            self.crashes.append(float(data.get("crashed_at", at)))

    def _take_checkpoint(self, data: Mapping[str, Any]) -> None:
        if data.get("action") == "saved":
            self.now.saved = True
            self.now.highest = max(self.now.highest or 0, int(data.get("step") or 0))
        elif data.get("action") == "restored":
            self.now.restored_by = data
            if data.get("source") == "log":
                return  # where it went on, its steps tell: see `Tally`
            self.now.restored = data.get("step")  # unknown where a file of the script's own was restored

    def reach(self, step: int) -> bool:
        """The attempt that goes on is at this step; gives whether it has just made up for what was lost."""
        now = self.now
        if now.last is not None and step < now.last:
            now.is_global = False
        now.first = step if now.first is None else now.first
        now.last = step
        now.highest = max(now.highest or 0, step)
        if now.caught_up or not now.is_global or self.highest is None or step < self.highest:
            return False
        now.caught_up = True
        # A script that restores for itself says only by its first step where it went on.
        return now.restored < self.highest if now.restored is not None else now.first <= self.highest

    def ending(self, reason: str, cause: Mapping[str, Any] | None, at: float = 0.0) -> Ended:
        """The attempt that goes on, as it would have ended at `at`."""
        return self._ended(reason, self.now.step, way(cause) if cause else None, at)

    def _end(self, reason: str, step: int | None, at: float) -> None:
        ended = self._ended(reason, step, self._way, at)
        self.ended.append(ended)
        if step is not None:
            self.highest = max(self.highest or 0, step)
        self.now, self._way = Going(), None

    def _ended(self, reason: str, step: int | None, way_: str | None, at: float) -> Ended:
        if step is None:
            further = at - self.now.began_at >= LONG_SECONDS
        else:
            further = self.highest is None or step > self.highest
        return Ended(reason, step, way_, self.now.saved or further)


def way(cause: Mapping[str, Any]) -> str | None:
    """What would make another death the same one; None where a cause is anybody's: a kill, a peer that is gone."""
    name = cause.get("signal")
    if name in ("SIGKILL", "SIGTERM") or cause.get("blames_peer"):
        return None
    return str(name) if name else str(cause["summary"]) if cause.get("traceback") else None
