"""Warns of a time limit that would end a run before its script saves anything. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from windlass.plan.plan import Note

if TYPE_CHECKING:
    from windlass.spec.job import Job


def time_limit(job: Job, saves_at_end: str) -> Iterator[Note]:
    """The warning. `saves_at_end` is where the script saves for the first time, after its loops; else empty."""
    if job.timeout is not None and saves_at_end:
        yield Note(
            "timeout-unsaved",
            f"timeout: the script saves only after its loops have ended ({saves_at_end}), so that a run that reaches "
            f"the limit of {job.timeout:g} s leaves no result",
            "save in the loop too (windlass.train.Checkpoint also saves on SIGTERM), or raise timeout:",
        )
