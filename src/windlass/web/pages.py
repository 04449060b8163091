"""Builds the views of whole pages: runs, one run, targets, disk."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from windlass.actions.disk import disk_use
from windlass.actions.listing import labels_in
from windlass.actions.targets import DEFAULT
from windlass.engines import engine_class
from windlass.engines.values import RunState
from windlass.errors import NoSuchRun, UsageError
from windlass.runs.phase import Phase
from windlass.runs.record import Status
from windlass.runs.store import RunAbout
from windlass.runs.store import RunRow as Row
from windlass.runs.time_accounting import Tally
from windlass.spec.labels import SERVICE_LABEL
from windlass.views.pages import (
    AttemptRow,
    DiskPage,
    DiskPart,
    RankCounts,
    RunPage,
    RunRow,
    RunsPage,
    RunsQuery,
    StripPiece,
    TargetRow,
    TargetsPage,
)
from windlass.views.run import advance_of, summary_of
from windlass.views.serialise import view_of
from windlass.views.warm import WarmProcess
from windlass.web.site import Site

if TYPE_CHECKING:
    from windlass.runs.store import Store

Query = Mapping[str, str]

PAGE_RUNS: Final = 50
"""Number of runs on one page."""
MAX_TEXT: Final = 300
"""Maximum characters of a note or cause in a list."""
MAX_ATTEMPTS: Final = 50
MAX_FAILURES: Final = 20
MAX_PIECES: Final = 400
"""Maximum number of intervals in the phase strip."""
MAX_ACTIVE: Final = 100
MAX_DISK_RUNS: Final = 100
DISK_SECONDS: Final = 60.0
"""Age in seconds of a measurement of the disk at which a new one is started."""
ACTIVE: Final = "active"
_PHASES: Final[tuple[Phase, ...]] = tuple(Phase)
ATTENTION: Final = frozenset({Phase.FAILED, Phase.LOST})
SORTS: Final[Mapping[str, Callable[[Row, float], Any]]] = {
    "created": lambda row, now: -row.created_at,
    "name": lambda row, now: (row.about.name, -row.created_at),
    "phase": lambda row, now: (_PHASES.index(row.phase), -row.created_at),
    "target": lambda row, now: (row.about.target, -row.created_at),
    "time": lambda row, now: row.created_at - (now if row.ended_at is None else row.ended_at),
}
"""Sort keys of the list: `created` puts the newest run first, `time` the longest."""


# -- runs -------------------------------------------------------------------------------------------------------------


def query_of(given: Query) -> RunsQuery:
    """Returns the query of a list of runs. An unknown sort column means `created`, an invalid page number the first
    page. Raises UsageError for an unknown phase.
    """
    sort = given.get("sort", "")
    page = given.get("page", "")
    phase = given.get("phase", "")
    if phase not in ("", ACTIVE, *_PHASES):
        raise UsageError(f"'{phase}' is not a phase", f"phases: {', '.join((ACTIVE, *_PHASES))}")
    return RunsQuery(
        given.get("text", "").strip(),
        given.get("label", "").strip(),
        phase,
        given.get("target", ""),
        sort if sort in SORTS else "created",
        given.get("reverse", "") == "1",
        max(1, int(page)) if page.isdecimal() and len(page) < 10 else 1,
    )


def runs_page(site: Site, given: Query) -> RunsPage:
    """Returns one page of the runs of all targets. Only the runs of that page are read in full. Raises UsageError."""
    query, now = query_of(given), site.now()
    site.targets.use()
    with site.records.open() as store:
        rows = store.rows(site.abouts)
        unreadable = store.count_all() - len(rows)
        elsewhere = {one.status.id: one for one in site.targets.others({row.id for row in rows})}
        rows += [_row_of(one.status) for one in elsewhere.values()]
        matches = _matcher(query)
        found = sorted((row for row in rows if matches(row)), key=lambda row: SORTS[query.sort](row, now))
        if query.reverse:
            found.reverse()
        pages = max(1, math.ceil(len(found) / PAGE_RUNS))
        query = replace(query, page=min(query.page, pages))
        shown = found[(query.page - 1) * PAGE_RUNS : query.page * PAGE_RUNS]
        return RunsPage(
            query,
            _run_rows(site, store, shown, elsewhere, now),
            len(found),
            pages,
            dict(Counter(row.phase.value for row in rows)),
            tuple(site.targets.state(known) for known in site.targets.known()),
            max(0, unreadable),
        )


def _matcher(query: RunsQuery) -> Callable[[Row], bool]:
    pattern = query.text.lower() if "*" in query.text else f"*{_literal(query.text.lower())}*"
    labels = labels_in((query.label,) if query.label else ())

    def matches(row: Row) -> bool:
        return (
            (not query.text or fnmatchcase(row.id, pattern))
            and (not query.phase or row.phase == query.phase or (query.phase == ACTIVE and not row.phase.is_terminal))
            and (not query.target or row.about.target == query.target)
            and all(key in row.about.labels and value in (None, row.about.labels[key]) for key, value in labels.items())
        )

    return matches


def _literal(text: str) -> str:
    return text.replace("[", "[[]").replace("?", "[?]")


def _row_of(status: Status) -> Row:
    times = status.times
    about = RunAbout(status.name, status.target, dict(status.about.labels))
    return Row(status.id, status.phase, times.created_at, times.ended_at, about)


def _run_rows(
    site: Site, store: Store, rows: Iterable[Row], elsewhere: Mapping[str, RunState], now: float
) -> tuple[RunRow, ...]:
    """Returns the rows of a list, without runs that were removed since it was read."""
    found = []
    for row in rows:
        with contextlib.suppress(NoSuchRun):
            found.append(_run_row(site, store, row.id, elsewhere.get(row.id), now))
    return tuple(found)


def _run_row(site: Site, store: Store, run_id: str, elsewhere: RunState | None, now: float) -> RunRow:
    status = store.status(run_id) if elsewhere is None else elsewhere.status
    ended_at = status.times.ended_at
    stale = "" if status.phase.is_terminal else site.targets.stale(status.target)[0]
    return view_of(
        RunRow,
        status,
        status.times,
        status.about,
        note=status.about.note[:MAX_TEXT],
        seconds=max(0.0, (now if ended_at is None else ended_at) - status.times.created_at),
        attempts=len(status.attempts),
        cause="" if status.cause is None else str(status.cause.summary)[:MAX_TEXT],
        warnings=len(status.warnings),
        stale=stale if elsewhere is None else elsewhere.stale or stale,
        is_recorded=elsewhere is None,
    )


# -- one run ----------------------------------------------------------------------------------------------------------


def run_page(site: Site, run_id: str) -> RunPage:
    """Returns the head of the page of a run. Raises NoSuchRun, UnsupportedVersion, StoreError."""
    now = site.now()
    site.targets.use()
    with site.records.open() as store:
        status, plan = store.status(run_id), store.plan(run_id)
        strip = site.tallies.read(run_id, store, lambda tally: strip_of(tally, now))
        summary = summary_of(status, now, is_here=store.host_elsewhere(status) is None)
    advance = advance_of(summary, now)
    stale, as_of = ("", None) if status.phase.is_terminal else site.targets.stale(status.target)
    return view_of(
        RunPage,
        summary,
        advance,
        seconds=summary.elapsed(now),
        waits_for=status.waits_for or "",
        cause="" if status.cause is None else str(status.cause.summary),
        needs_attention=needs_attention(status),
        num_nodes=plan.num_nodes,
        procs_per_node=plan.procs_per_node,
        ranks=_rank_counts(status),
        num_attempts=len(status.attempts),
        attempts=tuple(view_of(AttemptRow, one) for one in status.attempts[-MAX_ATTEMPTS:]),
        strip=strip,
        stale=stale,
        as_of=as_of if stale else None,
        actions=actions_for(site, status),
    )


def needs_attention(status: Status) -> bool:
    """Whether something is wrong with a run, so that its page begins with the verdict."""
    return (
        status.phase in ATTENTION
        or status.supervision.condition is not None
        or bool(status.warnings)
        or (not status.phase.is_terminal and status.cause is not None)
    )


def actions_for(site: Site, status: Status) -> tuple[str, ...]:
    """Returns the actions that the page of a run offers now."""
    if not site.may_act:
        return ()
    if SERVICE_LABEL in status.about.labels:  # the credentials of a service are valid for one start only
        return ("note",) if status.phase.is_terminal else ("stop", "note")
    change = "stop" if not status.phase.is_terminal else "resume" if status.phase is not Phase.SUCCEEDED else ""
    return tuple(filter(None, (change, "rerun", "note")))


def _rank_counts(status: Status) -> RankCounts:
    codes = {one.rank: one.exit_code for one in status.ranks}
    failed = {rank: code for rank, code in codes.items() if code}
    return RankCounts(
        running=sum(code is None for code in codes.values()),
        succeeded=sum(code == 0 for code in codes.values()),
        failed=len(failed),
        failures=dict(sorted(failed.items())[:MAX_FAILURES]),
    )


def strip_of(tally: Tally, now: float, max_pieces: int = MAX_PIECES) -> tuple[StripPiece, ...]:
    """Returns consecutive intervals of a run and their purposes, without gaps.

    With more than `max_pieces` intervals, the run is divided into equal parts. Each part gets the purpose that takes
    most of its time.
    """
    pieces: list[list[Any]] = []
    start: int | None = None
    for begin, end, spent, _ in tally.pieces(now):
        start = begin if start is None else start
        if pieces and pieces[-1][2] is spent:
            pieces[-1][1] = (end - start) / 1e6
        else:
            pieces.append([(begin - start) / 1e6, (end - start) / 1e6, spent])
    if len(pieces) > max_pieces:
        pieces = _equal_parts(pieces, max_pieces)
    return tuple(StripPiece(round(begin, 3), round(end - begin, 3), spent) for begin, end, spent in pieces)


def _equal_parts(pieces: Sequence[Sequence[Any]], num_parts: int) -> list[list[Any]]:
    width = pieces[-1][1] / num_parts
    shares = [Counter[Any]() for _ in range(num_parts)]
    for begin, end, spent in pieces:
        for part in range(int(begin / width), min(num_parts, math.ceil(end / width))):
            shares[part][spent] += min(end, (part + 1) * width) - max(begin, part * width)
    merged: list[list[Any]] = []
    for part, share in enumerate(shares):
        spent = max(share, key=share.__getitem__)
        if merged and merged[-1][2] is spent:
            merged[-1][1] = (part + 1) * width
        else:
            merged.append([part * width, (part + 1) * width, spent])
    return merged


# -- targets, disk ----------------------------------------------------------------------------------------------------


def targets_page(site: Site, given: Query) -> TargetsPage:
    """Returns all targets with their unfinished runs, from the last response of each target."""
    site.targets.use()
    now = site.now()
    with site.records.open() as store:
        rows = store.rows(site.abouts)
        elsewhere = {one.status.id: one for one in site.targets.others({row.id for row in rows})}
        rows += [_row_of(one.status) for one in elsewhere.values()]
        found = []
        for known in site.targets.known():
            own = [row for row in rows if row.about.target == known.name]
            active = [row for row in own if row.ended_at is None and not row.phase.is_terminal]
            newest = sorted(active, key=lambda row: -row.created_at)[:MAX_ACTIVE]
            shown = _run_rows(site, store, newest, elsewhere, now)
            found.append(TargetRow(site.targets.state(known), known.file, known.settings, shown, len(active), len(own)))
    return TargetsPage(tuple(found))


def disk_page(site: Site, given: Query) -> DiskPage:
    """Returns the warm processes of this machine and the memory that they use together."""
    warm = tuple(WarmProcess.from_json(one) for one in engine_class(DEFAULT).list_warm(site.context.home))
    return DiskPage(warm, sum(one.resident_bytes for one in warm))


def disk_part(site: Site, given: Query) -> DiskPart:
    """Returns the last measurement of the disk space that the home uses. Starts another one if it is a minute old.

    A measurement reads the size of each file of each run, and takes minutes for 10,000 runs. During the first one,
    `as_of` is null.
    """

    def measure() -> DiskPart:
        with site.records.open() as store:
            used = disk_use(store)
        largest = used.runs[:MAX_DISK_RUNS]
        return DiskPart(used.home, used.bytes, site.now(), largest, len(used.runs), used.others)

    return site.disk.get(measure, DISK_SECONDS, wait_seconds=1.0) or DiskPart(
        str(site.context.home), 0, None, (), 0, {}
    )
