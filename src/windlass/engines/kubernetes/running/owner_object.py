"""Reads the owner object of an attempt's pods: whether it will still create pods, and why not."""

from __future__ import annotations

from collections.abc import Callable, Collection

from windlass.engines.kubernetes.access.absence import Absence
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused
from windlass.engines.kubernetes.objects.object_reports import ends_of, finished_indexes, why_over
from windlass.engines.kubernetes.objects.observations import ObjectReport, QueueStatus
from windlass.engines.kubernetes.objects.pods import Pod
from windlass.engines.kubernetes.reading.admission import is_suspended
from windlass.engines.kubernetes.reading.kueue import evicted


class OwnerObject:
    """State of the Job, JobSet or other object that creates an attempt's pods, as last read."""

    def __init__(self, client: Client, api: str, kind: str, name: str, listen: Callable[[], None]) -> None:
        """`listen` is called before each read."""
        self._client = client
        self._api, self._kind = api, kind
        self.name = name
        self._listen = listen
        self._absence = Absence()
        self._is_deleted = False
        """Whether `end` has deleted the object."""
        self.is_absent = False
        """Whether the object was missing at the last read."""
        self.over: str | None = None
        """Why the object will create no more pods; None while it still may."""
        self.ends: list[ObjectReport] = []
        """Reports, for the run's record, of why the object has ended."""
        self.finished: frozenset[int] = frozenset()
        """Completion indexes of pods that the object will not create again."""
        self.is_suspended = False
        self.eviction: QueueStatus | None = None
        """Queue status with the reason for a suspension after the creation of pods, which deletes the pods; None
        without such a suspension."""

    def read(self, pods: Collection[Pod]) -> None:
        """Reads the object; `pods` are its observed pods. Raises EngineError."""
        self._listen()
        if self._is_deleted:
            return
        try:
            found = self._client.get(self._api, self._kind, self.name)
        except Refused as error:
            self._take_absence(pods, is_absent=error.is_absent(self.name, self._kind))
            return
        self._take_absence(pods, is_absent=False)
        self.ends = list(ends_of(found, self._kind, self.name))
        self.finished = finished_indexes(found)
        self.is_suspended = is_suspended(found)
        if self.is_suspended and pods and self.eviction is None:
            self.eviction = evicted(self._client, found)
        if why := why_over(found):
            self.over = f"{self._kind} {self.name} is {why}"

    def end(self) -> None:
        """Deletes the object before it has created all pods. Raises EngineError."""
        self._is_deleted = True
        self._client.delete(self._api, self._kind, self.name)
        self.over = f"{self._kind} {self.name} was deleted before it had made all pods"

    def _take_absence(self, pods: Collection[Pod], *, is_absent: bool) -> None:
        """Records whether the object is missing. The object counts as removed once it was missing for some seconds, or
        if its pods are being deleted too.
        """
        is_removed = self._absence.is_confirmed(is_absent=is_absent)
        self.is_absent = is_absent
        if not is_absent:
            return
        if is_removed:
            self.over = f"{self._kind} {self.name} was deleted"
        if is_removed or any("deletionTimestamp" in pod["metadata"] for pod in pods):
            self.ends = list(ends_of(None, self._kind, self.name))
