"""Collects observations from the record and the logs of a run for `why`, for engines with logs on this machine."""

from __future__ import annotations

import contextlib
import difflib
import linecache
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

from windlass.diagnose.flights import flights_of
from windlass.diagnose.observations import MachineFacts, NodeSeen, Observations, RankSeen
from windlass.diagnose.reading import FRAME, LIBRARY
from windlass.runs import crash, node_events
from windlass.runs.events import AttemptEnded, Event, HangDetected, RankChanged, entries, of_newest_attempt
from windlass.runs.history import History
from windlass.runs.logs import MARKER, without_structured
from windlass.runs.phase import Phase
from windlass.runs.record import RankState, Status, fold
from windlass.runs.store import Store
from windlass.worker.process import read_text
from windlass.worker.protocol import TRACEBACK, NodeEnded, RankFailure
from windlass.worker.tracebacks import plain, since_handled

TAIL_BYTES: Final = 64 << 10
MAX_SOURCES: Final = 200
_MISSING_FILE: Final = re.compile(
    r"(?:FileNotFoundError|NotADirectoryError|No such file or directory)[^\n]*'([^'\n]+)'"
)
_MISSING_MODULE: Final = re.compile(r"No module named '?([\w.]+)'?")


def observe(
    store: Store, status: Status, *, machine: MachineFacts | None = None, moved: tuple[str, str] | None = None
) -> Observations:
    """Returns the observations on a run. `machine` has facts about this machine, if the ranks run here.

    If the script ran in another folder than it has here, `moved` is the original folder and the local one.
    """
    events = store.events(status.id)
    machine = machine or MachineFacts()
    seen = _observe(store, status, events, machine, moved)
    at = _failed_start(seen)
    if at is None:
        return seen
    before = fold(events[:at])
    before = replace(before, phase=Phase.FAILED, exit_code=before.cause.exit_code if before.cause is not None else None)
    return replace(seen, earlier=_observe(store, before, events[:at], machine, moved))


def _failed_start(seen: Observations) -> int | None:
    """Returns the index of the event that ended the previous attempt, if neither that attempt nor the newest one
    trained; see `Observations.earlier`.
    """
    ended = History.of(seen.events).ended if seen.timed_out else []
    if len(ended) < 2 or ended[-2].reason != "failure" or not all(one.failed_at_start for one in ended):
        return None
    return max(at for at, event in enumerate(seen.events) if event.kind == AttemptEnded.kind)


def _observe(
    store: Store, status: Status, events: list[Event], machine: MachineFacts, moved: tuple[str, str] | None
) -> Observations:
    run_dir = store.run_dir(status.id)
    folder = run_dir / f"attempt-{len(status.attempts)}"
    node_ends = {node: _end(folder / f"node-{node}.events") for node in sorted({state.node for state in status.ranks})}
    failures = {one.rank: one for end in node_ends.values() if end is not None for one in end.failures}
    hangs = entries(events, HangDetected)
    stacks = {rank.stack: hang.since or 0.0 for hang in hangs for rank in hang.ranks if rank.stack}
    ended_at = _ends(events)
    ranks = [
        _rank(
            status,
            state,
            ended_at.get(state.rank),
            failures.get(state.rank),
            _output(folder / f"rank-{state.rank}.log", stacks),
        )
        for state in status.ranks
    ]
    nodes = [
        NodeSeen(node, text_of(folder / f"node-{node}.out"), flights_of(end.flights) if end is not None else {})
        for node, end in node_ends.items()
    ]
    seen = Observations(
        status,
        store.plan(status.id),
        events,
        ranks,
        nodes,
        machine,
        supervisor_traceback(run_dir, status),
    )
    texts = [*(rank.tail for rank in ranks), *stacks, seen.cause.traceback]
    near = dict(_near(texts, moved[1] if moved else seen.code_dir))
    return replace(seen, sources=_sources(texts, moved), near=near)


def supervisor_traceback(run_dir: Path, status: Status) -> str:
    """Returns the traceback of a crashed supervisor, from its marker or the record; empty if none crashed."""
    if (crashed := crash.read(run_dir)) is not None:
        return crashed.traceback or crashed.summary
    cause = status.cause
    return cause.traceback if cause is not None and cause.summary.startswith(crash.BROKE) else ""


def text_of(path: Path) -> str:
    """Returns the end of a file for quoting; empty if it does not exist."""
    return read_text(path).strip()[-4000:]


def _end(path: Path) -> NodeEnded | None:
    """Returns how a node ended, from the node's own report; None if the node has not ended."""
    ends = [event for event in node_events.read(path) if isinstance(event, NodeEnded)]
    return ends[-1] if ends else None


def _rank(
    status: Status,
    state: RankState,
    ended: tuple[int, float] | None,
    failure: RankFailure | None,
    output: tuple[str, float | None],
) -> RankSeen:
    """Returns one rank, with its end from the record and its output from its log or, if missing there, its node's
    report.
    """
    tail, last_output_at = output
    words = failure.tail if failure is not None else ""
    tail = f"{tail.rstrip()}\n{words}" if tail and failure is not None and failure.of_launcher else tail or words
    if failure is not None and failure.by_exit:
        tail = since_handled(tail)
    elif TRACEBACK in words and TRACEBACK not in tail:
        tail = words  # the report contains the start of a message that is cut in the log's tail
    code, at = ended or (state.exit_code, None)
    if code is None and status.cause is not None and status.cause.rank == state.rank:
        code, at = status.cause.exit_code, status.cause.at
    is_ours = failure is not None and failure.ended_by_us
    return RankSeen(state.rank, state.node, code, at, is_ours, tail, last_output_at)


def _ends(events: Iterable[Event]) -> dict[int, tuple[int, float]]:
    found: dict[int, tuple[int, float]] = {}
    for event in of_newest_attempt(events):
        match event.entry:
            case RankChanged(rank=rank, exit_code=int(exit_code)):
                found[rank] = (exit_code, event.time)
    return found


def _output(path: Path, stacks: Mapping[str, float]) -> tuple[str, float | None]:
    """Returns the last output of a rank, without requested stacks, and the time of its last output.

    `stacks` maps requested stacks to the start of the rank's silence, because a file that ends with stacks may have
    been fetched from a pod much later.
    """
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            data = file.read()
            written_at = os.fstat(file.fileno()).st_mtime
    except OSError:
        return "", None
    end = data.decode("utf-8", "replace").rstrip()
    written_at = next((since for stack, since in stacks.items() if end.endswith(stack.rstrip())), written_at)
    text = without_structured(data).decode("utf-8", "replace")
    for stack in stacks:
        text = text.replace(stack, "")
    if not text.strip():
        return "", written_at if MARKER in data else None
    return text, written_at


def _sources(texts: Iterable[str], moved: tuple[str, str] | None) -> dict[str, str]:
    """Returns the lines of the script's own files that stacks and tracebacks refer to.

    If the files have `moved`, the output is from another machine, and no other local files are read.
    """
    found: dict[str, str] = {}
    linecache.checkcache()
    for text in texts:
        for match in FRAME.finditer(plain(text)):
            key = f"{match['file']}:{match['line']}"
            if key not in found and len(found) < MAX_SOURCES and not LIBRARY.search(match["file"]):
                file = _here(match["file"], moved)
                found[key] = linecache.getline(file, int(match["line"])).strip()[:200] if file else ""
    return {key: line for key, line in found.items() if line}


def _here(file: str, moved: tuple[str, str] | None) -> str:
    """Returns the local path of a script file; empty for other files."""
    if moved is None:
        return file
    there, here = moved
    path = os.path.normpath(file)
    return f"{here}{path.removeprefix(there)}" if path.startswith(f"{there}/") else ""


def _near(texts: Iterable[str], code_dir: str) -> Iterator[tuple[str, str]]:
    """Yields similar names for files and modules that were not found."""
    for text in texts:
        for name in _MISSING_FILE.findall(text)[-3:]:
            with contextlib.suppress(OSError):
                yield from _near_file(name, Path(code_dir))
        for name in _MISSING_MODULE.findall(text)[-3:]:
            top = name.partition(".")[0]
            with contextlib.suppress(OSError):
                for folder in sorted(Path(code_dir or "/nowhere").iterdir()):
                    if folder.is_dir() and ((folder / top).is_dir() or (folder / f"{top}.py").is_file()):
                        yield name, f"{folder.name}/{top} is there: set env: {{PYTHONPATH: {folder.name}}}"
                        break


def _near_file(name: str, code_dir: Path) -> Iterator[tuple[str, str]]:
    """Yields the most similar file, or the first missing folder in the path. Raises OSError."""
    wanted = path = code_dir / name
    while not path.parent.is_dir() and path.parent != path.parent.parent:
        path = path.parent
    there = [entry.name for entry in islice(path.parent.iterdir(), 2000)]
    for close in difflib.get_close_matches(path.name, there, 1, 0.7):
        yield name, str((Path(name).parent if path == wanted else path.parent) / close)
