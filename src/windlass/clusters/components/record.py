"""The record of a component in its cluster: a ConfigMap that is written before any object is applied."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from windlass.clusters.components.component import COMPONENT_LABEL, SYSTEM
from windlass.clusters.components.resources import Ref, Resources
from windlass.engines.kubernetes.objects import labels
from windlass.errors import EngineError
from windlass.runs.machine import this_machine
from windlass.worker import process

State = Literal["installing", "installed", "removing"]
PREFIX: Final = "windlass-component-"


@dataclass(frozen=True, slots=True)
class Worker:
    """A process that installs or removes a component."""

    machine: str
    host: str
    pid: int
    start_ticks: int
    boot: str

    @classmethod
    def here(cls) -> Worker:
        """Returns the current process."""
        machine, found = this_machine(os.environ), process.stat(os.getpid())
        return cls(machine.id, machine.host, os.getpid(), found.start_ticks if found else 0, process.boot_id())

    def is_running(self, other: Worker) -> bool | None:
        """Whether `other` is a running process on this machine; None if it is on another machine."""
        if other.machine != self.machine:
            return None
        if other == self:
            return False
        return process.is_same(other.pid, other.start_ticks, other.boot)


@dataclass(frozen=True, slots=True)
class Record:
    """State of a component in a cluster."""

    component: str
    version: str
    """Version that is installed or being installed."""
    state: State
    namespace: str
    is_release: bool
    """Whether helm installs the component, as a release with the component's name."""
    digest: str
    """Digest of the version and the whole configuration."""
    content: str
    """SHA-256 of the chart's archive or the manifests, to which the version is pinned; empty for generated objects and
    unpacked charts."""
    objects: tuple[Ref, ...]
    """Objects that were or may have been applied, in order of creation; objects of a Helm release are not listed."""
    worker: Worker
    since: float
    """Time of the last change of state in Unix seconds."""

    def with_state(self, state: State, now: float) -> Record:
        """Returns a copy with another state."""
        return replace(self, state=state, worker=Worker.here(), since=now)


class Records:
    """Component records of a cluster. The methods raise Refused, Unreachable and EngineError."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources

    def all(self) -> dict[str, Record]:
        """Returns all records by component."""
        found = self._resources.list("v1", "ConfigMap", COMPONENT_LABEL, SYSTEM)
        read = (_read(one) for one in found if str(one["metadata"]["name"]).startswith(PREFIX))
        return {one.component: one for one in read}

    def find(self, component: str) -> Record | None:
        """Returns the record of a component; None if it is not installed."""
        found = self._resources.get(_ref(component))
        return None if found is None else _read(found)

    def write(self, record: Record) -> None:
        """Creates or replaces a record."""
        meta = {
            "name": PREFIX + record.component,
            "labels": {COMPONENT_LABEL: record.component, labels.PART_OF: labels.WINDLASS},
        }
        data = {
            "version": record.version, "state": record.state, "namespace": record.namespace, "digest": record.digest,
            "content": record.content,
            "is_release": json.dumps(record.is_release), "since": f"{record.since:.0f}",
            "objects": json.dumps([list(one) for one in record.objects]),
            "worker": json.dumps([record.worker.machine, record.worker.host, record.worker.pid,
                                  record.worker.start_ticks, record.worker.boot]),
        }  # fmt: skip
        made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}
        self._resources.apply(made, _ref(record.component))

    def remove(self, component: str) -> None:
        """Deletes the record of a component."""
        self._resources.delete(_ref(component))


def joined(*groups: Iterable[Ref]) -> tuple[Ref, ...]:
    """Merges references and drops duplicates."""
    return tuple(dict.fromkeys(one for group in groups for one in group))


def _ref(component: str) -> Ref:
    return Ref("v1", "ConfigMap", SYSTEM, PREFIX + component)


def _read(found: Mapping[str, Any]) -> Record:
    name = str(found["metadata"]["name"])
    try:
        data = found["data"]
        return Record(
            component=name.removeprefix(PREFIX),
            version=data["version"],
            state=data["state"],
            namespace=data["namespace"],
            is_release=bool(json.loads(data["is_release"])),
            digest=data["digest"],
            content=data["content"],
            objects=tuple(Ref(*map(str, one)) for one in json.loads(data["objects"])),
            worker=Worker(*json.loads(data["worker"])),
            since=float(data["since"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        hint = f"kubectl -n {SYSTEM} get configmap {name} -o yaml; if nothing needs it, delete it"
        raise EngineError(f"ConfigMap {name} in {SYSTEM} is not a valid component record: {error!r}", hint) from error
