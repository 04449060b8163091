"""What ranks need to have to reach the stores that a job names. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from windlass.plan.plan import Note
from windlass.stores.gs_az import INSTALL

if TYPE_CHECKING:
    from windlass.spec.job import Job


def image_notes(job: Job) -> Iterator[Note]:
    """What the image of the job needs to have."""
    if address := next(job.obstore_addresses(), ""):
        message = f"ranks reach {address} by obstore, which the image of the job needs to have"
        yield Note("ranks-obstore", message, f"{INSTALL} in it, or by setup:")
