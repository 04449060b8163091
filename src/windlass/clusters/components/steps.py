"""Reports the progress of an installation, each change once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One reported step of an installation or removal."""

    component: str
    what: str
    """`apply`, `helm`, `recover`, `wait`, `ready`, `unchanged`, `delete`, `removed` or `kept`."""
    detail: str


Progress = Callable[[Step], None]


class Steps:
    """Reports the steps of one component. A wait is reported again only if its reason changes."""

    def __init__(self, component: str, progress: Progress) -> None:
        self._component = component
        self._progress = progress
        self._last: tuple[str, str] | None = None

    def say(self, what: str, detail: str) -> None:
        """Reports a step."""
        if (what, detail) != self._last:
            self._last = (what, detail)
            self._progress(Step(self._component, what, detail))
