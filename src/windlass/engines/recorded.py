"""Engine of runs elsewhere whose record cannot be written: shows them as recorded, and asks nothing of their target."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from windlass.engines.base import Engine
from windlass.errors import UsageError
from windlass.runs.record import Status

if TYPE_CHECKING:
    from windlass.engines.values import ResultsLocation


class RecordedEngine(Engine):
    """Runs on clusters and accounts, by a record of which nothing may be more than read.

    A record of another user is not trusted: no login that it names is used.
    """

    kind: ClassVar[str] = "recorded"
    is_remote: ClassVar[bool] = True

    def status(self, run_id: str) -> Status:
        """See `Engine`: as recorded."""
        return self.store.status(run_id)

    def results(self, run_id: str) -> ResultsLocation:
        """See `Engine`: refused."""
        raise self.unsupported("artifacts")

    @classmethod
    def unsupported(cls, command: str) -> UsageError:
        """See `Engine`."""
        return UsageError(
            f"{command} of a run elsewhere needs a record that this process can write",
            "copy its folder, and set WINDLASS_HOME to the copy",
        )
