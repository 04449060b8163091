"""Hang detection: dumps the stacks of ranks that have been silent for long, and decides whether they hang."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from windlass.runs.clock import Clock
from windlass.runs.events import HangDetected, HangEnded, RootCause
from windlass.runs.restart_policy import may_restart
from windlass.supervise.backend import Attempt, Intent, Node
from windlass.supervise.recorder import Recorder
from windlass.worker.protocol import INDEX_RECORD, StacksTaken

if TYPE_CHECKING:
    from windlass.plan.plan import Policy

ANSWER_SECONDS: Final = 3.0
"""Seconds that ranks may take to write their stacks. Output within this time is not a sign of life."""
LOOKS: Final = 20
"""Number of log checks during the period of silence that counts as a hang."""
MIN_LOOK_SECONDS: Final = 0.2
DUMP_BEFORE_END_SECONDS: Final = {"timeout": 1.0, "stop": 5.0}
"""Silence in seconds from which the stacks of ranks are dumped before the supervisor ends an attempt."""
JUMP_SECONDS: Final = 5.0
"""Difference in seconds between wall and monotonic time from which the machine was suspended or its clock set."""
_RECORDS: Final = 4096
"""Maximum number of index records to read, counted from the end."""


class HangDetector:
    """Hang detector of one attempt. Silence is measured once all nodes of the attempt have started."""

    def __init__(self, attempt: Attempt, record: Recorder, policy: Policy, clock: Clock) -> None:
        self._attempt = attempt
        self._record = record
        self._policy = policy
        self._clock = clock
        ranks = [rank for node in attempt.nodes for rank in node.ranks]
        self._silence = Silence(attempt.folder, ranks, policy.hang_seconds, clock)
        self._stacks_from: set[int] | None = None
        """Nodes whose stacks must arrive before the attempt ends as hung; None if no such end is planned."""
        self._stacks_until = 0.0
        self._dumped_for = ""
        """Why stacks were requested: `silence`, `timeout`, `stop` or `failure`."""

    def turn(self, *, is_observed: bool) -> bool:
        """Dumps stacks if the ranks are silent for too long. Time in which they are not observed does not count.

        Returns whether to end the attempt now as hung: the stacks have arrived, and the policy restarts hung jobs.
        """
        self._note_end()
        if not is_observed or self._silence.has_jumped():
            self._silence.count_anew()
            self._stacks_from = None
        is_waiting = any(not node.begun for node in self._attempt.live_nodes())
        if is_waiting or not self._attempt.training_nodes():
            self._silence.begin()  # nodes may wait for hours for a queue, an image or results
        if self._silence.is_hang():
            self.dump("silence")
            if may_restart("hang", self._record.history, self._policy):
                self._stacks_from = {node.number for node in self._attempt.live_nodes()}
                self._stacks_until = self._clock.monotonic() + ANSWER_SECONDS
        if self._stacks_from is not None and (not self._stacks_from or self._clock.monotonic() >= self._stacks_until):
            self._stacks_from = None
            return self._silence.is_long
        return False

    def dump(self, reason: str, besides: Node | None = None) -> None:
        """Requests the stacks of all ranks, or of the ranks of all nodes except `besides`."""
        self._dumped_for = reason
        self._silence.dumped()
        for node in self._attempt.live_nodes():
            if node is not besides:
                node.send(Intent.DUMP_STACKS)

    def dump_before_end(self, reason: str) -> None:
        """Dumps the stacks of silent ranks before the attempt is ended for `reason`."""
        enough = DUMP_BEFORE_END_SECONDS.get(reason)
        if enough is not None and self._silence.seconds >= enough + self._attempt.output_lag_seconds:
            self.dump(reason)

    def take_stacks(self, node: Node, event: StacksTaken) -> None:
        """Records the stacks of one node's ranks. Stacks of several nodes in one silence have the same `since`."""
        since, at = self._silence.since, event.at
        data = {
            "node": node.number,
            "reason": self._dumped_for or "failure",
            "since": round(since, 3),
            "seconds": round(at - since, 3),
            **event.data(),
        }
        if not self._record.is_recorded(at):
            self._record.note(HangDetected.from_json(data), at=at)
        self._silence.answered(node.ranks)
        if self._stacks_from is not None:
            self._stacks_from.discard(node.number)

    def cause(self, found: RootCause) -> RootCause:
        """Returns the root cause of an attempt that ended as hung: the hang, and not the killed ranks."""
        seconds = max(self._silence.seconds, self._record.history.now.silent_seconds)
        summary = f"hung: no rank wrote anything for {seconds:.0f} s"
        return RootCause(summary, exit_code=found.exit_code)

    def _note_end(self) -> None:
        over = self._silence.over()
        if over is not None:
            self._stacks_from = None
            self._record.note(over)


class Silence:
    """Measures how long no rank of an attempt has written output. All nodes count, because often only rank 0 prints."""

    def __init__(self, folder: Path, ranks: Sequence[int], hang_seconds: float | None, clock: Clock) -> None:
        self._paths = {rank: folder / f"rank-{rank}.log" for rank in ranks}
        self._hang_seconds = hang_seconds
        self._clock = clock
        self._bytes = dict.fromkeys(ranks, 0)
        self._counted_from = self._looked_at = clock.monotonic()
        """Start of the silence that counts, by the monotonic clock: neither suspends nor clock changes lengthen it."""
        self._wall_offset = clock.time() - clock.monotonic()
        self._is_dumped = False
        """Whether stacks were dumped in the silence that counts."""
        self._dumped_at: float | None = None
        """When stacks were dumped since the last output, in Unix seconds."""
        self._waits_until = 0.0
        """Time until which new output may be the requested stacks."""
        self._awaited: set[int] = set()
        """Ranks whose stacks have not arrived; nodes send stacks one by one."""
        self._over: HangEnded | None = None
        self.since = clock.time()
        """Start of the silence (last sign of life) in Unix seconds."""

    def begin(self) -> None:
        """Restarts the measurement, so that earlier silence does not count."""
        self.since, self._counted_from = self._clock.time(), self._clock.monotonic()

    def count_anew(self) -> None:
        """Counts no silence so far, because output may exist that could not be read. The silence itself continues."""
        self._counted_from, self._is_dumped = self._clock.monotonic(), False

    def has_jumped(self) -> bool:
        """Whether the machine was suspended, or its clock set, since the last call."""
        before, self._wall_offset = self._wall_offset, self._clock.time() - self._clock.monotonic()
        return abs(self._wall_offset - before) >= JUMP_SECONDS

    @property
    def seconds(self) -> float:
        """Seconds without output in which output could be read."""
        self._look()
        return self._clock.monotonic() - self._counted_from

    @property
    def is_long(self) -> bool:
        """Whether the silence continues and is long enough to count as a hang."""
        return self._hang_seconds is not None and self.seconds >= self._hang_seconds

    def is_hang(self) -> bool:
        """Whether to dump stacks now, because the silence has just become long enough to count as a hang."""
        if not self._is_due() or not self.is_long or self._is_dumped:
            return False
        self.dumped()
        return True

    def dumped(self) -> None:
        """Records that stacks are being dumped now."""
        self._is_dumped, self._dumped_at = True, self._clock.time()
        self._waits_until = self._dumped_at + ANSWER_SECONDS
        self._awaited = set(self._paths)

    def answered(self, ranks: Iterable[int]) -> None:
        """Records that stacks of these ranks have arrived. Later output of the ranks is a sign of life."""
        for rank in self._paths.keys() & set(ranks):
            self._bytes[rank] = _size(self._paths[rank])
            self._awaited.discard(rank)
        if not self._awaited:
            self._waits_until = 0.0

    def over(self) -> HangEnded | None:
        """Returns the event for the end of a silence that was long enough for a hang, once; otherwise None."""
        if self._dumped_at is not None and self._clock.monotonic() - self._looked_at >= MIN_LOOK_SECONDS:
            self._look()
        found, self._over = self._over, None
        return found

    def _is_due(self) -> bool:
        """Whether a check is due. Checks are rare enough to cost nothing."""
        if self._hang_seconds is None:
            return False
        now = self._clock.monotonic()
        # After a dump, `over` looks often anyway.
        pause = 0.0 if self._dumped_at is not None else max(MIN_LOOK_SECONDS, self._hang_seconds / LOOKS)
        return now - self._counted_from >= self._hang_seconds and now - self._looked_at >= pause

    def _look(self) -> None:
        now, self._looked_at = self._clock.time(), self._clock.monotonic()
        before = dict(self._bytes)
        for rank, path in self._paths.items():
            self._bytes[rank] = _size(path)
        grown = [rank for rank, size in self._bytes.items() if size > before[rank]]
        if not grown or now < self._waits_until:
            return
        if self._dumped_at is not None and self._hang_seconds is not None:
            at = min(_first_after(self._paths[rank], before[rank], now) for rank in grown)
            if at - self.since >= self._hang_seconds:
                seconds = round(at - self.since, 3)
                self._over = HangEnded(since=round(self.since, 3), at=round(at, 3), seconds=seconds)
        self._dumped_at, self._is_dumped = None, False
        self.since = min(now, max(_written_at(self._paths[rank], now) for rank in grown))
        self._counted_from = max(self._counted_from, self._looked_at - (now - self.since))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _written_at(path: Path, otherwise: float) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return otherwise


def _first_after(log: Path, length: int, otherwise: float) -> float:
    """Returns when a log first exceeded `length` bytes, in Unix seconds."""
    try:
        with open(log.with_suffix(".idx"), "rb") as file:
            end = file.seek(0, os.SEEK_END) // INDEX_RECORD.size
            file.seek(max(0, end - _RECORDS) * INDEX_RECORD.size)
            data = file.read(_RECORDS * INDEX_RECORD.size)
    except OSError:
        return otherwise
    complete = len(data) // INDEX_RECORD.size * INDEX_RECORD.size
    return next(
        (time_ns / 1e9 for time_ns, end in INDEX_RECORD.iter_unpack(data[:complete]) if end > length), otherwise
    )
