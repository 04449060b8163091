"""Converts the progress in the printed lines of a rank to points of metrics, with steps that grow over the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_NAMES = ("loss", "samples_per_second")
LINES_PER_SECOND = 200
"""Maximum number of lines of a rank per second that are all read; beyond it, only the newest progress is. Reading a
line takes 20 to 100 µs, and more than 100 points of a series per second are thinned anyway."""


class LineBudget:
    """Counts the lines that a rank prints, so that a rank that prints too many does not slow its node."""

    def __init__(self) -> None:
        self._began_at = 0.0
        """Unix seconds since which lines are counted."""
        self._num_lines = 0

    def allows(self, num_lines: int, at: float) -> bool:
        """Counts lines that arrived at `at`, in Unix seconds. Returns whether all may be read."""
        if not 0 <= at - self._began_at < 1:
            self._began_at, self._num_lines = at, 0
        self._num_lines += num_lines
        return self._num_lines <= LINES_PER_SECOND


class LogPoints:
    """Reads the progress of printed lines in their order."""

    def __init__(self) -> None:
        self._step: int | None = None
        """Newest printed step, of the run or of the epoch."""
        self._total: int | None = None
        self._epoch: Any = None
        self._epoch_of_step: Any = None
        """Epoch of the newest line, and of the newest line with a step."""
        self._before = 0
        """Steps of the epochs before the current one, if the script counts the steps of each epoch."""
        self._newest: dict[str, tuple[Any, Any]] = {}
        """Step and value of each metric's newest point."""

    def take(self, fields: Mapping[str, Any], reported_step: int | None) -> Iterator[tuple[str, Any, Any]]:
        """Yields name, step and value of each metric in a line's fields (see `Recogniser.feed`).

        The step is `reported_step`, if the rank reports steps, else the newest printed one, else the epoch. A progress
        bar that is drawn again without new values yields nothing.
        """
        self._follow(fields)
        step = self._epoch if self._step is None else self._before + self._step
        for name, value in values_of(fields):
            point = (step if reported_step is None else reported_step, value)
            if self._newest.get(name) != point:
                self._newest[name] = point
                yield name, *point

    def has(self, name: str) -> bool:
        """Whether any line so far had a value of this metric."""
        return name in self._newest

    def _follow(self, fields: Mapping[str, Any]) -> None:
        step, total = fields.get("step"), fields.get("total")
        epoch = fields.get("epoch")
        self._epoch = epoch if isinstance(epoch, (int, float)) else self._epoch  # it may be the text "nan"
        if step is None or self._is_other_bar(fields):
            return
        if self._step is not None and step < self._step:
            is_new_epoch = None not in (self._epoch, self._epoch_of_step) and self._epoch > self._epoch_of_step
            if is_new_epoch or self._step == self._total:
                self._before += self._step if self._total is None else self._total
        self._step, self._epoch_of_step = step, self._epoch
        self._total = self._total if total is None else total

    def _is_other_bar(self, fields: Mapping[str, Any]) -> bool:
        """Whether the step is that of an evaluation, for which the Trainer of transformers draws the same bar."""
        return "loss" not in fields and self._total not in (None, fields.get("total"))


def values_of(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields name and value of each metric in the fields of a line or a post."""
    for name in _NAMES:
        if fields.get(name) is not None:
            yield name, fields[name]
    yield from (fields.get("metrics") or {}).items()
