"""The clock of tests: its time passes only where a test, or the code under test, makes it pass."""

from __future__ import annotations

from collections.abc import Callable

from windlass.runs.clock import Clock

START = 1000.0
"""The time at which a clock begins, in unix seconds."""


class FakeClock(Clock):
    """Passes by the seconds of each wait; its times are `now`, except the processor time, which is `cpu`."""

    def __init__(self, now: float = START) -> None:
        super().__init__()
        self.now = self.began = now
        self.cpu = 0.0
        self.jumped = 0.0
        """Seconds by which the wall time alone has jumped: the machine was suspended, or its clock set."""
        self.waits: list[float] = []
        """Seconds of each wait."""
        self._due: list[tuple[float, Callable[[], object]]] = []

    def at(self, seconds: float, do: Callable[[], object]) -> None:
        """Do something so many seconds after the beginning, during a wait."""
        self._due.append((self.began + seconds, do))

    def time(self) -> float:
        return self.now + self.jumped

    def monotonic(self) -> float:
        return self.now

    def boottime(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.cpu

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        assert len(self.waits) < 100_000, "the code under test waits for something that never happens"
        until = self.now + max(seconds, 0.001)
        while due := [one for one in self._due if one[0] <= until]:
            first = min(due, key=lambda one: one[0])
            self._due.remove(first)
            self.now = max(self.now, first[0])
            first[1]()
        self.now = until

    def sleep(self, seconds: float) -> None:
        """The same as `wait`, where this clock is in place of the module `time`: in packages that travel."""
        self.wait(seconds)

    def wake(self) -> None:
        """Each wait ends by itself."""

    def fileno(self) -> int:
        raise AssertionError("no process wakes a fake clock")


class BriefClock(Clock):
    """The real time, with waits of at most so many seconds."""

    def __init__(self, longest: float) -> None:
        super().__init__()
        self._longest = longest

    def wait(self, seconds: float) -> None:
        super().wait(min(seconds, self._longest))
