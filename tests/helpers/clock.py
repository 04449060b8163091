"""A clock that stands still until a test moves it."""

from __future__ import annotations


class Clock:
    """Returns `now`, in seconds."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Move it by as much."""
        self.now += seconds
