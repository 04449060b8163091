"""Derives the runs of a namespace from its objects, whichever machine started them.

Three lists are read, of anchors, Jobs and pods, each as a table with the rows that kubectl would print: the pods of a
thousand runs as objects are tens of megabytes. `api/informer.py` keeps them up to date.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from windlass.engines.base import Placement, RunState
from windlass.engines.kubernetes import layout
from windlass.engines.kubernetes.api.client import Client, Refused, Unreachable
from windlass.engines.kubernetes.discovery import followups
from windlass.engines.kubernetes.discovery.followups import SUSPENDED, More
from windlass.engines.kubernetes.notes import note_in
from windlass.engines.kubernetes.pods.waiting import ON_THE_WAY, STUCK
from windlass.engines.kubernetes.quantity import seconds_of
from windlass.engines.kubernetes.supervisor.summary import summarised, summary_in
from windlass.errors import NoSuchRun
from windlass.runs.naming import choose
from windlass.runs.phase import Phase
from windlass.runs.record import Status
from windlass.spec.labels import of_job

if TYPE_CHECKING:
    from windlass.engines.kubernetes.observations import PodStatus

Json = Mapping[str, Any]

OURS: Final = f"{layout.MANAGED_LABEL}=windlass,{layout.RUN_LABEL}"
STOP: Final = "stop"
END: Final = "end"
"""The marks that a run may have, see `workloads/tombstones.py`."""
WELL: Final = "well"
"""Value of the end mark of a run whose ranks have all succeeded."""
ENDED_WELL: Final = ("Complete", "SuccessCriteriaMet")
ENDED_BADLY: Final = ("Failed", "FailureTarget")
"""Statuses in the row of a Job that has ended."""
PULLING: Final = frozenset((*ON_THE_WAY, *STUCK))
LIVE: Final = ("queued", "pulling", "running", "ending")
MAKING_SECONDS: Final = 60.0
"""How long after its anchor the first Job of a run may be created."""
TAIL_LINES: Final = 400
UNSAID: Final = "it has failed, and its supervisor has not reported whether it restarts"

GONE: Final = "its pods and their owner objects were deleted"
ENDED_SOMEHOW: Final = "it has ended, and whether it succeeded is not recorded"


class Table(NamedTuple):
    """One of the lists."""

    api: str
    kind: str
    selector: str
    columns: tuple[str, ...]
    """The columns that are read; one that the server does not have is empty."""
    include: str
    """What each row includes of its object: `Metadata` or `None`."""


TABLES: Final = (
    Table("v1", "ConfigMap", f"{OURS},!{layout.ATTEMPT_LABEL},!{layout.CODE_LABEL}", ("Name",), "Metadata"),
    Table("batch/v1", "Job", OURS, ("Name", "Status", "Completions"), "None"),
    Table("v1", "Pod", OURS, ("Name", "Ready", "Status"), "None"),
)


@dataclass(frozen=True, slots=True)
class Seen:
    """A run, as far as its objects show it."""

    id: str
    name: str
    """Of the job."""
    namespace: str
    phase: Phase
    """`training` where all its pods run: their logs are not read."""
    attempt: int
    """The newest with pods; 0 before the first."""
    pods_ready: int
    pods_total: int
    created_at: float
    """Unix seconds."""
    waits_for: str = ""
    """Why it does not proceed, as the cluster reports it; empty where nothing blocks it."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Those of its job."""
    summary: Json | None = None
    """What its supervisor, where that is in the cluster, last recorded of its status."""
    note: str | None = None
    """What users have written about it; None where none ever did."""
    supervisor: str = ""
    """Why the pod of that supervisor does not run, as its row reports: `CrashLoopBackOff`; empty where it may."""

    def state(self, target: str) -> RunState:
        """The run on this target, as a run without a record."""
        status = Status(self.id, self.name, target, self.phase, self.created_at, self.created_at, "",
                        waits_for=self.waits_for or None)  # fmt: skip
        if self.summary is not None:
            status = summarised(status, self.summary)
        if self.supervisor and not status.phase.is_terminal:
            status = replace(status, waits_for=f"its supervisor: {self.supervisor}")
        status = replace(status, labels=self.labels, note=self.note or "")
        placement = Placement(self.namespace, self.attempt, self.pods_ready, self.pods_total)
        return RunState(status, time.time(), is_recorded=False, placement=placement)


_Row = tuple[str, bool, str]
"""Of a pod: its name, whether it is ready, and its status column."""


@dataclass(slots=True)
class _Parts:
    """What belongs to one run."""

    name: str
    created_at: float
    marks: set[str] = field(default_factory=set)
    jobs: dict[int, tuple[str, int]] = field(default_factory=dict)
    """By attempt, the status of its Job and the number of pods it should have."""
    pods: dict[int, list[_Row]] = field(default_factory=dict)
    """By attempt."""
    summary: Json | None = None
    """Of its status, by the head of its record in the cluster."""
    spares: int = 0
    """How many pods it has beside those of its nodes."""
    labels: Mapping[str, str] = field(default_factory=dict)
    note: str | None = None
    how: str = ""
    """`well` or `badly`, by the end mark; empty where that is not known."""
    supervisors: list[str] = field(default_factory=list)
    """The status column of each pod of its supervisor."""

    def is_bare(self) -> bool:
        """Whether it has neither a Job nor a pod."""
        return not self.jobs and not self.pods


class Board:
    """The rows of a namespace, by kind."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._rows: dict[str, dict[str, tuple[str, ...]]] = {table.kind: {} for table in TABLES}
        self._meta: dict[str, Json] = {}
        self._places: dict[str, list[int | None]] = {}
        self.versions: dict[str, str] = {}
        """By kind, the newest resource version."""
        self.ahead = 0.0
        """Seconds by which the clock of the cluster is ahead of this machine's."""
        self.more = More()
        """Answers to further questions (`followups.py`)."""
        self._known: dict[str, _Parts] | None = None
        """What the rows say of each run; None once they have changed."""

    def fill(self, table: Table, pages: Iterable[Json]) -> None:
        """Replace the rows of one kind."""
        fresh: dict[str, tuple[str, ...]] = {}
        for page in pages:
            self.versions[table.kind] = str(page["metadata"]["resourceVersion"])
            fresh.update(self._read(table, page))
        self._rows[table.kind] = fresh
        self._known = None

    def take(self, table: Table, other: Board) -> None:
        """Replace the rows of one kind by those of another board."""
        self._rows[table.kind] = other._rows[table.kind]
        self._meta |= other._meta
        self.versions[table.kind], self.ahead = other.versions[table.kind], other.ahead
        self._known = None

    def change(self, table: Table, kind: str, page: Json) -> None:
        """Apply an event of a watch: `ADDED`, `MODIFIED` or `DELETED`; a `BOOKMARK` only has a version."""
        self._known = None
        self.versions[table.kind] = str(page["metadata"].get("resourceVersion") or self.versions[table.kind])
        for name, cells in self._read(table, page) if kind != "BOOKMARK" else ():
            if kind == "DELETED":
                self._rows[table.kind].pop(name, None)
                if table.kind == "ConfigMap":
                    self._meta.pop(name, None)
            else:
                self._rows[table.kind][name] = cells

    def _read(self, table: Table, page: Json) -> Iterator[tuple[str, tuple[str, ...]]]:
        if page.get("columnDefinitions"):  # only the first event of a watch has them
            names = [column["name"] for column in page["columnDefinitions"]]
            self._places[table.kind] = [names.index(name) if name in names else None for name in table.columns]
        places = self._places[table.kind]
        for row in page.get("rows") or ():
            cells = row["cells"]
            found = tuple("" if place is None else str(cells[place]) for place in places)
            if row.get("object"):
                self._meta[found[0]] = row["object"]["metadata"]
            yield found[0], found

    def runs(self, now: float) -> list[Seen]:
        """All runs, newest first."""
        there = now + self.ahead
        seen = [_seen(run_id, self._namespace, parts, self.more, there) for run_id, parts in self._parts().items()]
        return sorted(seen, key=lambda one: (-one.created_at, one.id))

    def open_questions(self) -> tuple[set[str], set[str]]:
        """What the lists do not show, as `followups.ask` takes it.

        Runs without a Job, pods or tombstones, which may have an owner object of another kind; pods that have no node
        yet.
        """
        found = self._parts().items()
        bare = {run_id for run_id, parts in found if parts.is_bare() and not parts.marks}
        return bare, {name for name, _, word in self._rows["Pod"].values() if _state(word) == "queued"}

    def _parts(self) -> dict[str, _Parts]:
        if self._known is None:
            self._known = self._read_parts()
        return self._known

    def _read_parts(self) -> dict[str, _Parts]:
        found = self._anchors()
        for name, status, completions in self._rows["Job"].values():
            if (of := _run_of(name, found)) is not None:
                found[of[0]].jobs[of[1]] = (status, _whole(completions))
        for name, ready, status in self._rows["Pod"].values():
            if (of := _run_of(name, found)) is not None:
                found[of[0]].pods.setdefault(of[1], []).append((name, _is_ready(ready), status))
            elif (supervised := name.rpartition(f"{layout.supervisor_name('')}-")[0]) in found:
                found[supervised].supervisors.append(status)
        return found

    def _anchors(self) -> dict[str, _Parts]:
        found: dict[str, _Parts] = {}
        marks = []
        summaries: dict[str, Json | None] = {}
        for name in self._rows["ConfigMap"]:
            meta = self._meta[name]
            labels = meta.get("labels", {})
            if labels.get(layout.MARK_LABEL) == layout.RECORD:
                summaries[labels[layout.RUN_LABEL]] = summary_in(meta)
            elif layout.MARK_LABEL in labels:
                marks.append((labels[layout.RUN_LABEL], labels[layout.MARK_LABEL], labels.get(layout.HOW_LABEL, "")))
            elif labels[layout.RUN_LABEL] == name:
                spares = layout.number_in(meta.get("annotations", {}).get(layout.SPARES_ANNOTATION, "")) or 0
                created_at = seconds_of(meta["creationTimestamp"], 0.0)
                found[name] = _Parts(
                    labels.get(layout.JOB_LABEL, ""), created_at, spares=spares, labels=of_job(labels),
                    note=note_in(meta),
                )  # fmt: skip
        for run_id, mark, how in marks:
            if run_id in found:
                found[run_id].marks.add(mark)
                found[run_id].how = how if mark == END else found[run_id].how
        for run_id in summaries.keys() & found.keys():
            found[run_id].summary = summaries[run_id]
        return found


def _run_of(name: str, runs: Mapping[str, _Parts]) -> tuple[str, int] | None:
    """The run and attempt of a Job or pod by its name, such as `digits-7f3k2-1-0-x8z4q`."""
    at = name.rfind("-")
    while at > 0:
        if name[:at] in runs:
            number = name[at + 1 :].partition("-")[0]
            return (name[:at], int(number)) if number.isdigit() else None
        at = name.rfind("-", 0, at)
    return None


def _seen(run_id: str, namespace: str, parts: _Parts, more: More, now: float) -> Seen:
    jobs = parts.jobs
    if run_id in more.makers and parts.is_bare():
        made_for, word, num_pods = more.makers[run_id]
        jobs = {made_for: (word, num_pods)}
    number = max((*jobs, *parts.pods), default=0)
    job, wanted = jobs.get(number, ("", 0))
    pods = parts.pods.get(number, [])
    # Pods of earlier attempts run the newest too, where only those that were lost were made anew.
    reused = [row for attempt in parts.pods.keys() - {number} for row in parts.pods[attempt]
              if _state(row[2]) == "running"]  # fmt: skip
    if parts.spares:
        pods, wanted, reused = *_without_spares([*pods, *reused], wanted + len(reused) - parts.spares), []
        if parts.how or any(_state(word) in LIVE for _, _, word in pods):
            job = ""  # the newest may be one of spares alone, which ends otherwise than the run
    states = Counter(_state(word) for _, _, word in pods)
    is_fresh = now - parts.created_at < MAKING_SECONDS
    phase = _phase(job, states, max(wanted, len(pods)), parts.marks, how=parts.how, is_fresh=is_fresh)
    comes = [more.coming[name] for name, _, word in pods if _state(word) == "queued" and name in more.coming]
    if phase is Phase.QUEUED and comes:
        phase = Phase.PROVISIONING
    ready = sum(is_ready for _, is_ready, _ in (*pods, *reused))
    waits = _waits(phase, job, [word for _, _, word in pods], parts, more)
    if phase is Phase.PROVISIONING:
        waits = f"node provisioning: {', '.join(dict.fromkeys(comes))}"
    total = max(wanted, len(pods)) + len(reused)
    return Seen(
        run_id, parts.name, namespace, phase, number, ready, total, parts.created_at, waits, parts.labels,
        parts.summary, parts.note, _supervisor_trouble(parts.supervisors),
    )  # fmt: skip


def _supervisor_trouble(words: Sequence[str]) -> str:
    """Why no supervisor runs, by the status of its pods; empty where one runs or is being started."""
    return words[-1] if words and all(word in STUCK or _state(word) == "failed" for word in words) else ""


def _without_spares(pods: list[_Row], wanted: int) -> tuple[list[_Row], int]:
    """As many pods as the run has nodes, and that number; which of them are spares, the lists do not show.

    Those that wait are taken for spares: where other pods run, the run does not wait for them.
    """
    num_spares = max(0, len(pods) - max(1, wanted))
    return sorted(pods, key=lambda row: _state(row[2]) == "running")[num_spares:], max(1, wanted)


def _waits(phase: Phase, job: str, words: Iterable[str], parts: _Parts, more: More) -> str:
    """Why a run does not proceed."""
    if phase in (Phase.QUEUED, Phase.PULLING):
        return next((word for word in words if word in STUCK), job if job == SUSPENDED else "")
    if phase is Phase.RESTARTING:
        return UNSAID
    if phase is not Phase.LOST:
        return ""
    if END in parts.marks:
        return ENDED_SOMEHOW
    return f"{GONE}, or they are {'s or '.join(more.unlisted)}s, which may not be listed" if more.unlisted else GONE


def _state(word: str) -> str:
    """The state of a pod by its status column."""
    if word in ("Running", "NotReady"):
        return "running"
    if word in ("Completed", "Succeeded"):
        return "done"
    if word in ("Pending", "SchedulingGated"):
        return "queued"
    if word == "Terminating":
        return "ending"
    return "pulling" if word in PULLING or word.startswith("Init:") else "failed"


def _phase(
    job: str, states: Mapping[str, int], total: int, marks: Collection[str], *, how: str, is_fresh: bool
) -> Phase:
    """The phase of a run by its newest Job, its pods and its marks.

    `how` it ended, by the end mark, decides where no pod runs any more: a Job with `ttl` is deleted by then.
    """
    is_live = any(states.get(state) for state in LIVE)
    if STOP in marks:
        return Phase.STOPPING if is_live else Phase.STOPPED
    if job in ENDED_WELL:  # also of a run that its supervisor had declared lost
        return Phase.SUCCEEDED
    if END in marks and how and not is_live:
        return Phase.SUCCEEDED if how == WELL else Phase.FAILED
    if job in ENDED_BADLY or (not job and states.get("failed") and not is_live):
        return Phase.FAILED if END in marks else Phase.RESTARTING
    if not job and not is_live:
        if states.get("done"):
            return Phase.SUCCEEDED
        return Phase.QUEUED if is_fresh and END not in marks else Phase.LOST
    if states.get("queued") or sum(states.values()) < max(1, total):
        return Phase.QUEUED
    return Phase.PULLING if states.get("pulling") else Phase.TRAINING


def _is_ready(cell: str) -> bool:
    """Whether all containers of a pod are ready: `1/1`."""
    ready, _, total = cell.partition("/")
    return ready == total


def _whole(cell: str) -> int:
    """How many pods a Job should have: `0/8`."""
    total = cell.rpartition("/")[2]
    return int(total) if total.isdigit() else 0


# -- asking -----------------------------------------------------------------------------------------------------------


def look(client: Client, run_id: str = "", board: Board | None = None) -> Board:
    """The objects of all runs of the namespace, or of one, on a new board or `board`. Raises Refused, Unreachable."""
    found = Board(client.namespace) if board is None else board
    errors: list[BaseException] = []

    def ask(table: Table) -> None:
        try:
            fill(found, client, table, run_id)
        except BaseException as error:
            errors.append(error)

    # Not by `concurrent.futures`, whose import takes as long as an answer.
    threads = [threading.Thread(target=ask, args=(table,), daemon=True) for table in TABLES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    found.more = followups.ask(client, OURS, *found.open_questions())
    return found


def fill(board: Board, client: Client, table: Table, run_id: str = "") -> None:
    """Read one list, of all runs or of one, onto the board. Raises Refused, Unreachable."""
    while True:
        pages = client.pages(table.api, table.kind, selecting(table, run_id), includeObject=table.include)
        try:
            board.fill(table, pages)
            board.ahead = client.ahead
            return
        except Refused as error:
            if error.status != 410:  # the version of its first page has expired
                raise


def selecting(table: Table, run_id: str) -> str:
    """The selector of a list of all runs, or of one."""
    return table.selector.replace(OURS, f"{OURS}={run_id}") if run_id else table.selector


def everywhere(client: Client, now: float) -> list[Seen]:
    """The runs of all namespaces, the newest first. Raises Refused where they may not all be listed, Unreachable."""
    anchors = TABLES[0]
    pages = client.pages(anchors.api, anchors.kind, anchors.selector, everywhere=True, includeObject=anchors.include)
    namespaces = {row["object"]["metadata"]["namespace"] for page in pages for row in page["rows"] or ()}
    found = [seen for namespace in sorted(namespaces) for seen in look(client.within(namespace)).runs(now)]
    return sorted(found, key=lambda one: (-one.created_at, one.id))


def find(client: Client, prefix: str | None, where: str) -> str:
    """The id of the run in the namespace that `prefix` stands for, as `naming.choose`; the newest's without one.

    `where` is the name of the place in messages. Raises NoSuchRun, Refused, Unreachable.
    """
    if prefix and _is_there(client, prefix):
        return prefix
    board = Board(client.namespace)
    fill(board, client, TABLES[0])
    ids = [seen.id for seen in board.runs(time.time())]
    hint = f"windlass ps --on {where} lists them"
    if prefix == "":  # from a script whose variable is not set
        raise NoSuchRun("the id that was given is empty", hint)
    found = choose(prefix, ids, where) if prefix else next(iter(ids), None)
    if found is None:
        said = f"no run on {where} has the id '{prefix}'" if prefix else f"there is no run on {where}"
        raise NoSuchRun(said, hint)
    return found


def _is_there(client: Client, run_id: str) -> bool:
    """Whether this is the id of a run, and not only the beginning of one."""
    if "/" in run_id:
        return False
    try:
        anchor = client.get("v1", "ConfigMap", run_id)
    except Refused as error:
        if error.status == 403:
            raise
        return False
    labels = anchor["metadata"].get("labels", {})
    return bool(labels.get(layout.RUN_LABEL) == run_id)


def one(client: Client, run_id: str) -> Seen:
    """One run, as it is now. Raises NoSuchRun, Refused, Unreachable."""
    for seen in look(client, run_id).runs(time.time()):
        return seen
    raise NoSuchRun(f"{run_id} is no longer in namespace {client.namespace}", "its objects were deleted")


def progress(client: Client, pods: Iterable[PodStatus]) -> dict[str, Any]:
    """The progress that the first node of a run last reported; empty where there is none, or its log cannot be read."""
    first = next((pod.name for pod in pods if pod.node == 0), "")
    if not first:
        return {}
    try:
        container = layout.container_of(client.get("v1", "Pod", first))
        lines = list(client.logs(first, container=container, follow=False, tail=TAIL_LINES))
    except (Refused, Unreachable):
        return {}
    return progress_in(lines)


def progress_in(lines: Iterable[bytes]) -> dict[str, Any]:
    """The newest progress among the last lines of a pod's log."""
    from windlass.runs import node_events
    from windlass.worker.protocol import NODE_TAG, ProgressMade

    found: dict[str, Any] = {}
    for line in lines:
        _, is_node, event = line.partition(f" [{NODE_TAG}] ".encode())
        if is_node and b'"progress"' in event:
            parsed = node_events.parse(event)
            if parsed is not None and isinstance(parsed.event, ProgressMade):
                found |= {**parsed.event.progress, "at": parsed.event.at}
    return found


def pods(client: Client, seen: Seen) -> tuple[PodStatus, ...]:
    """The pods of a run's newest attempt, by place. Raises Refused, Unreachable."""
    from windlass.engines.kubernetes.pods.nodes import by_place
    from windlass.engines.kubernetes.pods.status import pod_status

    selector = f"{layout.selector(seen.id)},{layout.ATTEMPT_LABEL}={seen.attempt}"
    found = by_place(client.find("v1", "Pod", selector)["items"]) if seen.attempt else {}
    return tuple(pod_status(place, pod) for place, pod in sorted(found.items()))
