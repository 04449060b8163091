"""Engine for remote runs whose record cannot be written: shows runs as recorded, and never connects to their target."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from windlass.compat import override
from windlass.engines.base import Engine
from windlass.errors import UsageError
from windlass.runs.record import Status

if TYPE_CHECKING:
    from windlass.engines.values import ResultsLocation


class RecordedEngine(Engine):
    """Runs on clusters and accounts with a read-only record.

    The record may belong to another user and is not trusted: no login that it names is used.
    """

    kind: ClassVar[str] = "recorded"
    is_remote: ClassVar[bool] = True

    def status(self, run_id: str) -> Status:
        """Returns the recorded status."""
        return self.store.status(run_id)

    def results(self, run_id: str) -> ResultsLocation:
        """Raises UsageError, because the location of results may need the target."""
        raise self.unsupported("artifacts")

    @classmethod
    @override
    def unsupported(cls, command: str) -> UsageError:
        return UsageError(
            f"{command} of a run elsewhere needs a record that this process can write",
            "copy its folder, and set WINDLASS_HOME to the copy",
        )
