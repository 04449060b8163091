"""The record of a run in its cluster: events and status, in ConfigMaps that the run's owner ConfigMap owns.

    ConfigMap RUN-record      the head: the newest events, one per line; a summary of the status, as an annotation
    ConfigMap RUN-record-K    part K = 1, 2, … of the older events, compressed; never changed

Only the holder of the run's Lease writes the record. Each write carries the resource version of the head that was read,
so it cannot overwrite the head of another supervisor. If any other client changes or deletes the head, the supervisor
restores it.
"""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from windlass.engines.kubernetes.access import lease
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused
from windlass.engines.kubernetes.objects import labels, layout, manifests
from windlass.engines.kubernetes.objects.summary import LATEST, summary_in, summary_of
from windlass.errors import EngineError
from windlass.runs.events import Created, Event
from windlass.runs.record import CLUSTER, Status
from windlass.supervise.backend import HeldElsewhere

EVENTS: Final = "events"
PARTS: Final = "parts"
HEAD_BYTES: Final = 64 << 10
"""Maximum bytes of the events in the head; each write sends all of them."""
FIRST_PARTS: Final = 4
UNPACKED_BYTES: Final = 64 << 20
"""Maximum bytes of all parts after decompression; limits the memory that a part changed by another user can use."""
MAX_PARTS: Final = 256
"""Maximum number of parts that are kept, the first ones and the newest: about 16 MiB of events, compressed to a
tenth."""
Json = Mapping[str, Any]


class DamagedRecord(EngineError):
    """The record is invalid, because something other than a supervisor has changed it."""


@dataclass(frozen=True, slots=True)
class Head:
    """Head of a record: its newest events, a summary of its status, and its writer."""

    events: tuple[Event, ...]
    summary: Json
    """Summary of the status (`summary.py`); empty if the summary was damaged."""
    num_parts: int
    writer: str
    """Lease identity of the supervisor that wrote the head."""


class ClusterRecord:
    """Reader and writer of the record of one run. All methods raise Refused, Unreachable and DamagedRecord."""

    def __init__(self, client: Client, run_id: str, writer: str = "") -> None:
        """`writer` is the Lease identity of the supervisor that writes; empty for a reader."""
        self._client = client
        self._run_id = run_id
        self._writer = writer
        self._object: dict[str, Any] | None = None
        """ConfigMap of the head, as this writer last stored it; None if the ConfigMap may have changed since."""
        self._written: Head | None = None
        """Head that this writer last wrote; None before the first write."""

    def head(self) -> Head:
        """Reads the current head."""
        return head_of(self._get())

    def events(self, after: int = 0) -> list[Event]:
        """Returns the events with numbers above `after`, in order."""
        return self.read(after)[1]

    def read(self, after: int = 0) -> tuple[Head, list[Event]]:
        """Reads the head, and the events with numbers above `after`; skips parts without such events."""
        head = self.head()
        found = list(head.events)
        left = UNPACKED_BYTES
        for number in reversed(_kept(head.num_parts)):
            if found and found[0].seq <= after + 1:
                break
            text = self._part(number, left)
            left -= len(text)
            found = [*_parsed(layout.record_name(self._run_id, number), text), *found]
        # A failed write may have left events both in a new part and in the head.
        unique = {event.seq: event for event in found}
        if 1 in unique and not self._is_creation(unique[1]):
            raise _damaged(layout.record_name(self._run_id), f"its first event is not the creation of {self._run_id}")
        return head, [unique[seq] for seq in sorted(unique) if seq > after]

    def _is_creation(self, event: Event) -> bool:
        """Returns whether an event creates this run, with a supervisor in the cluster and outputs outside this machine.
        Any other record must not be copied to the local store.
        """
        first = event.entry
        if not isinstance(first, Created) or first.output_dir.startswith("/"):
            return False
        return (first.id, first.supervisor) == (self._run_id, CLUSTER)

    def _part(self, number: int, max_bytes: int) -> str:
        name = layout.record_name(self._run_id, number)
        part = self._client.get_if_exists("v1", "ConfigMap", name)
        return "" if part is None else unpacked(part, EVENTS, max_bytes)

    def write(self, added: Sequence[Event], status: Status, progress: Json) -> None:
        """Appends events, and sets the status after them, in one atomic update. May be repeated after an error.

        Raises HeldElsewhere if another supervisor has written since.
        """
        found = self._object or self._current()
        head = self._written or head_of(found)
        _require_same(head, added)
        last = head.events[-1].seq if head.events else 0
        events = (*head.events, *(event for event in added if event.seq > last))
        num_parts = head.num_parts
        if sum(map(len, map(_line, events))) > HEAD_BYTES and len(events) > 1:
            num_parts += 1
            self._create_part(num_parts, events[:-1])
            events = events[-1:]
        fresh = Head(events, summary_of(status, progress), num_parts, self._writer)
        self._object = None  # after an error, the next write reads the head again
        try:
            self._object = self._client.call("PUT", self._path, _with_head(found, fresh))
        except Refused as error:
            if self._written is None or error.status not in (404, 409):
                raise
            self._object = self._client.call("PUT", self._path, _with_head(self._current(), fresh))
        self._written = fresh

    def _current(self) -> dict[str, Any]:
        """Reads the head's ConfigMap, or creates it again if it was deleted.

        Raises HeldElsewhere if another supervisor has written the head, and Refused if the run was removed.
        """
        try:
            found = self._get()
        except Refused as error:
            if self._written is None or not error.is_absent(layout.record_name(self._run_id), "ConfigMap"):
                raise
            owner_config_map = self._client.get("v1", "ConfigMap", self._run_id)
            return self._client.create(head_manifest(owner_config_map, self._written))
        if self._written is not None and writer_of(found) != self._writer and not self._is_holder():
            raise HeldElsewhere("another supervisor has written the record of the run")
        return found

    def _is_holder(self) -> bool:
        """Returns whether this writer holds the run's Lease; no other supervisor can then have written the record."""
        try:
            return lease.is_held_by(self._client, self._run_id, self._writer)
        except Refused:
            return False

    def _get(self) -> dict[str, Any]:
        return self._client.get("v1", "ConfigMap", layout.record_name(self._run_id))

    @property
    def _path(self) -> str:
        return self._client.path("v1", "ConfigMap", layout.record_name(self._run_id))

    def _create_part(self, number: int, events: Iterable[Event]) -> None:
        owner_config_map = self._client.get("v1", "ConfigMap", self._run_id)
        part = _part_manifest(owner_config_map, number, events)
        if self._client.create_if_absent(part) is None:  # an earlier write failed after it created the part
            self._client.delete("v1", "ConfigMap", part["metadata"]["name"])
            self._client.create(part)
        if number > MAX_PARTS:
            old = layout.record_name(self._run_id, number - MAX_PARTS + FIRST_PARTS)
            self._client.delete("v1", "ConfigMap", old)


def head_manifest(owner_config_map: Json, head: Head) -> dict[str, Any]:
    """Returns the ConfigMap for a head, owned by the run's owner ConfigMap."""
    meta = owner_config_map["metadata"]
    its = labels.like(meta["labels"], labels.RECORD, **{layout.MARKER_LABEL: layout.RECORD})
    made = manifests.core("ConfigMap", layout.record_name(meta["name"]), meta["namespace"], its)
    return _with_head(manifests.owned(made, owner_config_map), head)


def _with_head(found: Json, head: Head) -> dict[str, Any]:
    notes = {
        layout.STATUS_ANNOTATION: json.dumps(head.summary, separators=(",", ":")),
        layout.WRITER_ANNOTATION: head.writer,
    }
    data = {EVENTS: "".join(map(_line, head.events)), PARTS: str(head.num_parts)}
    return {**found, "metadata": {**found["metadata"], "annotations": notes}, "data": data}


def _part_manifest(owner_config_map: Json, number: int, events: Iterable[Event]) -> dict[str, Any]:
    meta = owner_config_map["metadata"]
    # Lists of runs skip ConfigMaps with this label.
    its = labels.like(meta["labels"], labels.RECORD, **{layout.CODE_LABEL: layout.RECORD})
    data = {EVENTS: base64.b64encode(gzip.compress("".join(map(_line, events)).encode(), mtime=0)).decode()}
    name = layout.record_name(meta["name"], number)
    made = manifests.core("ConfigMap", name, meta["namespace"], its, binaryData=data, immutable=True)
    return manifests.owned(made, owner_config_map)


def head_of(found: Json) -> Head:
    """Parses the head in a ConfigMap. Raises DamagedRecord."""
    data = found.get("data") or {}
    name, num_parts = found["metadata"]["name"], data.get(PARTS) or "0"
    if not (num_parts.isascii() and num_parts.isdigit() and len(num_parts) < 10):
        raise _damaged(name, f"{PARTS} is '{num_parts[:20]}'")
    events = _parsed(name, data.get(EVENTS, ""))
    return Head(events, summary_in(found["metadata"]) or {}, int(num_parts), writer_of(found))


def writer_of(found: Json) -> str:
    """Returns the Lease identity of the supervisor that wrote the head in a ConfigMap."""
    return str((found["metadata"].get("annotations") or {}).get(layout.WRITER_ANNOTATION, ""))


def _kept(num_parts: int) -> list[int]:
    """Returns the numbers of the parts that are kept of `num_parts`: the first and the newest."""
    first = min(num_parts, FIRST_PARTS)
    return [*range(1, first + 1), *range(max(first, num_parts - MAX_PARTS + FIRST_PARTS) + 1, num_parts + 1)]


def _require_same(head: Head, added: Iterable[Event]) -> None:
    """Raises HeldElsewhere if the head has another event with the number of an added one, written by another
    supervisor.
    """
    known = {event.seq: _line(event) for event in head.events}
    if any(known.get(event.seq, line) != line for event in added for line in (_line(event),)):
        raise HeldElsewhere("another supervisor has written the record of the run")


def unpacked(found: Json, key: str, max_bytes: int) -> str:
    """Decompresses the value of a key in a ConfigMap, up to `max_bytes`. Raises DamagedRecord."""
    try:
        unpacker = zlib.decompressobj(wbits=31)
        # a max_length of 0 would mean no limit
        data = unpacker.decompress(base64.b64decode(found["binaryData"][key]), max(1, max_bytes))
        if unpacker.eof:
            return data.decode()
        problem = "is incomplete, or too large"
    except (KeyError, TypeError):
        problem = "is missing"
    except (ValueError, zlib.error):
        problem = "cannot be unpacked"
    raise _damaged(found["metadata"]["name"], f"{key} {problem}")


def _damaged(name: str, problem: str) -> DamagedRecord:
    run_id = name.partition(f"-{layout.RECORD}")[0].removesuffix("-supervisor")
    return DamagedRecord(
        f"ConfigMap {name} was changed, and cannot be read: {problem}",
        f"windlass stop ends its pods; to remove it: kubectl delete configmap {run_id}",
    )


def _line(event: Event) -> str:
    return json.dumps([event.seq, event.time, event.kind, event.data], separators=(",", ":")) + "\n"


def _parsed(name: str, text: str) -> tuple[Event, ...]:
    """Parses the events in the text of a ConfigMap with this name. Raises DamagedRecord."""
    return tuple(_event(name, line) for line in text.splitlines() if line)


def _event(name: str, line: str) -> Event:
    try:
        match json.loads(line):
            case [int(seq), int() | float() as time, str(kind), dict(data)] if (
                type(seq) is int and type(time) is not bool and 0 < seq < 1 << 53 and 0 <= time < LATEST
            ):
                return Event(seq, time, kind, data)
    except (ValueError, RecursionError):
        pass
    raise _damaged(name, f"'{line[:60]}' is no event")
