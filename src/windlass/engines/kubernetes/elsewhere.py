"""Turns the objects of a namespace into the runs that they are of, whichever machine started them. No record is needed.

What is known of all runs comes from three lists, of anchors, Jobs and pods, each as a table: rows that kubectl would
print, since the pods of a thousand runs as objects are tens of megabytes. `watched.py` keeps the same up to date.
"""

from __future__ import annotations

import calendar
import contextlib
import json
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from windlass.diagnose.observations import PodSeen
from windlass.engines.kubernetes import followups, layout
from windlass.engines.kubernetes.client import Client, Refused, Unreachable
from windlass.engines.kubernetes.followups import SUSPENDED, More
from windlass.engines.kubernetes.helpers import STUCK
from windlass.engines.kubernetes.pods import by_place
from windlass.engines.kubernetes.seeing import ON_THE_WAY, pod_seen
from windlass.errors import NoSuchRun
from windlass.runs.record import Phase
from windlass.worker.node import NODE_TAG

Json = Mapping[str, Any]

OURS: Final = f"{layout.MANAGED_LABEL}=windlass,{layout.RUN_LABEL}"
STOP: Final = "stop"
END: Final = "end"
"""The two marks that a run may have, see `marks.py`."""
WELL: Final = "well"
"""How a run has ended whose ranks have all succeeded, by the mark of its end."""
ENDED_WELL: Final = ("Complete", "SuccessCriteriaMet")
ENDED_BADLY: Final = ("Failed", "FailureTarget")
"""What a Job's row says of one that has ended."""
PULLING: Final = frozenset((*ON_THE_WAY, *STUCK))
LIVE: Final = ("queued", "pulling", "running", "ending")
MAKING_SECONDS: Final = 60.0
"""How long after its anchor the first Job of a run may be made."""
TAIL_LINES: Final = 400
NODE_SAYS: Final = f" [{NODE_TAG}] ".encode()
UNSAID: Final = "it has failed, and whoever keeps it has not said what follows"

GONE: Final = "its pods and what makes them were deleted"
ENDED_SOMEHOW: Final = "it has ended, and whether well is not recorded"


class Table(NamedTuple):
    """One of the lists."""

    api: str
    kind: str
    selector: str
    columns: tuple[str, ...]
    """What of each row is of interest; a column that the server does not have is empty."""
    include: str
    """What comes with each row: its `Metadata`, or `None`."""


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
    """`training` where all its pods run: what is said in them is not looked at."""
    attempt: int
    """The newest for which pods were made; 0 before the first."""
    pods_ready: int
    pods_total: int
    created_at: float
    """Unix seconds."""
    waits_for: str = ""
    """Why it does not go on, in the words of the cluster; empty where nothing is in its way."""


@dataclass(slots=True)
class _Parts:
    """What belongs to one run."""

    name: str
    created_at: float
    marks: set[str] = field(default_factory=set)
    jobs: dict[int, tuple[str, int]] = field(default_factory=dict)
    """By attempt, how a Job is and how many pods it is to have."""
    pods: dict[int, list[tuple[str, bool, str]]] = field(default_factory=dict)
    """By attempt, the name of each pod, whether it is ready, and what its row says."""
    how: str = ""
    """How it ended, by the mark of its end: `well` or `badly`; empty where that is not known."""

    def is_bare(self) -> bool:
        """Whether there is neither a Job nor a pod."""
        return not self.jobs and not self.pods


class Board:
    """All rows of a namespace, by kind; rows may come and go."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._rows: dict[str, dict[str, tuple[str, ...]]] = {table.kind: {} for table in TABLES}
        self._meta: dict[str, Json] = {}
        self._places: dict[str, list[int | None]] = {}
        self.versions: dict[str, str] = {}
        """By kind, the resource version of what was last told."""
        self.more = More()
        """What was asked beside the lists (`followups.py`)."""

    def fill(self, table: Table, pages: Iterable[Json]) -> None:
        """Take a whole list in place of what is known."""
        fresh: dict[str, tuple[str, ...]] = {}
        for page in pages:
            self.versions[table.kind] = str(page["metadata"]["resourceVersion"])
            fresh.update(self._read(table, page))
        self._rows[table.kind] = fresh

    def take(self, table: Table, other: Board) -> None:
        """Take the list of another board in place of what is known."""
        self._rows[table.kind] = other._rows[table.kind]
        self._meta |= other._meta
        self.versions[table.kind] = other.versions[table.kind]

    def change(self, table: Table, kind: str, page: Json) -> None:
        """Take a change that a watch tells: `ADDED`, `MODIFIED` or `DELETED`; at a `BOOKMARK` nothing has changed."""
        self.versions[table.kind] = str(page["metadata"].get("resourceVersion") or self.versions[table.kind])
        for name, cells in self._read(table, page) if kind != "BOOKMARK" else ():
            if kind == "DELETED":
                self._rows[table.kind].pop(name, None)
                if table.kind == "ConfigMap":
                    self._meta.pop(name, None)
            else:
                self._rows[table.kind][name] = cells

    def _read(self, table: Table, page: Json) -> Iterator[tuple[str, tuple[str, ...]]]:
        if page.get("columnDefinitions"):  # the changes of a watch carry them with the first alone
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
        """All runs, the newest first."""
        seen = [_seen(run_id, self._namespace, parts, self.more, now) for run_id, parts in self._parts().items()]
        return sorted(seen, key=lambda one: (-one.created_at, one.id))

    def open_questions(self) -> tuple[set[str], set[str], set[str]]:
        """What the lists do not show, as `followups.ask` takes it.

        Runs without a Job, pods or marks, which may have an owner object of another kind; runs of which only the mark
        of their end is left, without a label that says how; pods that have no machine yet.
        """
        found = self._parts().items()
        bare = {run_id for run_id, parts in found if parts.is_bare() and not parts.marks}
        ended = {run_id for run_id, parts in found if parts.is_bare() and END in parts.marks and not parts.how}
        return bare, ended, {name for name, _, word in self._rows["Pod"].values() if _state(word) == "queued"}

    def _parts(self) -> dict[str, _Parts]:
        found = self._anchors()
        for name, status, completions in self._rows["Job"].values():
            if (of := _run_of(name, found)) is not None:
                found[of[0]].jobs[of[1]] = (status, _whole(completions))
        for name, ready, status in self._rows["Pod"].values():
            if (of := _run_of(name, found)) is not None:
                found[of[0]].pods.setdefault(of[1], []).append((name, _is_ready(ready), status))
        return found

    def _anchors(self) -> dict[str, _Parts]:
        found: dict[str, _Parts] = {}
        marks = []
        for name in self._rows["ConfigMap"]:
            meta = self._meta[name]
            labels = meta.get("labels", {})
            if layout.MARK_LABEL in labels:
                marks.append((labels[layout.RUN_LABEL], labels[layout.MARK_LABEL], labels.get(layout.HOW_LABEL, "")))
            elif labels[layout.RUN_LABEL] == name:
                found[name] = _Parts(labels.get(layout.JOB_LABEL, ""), seconds_of(meta["creationTimestamp"]))
        for run_id, mark, how in marks:
            if run_id in found:
                found[run_id].marks.add(mark)
                found[run_id].how = how if mark == END else found[run_id].how
        return found


def _run_of(name: str, runs: Mapping[str, _Parts]) -> tuple[str, int] | None:
    """The run and attempt of a Job or pod, whose maker has put more behind their name: `digits-7f3k2-1-0-x8z4q`."""
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
    states = Counter(_state(word) for _, _, word in pods)
    is_fresh = now - parts.created_at < MAKING_SECONDS
    how = parts.how or more.ends.get(run_id, "")
    phase = _phase(job, states, max(wanted, len(pods)), parts.marks, how=how, is_fresh=is_fresh)
    comes = [more.coming[name] for name, _, word in pods if _state(word) == "queued" and name in more.coming]
    if phase is Phase.QUEUED and comes:
        phase = Phase.PROVISIONING
    ready = sum(is_ready for _, is_ready, _ in pods)
    waits = _waits(phase, job, [word for _, _, word in pods], parts, more)
    if phase is Phase.PROVISIONING:
        waits = f"node provisioning: {', '.join(dict.fromkeys(comes))}"
    return Seen(run_id, parts.name, namespace, phase, number, ready, max(wanted, len(pods)), parts.created_at, waits)


def _waits(phase: Phase, job: str, words: Iterable[str], parts: _Parts, more: More) -> str:
    """Why a run does not go on."""
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
    """Where a pod is, from the word that its row has for it."""
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
    """Where a run is, from how its newest Job and its pods are, and what was said of it as a whole.

    `how` it ended, by the mark of its end, holds where no pod runs any more: a Job with `ttl` is gone by then.
    """
    is_live = any(states.get(state) for state in LIVE)
    if STOP in marks:
        return Phase.STOPPING if is_live else Phase.STOPPED
    if END in marks and how and not is_live:
        return Phase.SUCCEEDED if how == WELL else Phase.FAILED
    if job in ENDED_WELL:
        return Phase.SUCCEEDED
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
    """Whether all containers of a pod are: `1/1`."""
    ready, _, total = cell.partition("/")
    return ready == total


def _whole(cell: str) -> int:
    """How many pods a Job is to have: `0/8`."""
    total = cell.rpartition("/")[2]
    return int(total) if total.isdigit() else 0


def seconds_of(stamp: str) -> float:
    """Unix seconds of a time as the API server writes it."""
    return float(calendar.timegm(time.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ")))


# -- asking -----------------------------------------------------------------------------------------------------------


def look(client: Client, run_id: str = "", board: Board | None = None) -> Board:
    """What is in the namespace now, of all runs or of one, on a new board or `board`. Raises Refused, Unreachable."""
    found = Board(client.namespace) if board is None else board
    with ThreadPoolExecutor(len(TABLES)) as pool:
        list(pool.map(lambda table: fill(found, client, table, run_id), TABLES))
    found.more = followups.ask(client, OURS, *found.open_questions())
    return found


def fill(board: Board, client: Client, table: Table, run_id: str = "") -> None:
    """Put a whole list on the board, of all runs or of one. Raises Refused, Unreachable."""
    while True:
        pages = client.pages(table.api, table.kind, selecting(table, run_id), includeObject=table.include)
        try:
            return board.fill(table, pages)
        except Refused as error:
            if error.status != 410:  # its pages took so long that the server has forgotten the first
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
    """The id of the run in the namespace that `prefix` stands for; the newest's without one. Raises NoSuchRun.

    `where` is how a person calls the place. Raises Refused, Unreachable.
    """
    if prefix and _is_there(client, prefix):
        return prefix
    board = Board(client.namespace)
    fill(board, client, TABLES[0])
    ids = [seen.id for seen in board.runs(time.time()) if seen.id.startswith(prefix or "")]
    hint = f"windlass ps --on {where} lists them"
    if prefix == "":  # from a script whose variable is not set
        raise NoSuchRun("the id that was given is empty", hint)
    if not ids:
        said = f"no run on {where} has the id '{prefix}'" if prefix else f"there is no run on {where}"
        raise NoSuchRun(said, hint)
    if prefix and len(ids) > 1:
        raise NoSuchRun(f"several runs on {where} begin with '{prefix}': {', '.join(ids[:5])}",
                        "give more letters of the id")  # fmt: skip
    return ids[0]


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


def progress(client: Client, pods: Iterable[PodSeen]) -> dict[str, Any]:
    """How far a run is, as its first node has last told; empty where it has not, or nobody can be asked."""
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
    found: dict[str, Any] = {}
    for line in lines:
        _, is_node, event = line.partition(NODE_SAYS)
        if is_node and b'"progress"' in event:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                told = json.loads(event)
                found |= told["progress"] | {"at": told["at"]}
    return found


def pods(client: Client, seen: Seen) -> tuple[PodSeen, ...]:
    """The pods of a run's newest attempt, by place. Raises Refused, Unreachable."""
    selector = f"{layout.selector(seen.id)},{layout.ATTEMPT_LABEL}={seen.attempt}"
    found = by_place(client.find("v1", "Pod", selector)["items"]) if seen.attempt else {}
    return tuple(pod_seen(place, pod) for place, pod in sorted(found.items()))
