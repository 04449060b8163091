"""Stores the lists from which the runs of a namespace are derived: owner ConfigMaps, Jobs and pods.

Each list is a table with the rows that kubectl would print, since the complete objects of a thousand runs have tens of
megabytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.pod_status import ALTERNATES
from windlass.engines.kubernetes.objects.quantity import Json, seconds_of
from windlass.engines.kubernetes.objects.summary import note_in, summary_in
from windlass.engines.kubernetes.reading.discovery.followups import More
from windlass.engines.kubernetes.reading.discovery.phase import PodRow, RunObjects, Seen, seen
from windlass.spec.labels import job_labels

OURS: Final = f"{layout.MANAGED_LABEL}=windlass,{layout.RUN_LABEL}"
"""Label selector for the objects of all runs."""


class Table(NamedTuple):
    """Request for one list of objects, as a table."""

    api: str
    kind: str
    columns: tuple[str, ...]
    """Names of the columns to read; columns that the server does not have are read as empty."""
    include: str = "None"
    """Part of an object that its row includes: `Metadata` or `None`."""
    without: str = ""
    """Additional label selector, appended to the selector of runs."""

    def selector(self, run_id: str = "") -> str:
        """Returns the label selector for the objects of all runs, or of one run."""
        return f"{OURS}={run_id}{self.without}" if run_id else f"{OURS}{self.without}"


OWNER_CONFIG_MAPS: Final = Table(
    "v1", "ConfigMap", ("Name",), "Metadata", f",!{layout.ATTEMPT_LABEL},!{layout.CODE_LABEL}"
)
"""Table of owner ConfigMaps; also contains the markers of runs, and the heads of their records."""
JOBS: Final = Table("batch/v1", "Job", ("Name", "Status", "Completions"))
PODS: Final = Table("v1", "Pod", ("Name", "Ready", "Status"))
TABLES: Final = (OWNER_CONFIG_MAPS, JOBS, PODS)


class Row(NamedTuple):
    """A row of a table."""

    cells: tuple[str, ...]
    meta: Json
    """Metadata of the object, if the table includes it."""


class ObjectLists:
    """Rows of the lists of a namespace, by kind."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._rows: dict[str, dict[str, Row]] = {table.kind: {} for table in TABLES}
        """Rows by kind and name."""
        self._places: dict[str, list[int | None]] = {}
        """Index of each read column in the server's table, by kind."""
        self.versions: dict[str, str] = {}
        """Newest resource version of each list, by kind."""
        self.ahead = 0.0
        """Seconds by which the cluster's clock is ahead of this machine's."""
        self.more = More()
        """Results of additional requests (`followups.py`)."""

    def fill(self, table: Table, pages: Iterable[Json]) -> None:
        """Replaces all rows of one kind with rows from the server's pages."""
        fresh: dict[str, Row] = {}
        for page in pages:
            self.versions[table.kind] = str(page["metadata"]["resourceVersion"])
            fresh.update(self._read(table, page))
        self._rows[table.kind] = fresh

    def take(self, table: Table, other: ObjectLists) -> None:
        """Replaces all rows of one kind with the rows of other object lists."""
        self._rows[table.kind] = other._rows[table.kind]
        self.versions[table.kind], self.ahead = other.versions[table.kind], other.ahead

    def change(self, table: Table, kind: str, page: Json) -> None:
        """Applies a watch event: `ADDED`, `MODIFIED` or `DELETED`. `BOOKMARK` only updates the version."""
        self.versions[table.kind] = str(page["metadata"].get("resourceVersion") or self.versions[table.kind])
        for name, row in self._read(table, page) if kind != "BOOKMARK" else ():
            if kind == "DELETED":
                self._rows[table.kind].pop(name, None)
            else:
                self._rows[table.kind][name] = row

    def _read(self, table: Table, page: Json) -> Iterator[tuple[str, Row]]:
        if page.get("columnDefinitions"):  # only the first event of a watch has column definitions
            names = [column["name"] for column in page["columnDefinitions"]]
            self._places[table.kind] = [names.index(name) if name in names else None for name in table.columns]
        places = self._places[table.kind]
        for row in page.get("rows") or ():
            cells = tuple("" if place is None else str(row["cells"][place]) for place in places)
            yield cells[0], Row(cells, row["object"]["metadata"] if row.get("object") else {})

    def runs(self, now: float) -> list[Seen]:
        """Returns all runs, newest first."""
        there = now + self.ahead
        found = (seen(run_id, self._namespace, one, self.more, there) for run_id, one in self._objects().items())
        return sorted(found, key=lambda one: (-one.objects.created_at, one.id))

    def open_questions(self) -> tuple[set[str], set[str]]:
        """Returns the runs and the pods for which `followups.ask` must make additional requests.

        These runs have no Job, pod or marker, but may have an owner object of another kind. These pods have no node
        yet.
        """
        bare = {run_id for run_id, objects in self._objects().items() if objects.is_bare and not objects.markers}
        return bare, {pod.name for pod in self._pods() if pod.state == "queued"}

    def _objects(self) -> dict[str, RunObjects]:
        found = self._owner_config_maps()
        for row in self._rows["Job"].values():
            name, status, completions = row.cells
            if (of := _run_of(name, found)) is not None:
                # The column of completions has the format `0/8`.
                found[of[0]].jobs[of[1]] = (status, layout.number_in(completions.rpartition("/")[2]) or 0)
            elif (supervised := name.removesuffix(layout.supervisor_name(""))) != name and supervised in found:
                found[supervised].supervisor_job = status
        for pod in self._pods():
            if (of := _run_of(pod.name, found)) is not None:
                found[of[0]].pods.setdefault(of[1], []).append(pod)
            elif (supervised := pod.name.rpartition(f"{layout.supervisor_name('')}-")[0]) in found:
                found[supervised].supervisors.append(pod)
        return found

    def _pods(self) -> Iterator[PodRow]:
        for row in self._rows["Pod"].values():
            name, ready, status = row.cells
            num_ready, _, num_containers = ready.partition("/")
            yield PodRow(name, num_ready == num_containers, ALTERNATES.get(status, status))

    def _owner_config_maps(self) -> dict[str, RunObjects]:
        found: dict[str, RunObjects] = {}
        metas = [row.meta for row in self._rows["ConfigMap"].values()]
        for meta in metas:
            labels = meta.get("labels", {})
            if layout.MARKER_LABEL not in labels and labels[layout.RUN_LABEL] == meta["name"]:
                spares = layout.number_in(meta.get("annotations", {}).get(layout.SPARES_ANNOTATION, "")) or 0
                created_at = seconds_of(meta["creationTimestamp"], 0.0)
                name = labels.get(layout.JOB_LABEL, "")
                found[meta["name"]] = RunObjects(name, created_at, job_labels(labels), note_in(meta), spares)
        for meta in metas:
            labels = meta.get("labels", {})
            marker, objects = labels.get(layout.MARKER_LABEL), found.get(labels[layout.RUN_LABEL])
            if objects is not None and marker == layout.RECORD:
                objects.summary = summary_in(meta)
            elif objects is not None and marker is not None:
                objects.markers[marker] = labels.get(layout.HOW_LABEL, "")
        return found


def _run_of(name: str, runs: Mapping[str, RunObjects]) -> tuple[str, int] | None:
    """Returns the run id and the attempt in the name of a Job or pod, such as `digits-7f3k2-1-0-x8z4q`."""
    at = name.rfind("-")
    while at > 0:
        if name[:at] in runs:
            number = layout.number_in(name[at + 1 :].partition("-")[0])
            return None if number is None else (name[:at], number)
        at = name.rfind("-", 0, at)
    return None


def summaries(client: Client) -> dict[str, Json]:
    """Returns the summary of each record in the cluster, by run id, for one namespace. Raises Refused, Unreachable."""
    selector = f"{layout.MANAGED_LABEL}=windlass,{layout.MARKER_LABEL}={layout.RECORD}"
    return {
        row["object"]["metadata"]["labels"].get(layout.RUN_LABEL, ""): summary_in(row["object"]["metadata"]) or {}
        for page in client.pages("v1", "ConfigMap", selector, includeObject="Metadata")
        for row in page["rows"] or ()
    }
