"""Gathers what is known of a run from its record and its logs, for `why`: for every engine whose logs are here."""

from __future__ import annotations

import contextlib
import difflib
import json
import linecache
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

from windlass.diagnose.observations import ClusterSeen, NodeSeen, Observations, RankSeen
from windlass.diagnose.reading import FRAME, LIBRARY, plain
from windlass.engines.keeping import crash
from windlass.runs.record import Event, Status
from windlass.runs.store import Store

HEAD_BYTES: Final = 4 << 10
TAIL_BYTES: Final = 64 << 10
MAX_SOURCES: Final = 200
_MISSING_FILE: Final = re.compile(
    r"(?:FileNotFoundError|NotADirectoryError|No such file or directory)[^\n]*'([^'\n]+)'"
)
_MISSING_MODULE: Final = re.compile(r"No module named '?([\w.]+)'?")


@dataclass(frozen=True, slots=True)
class Heard:
    """What the nodes of the newest attempt have told in their files."""

    nodes: tuple[NodeSeen, ...] = ()
    ended_by_us: tuple[int, ...] = ()
    """Ranks that were told to end."""
    words: Mapping[int, str] = field(default_factory=dict)
    """The last words of ranks, which may have no log."""
    of_launcher: tuple[int, ...] = ()
    """Ranks whose last words are those of the launcher that ended them, and are not in their logs."""


def supervisor_words(run_dir: Path, status: Status) -> str:
    """The traceback of a supervisor that crashed, from its marker or from the record; empty where none did."""
    if (crashed := crash.read(run_dir)) is not None:
        return crashed.traceback or crashed.summary
    cause = status.cause or {}
    return str(cause.get("traceback") or "") if str(cause.get("summary", "")).startswith(crash.BROKE) else ""


def hear(store: Store, status: Status) -> Heard:
    """What the nodes of the newest attempt have told; for engines whose attempts have a folder of such files."""
    folder = store.run_dir(status.id) / f"attempt-{len(status.attempts)}"
    ends = {node: _end(folder / f"node-{node}.events") for node in sorted({state.node for state in status.ranks})}
    failures = [one for end in ends.values() for one in end.get("failures", ())]
    return Heard(
        tuple(NodeSeen(node, text_of(folder / f"node-{node}.out"), end.get("facts", {})) for node, end in ends.items()),
        tuple(one["rank"] for one in failures if one["ended_by_us"]),
        {one["rank"]: one["tail"] for one in failures},
        tuple(one["rank"] for one in failures if one.get("of_launcher")),
    )


def text_of(path: Path) -> str:
    """The end of a file that one may want to quote; empty where there is none."""
    try:
        return path.read_text(errors="replace").strip()[-4000:]
    except OSError:
        return ""


def _end(path: Path) -> dict[str, Any]:
    """The last word of a node; empty where it has none."""
    for event in _lines(path):
        if event.get("kind") == "end":
            return event
    return {}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with open(path, "rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield json.loads(line)
    except (OSError, ValueError):
        return


def observe(
    store: Store, status: Status, *, heard: Heard | None = None, facts: Mapping[str, Any] | None = None,
    cluster: ClusterSeen | None = None, moved: tuple[str, str] | None = None,
) -> Observations:  # fmt: skip
    """What is known of a run.

    `heard`, `facts` and `cluster` are what only its engine can tell. Where the script's files are elsewhere than
    where it ran, `moved` is that folder, and theirs here.
    """
    heard = heard or Heard()
    plan = store.plan(status.id)
    events = store.events(status.id)
    number = len(status.attempts)
    folder = store.run_dir(status.id) / f"attempt-{number}"
    stacks = [
        rank["stack"] for event in events if event.kind == "hang" for rank in event.data["ranks"] if rank["stack"]
    ]
    ended_at = _ends(events)
    ours = set(heard.ended_by_us)
    ranks = []
    for state in status.ranks:
        head, tail, last_output_at = _output(folder / f"rank-{state.rank}.log", stacks)
        words = heard.words.get(state.rank, "")
        tail = f"{tail.rstrip()}\n{words}" if tail and state.rank in heard.of_launcher else tail or words
        code, at = ended_at.get(state.rank, (state.exit_code, None))
        if code is None and status.cause and status.cause.get("rank") == state.rank:
            code, at = status.cause.get("exit_code"), status.cause.get("at")
        ranks.append(RankSeen(state.rank, state.node, code, at, state.rank in ours, head, tail, last_output_at))
    seen = Observations(status, plan, events, ranks, heard.nodes, facts or {})
    texts = [*(rank.tail for rank in ranks), *stacks, str((status.cause or {}).get("traceback") or "")]
    return Observations(
        status,
        plan,
        events,
        ranks,
        seen.nodes,
        seen.facts,
        sources=_sources(texts, moved),
        near=dict(_near(texts, moved[1] if moved else seen.code_dir)),
        cluster=cluster,
    )


def _ends(events: Iterable[Event]) -> dict[int, tuple[int | None, float]]:
    """Exit code and time of death of each rank of the newest attempt."""
    found: dict[int, tuple[int | None, float]] = {}
    for event in events:
        if event.kind == "attempt":
            found.clear()
        elif event.kind == "rank" and "exit_code" in event.data:
            found[event.data["rank"]] = (event.data["exit_code"], event.time)
    return found


def _output(path: Path, stacks: Iterable[str]) -> tuple[str, str, float | None]:
    """First and last of what a rank has written, without the stacks that we have asked for, and when it last wrote."""
    try:
        with open(path, "rb") as file:
            head = file.read(HEAD_BYTES)
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - TAIL_BYTES))
            tail = file.read()
            written_at = os.fstat(file.fileno()).st_mtime
    except OSError:
        return "", "", None
    texts = [head.decode("utf-8", "replace"), tail.decode("utf-8", "replace")]
    for stack in stacks:
        texts = [text.replace(stack, "") for text in texts]
    if not texts[1].strip():
        return "", "", None
    return texts[0], texts[1], written_at


def _sources(texts: Iterable[str], moved: tuple[str, str] | None) -> dict[str, str]:
    """The lines of the script's own files that are named in stacks and tracebacks."""
    found: dict[str, str] = {}
    linecache.checkcache()
    for text in texts:
        for match in FRAME.finditer(plain(text)):
            key = f"{match['file']}:{match['line']}"
            if key not in found and len(found) < MAX_SOURCES and not LIBRARY.search(match["file"]):
                file = match["file"].replace(*moved, 1) if moved else match["file"]
                found[key] = linecache.getline(file, int(match["line"])).strip()[:200]
    return {key: line for key, line in found.items() if line}


def _near(texts: Iterable[str], code_dir: str) -> Iterator[tuple[str, str]]:
    """What is there in place of the files and modules that were not found."""
    for text in texts:
        for name in _MISSING_FILE.findall(text)[-3:]:
            path = Path(code_dir, name)
            with contextlib.suppress(OSError):
                folder = path.parent
                while not folder.is_dir() and folder != folder.parent:
                    path, folder = folder, folder.parent
                if close := difflib.get_close_matches(
                    path.name, [entry.name for entry in islice(folder.iterdir(), 2000)], 1, 0.7
                ):
                    yield (
                        name,
                        str(Path(name).parent / close[0])
                        if path.parent == Path(code_dir, name).parent
                        else str(folder / close[0]),
                    )
        for name in _MISSING_MODULE.findall(text)[-3:]:
            top = name.partition(".")[0]
            with contextlib.suppress(OSError):
                for entry in sorted(os.scandir(code_dir or "/nowhere"), key=lambda entry: entry.name):
                    inside = Path(entry.path) / top
                    if entry.is_dir() and (inside.is_dir() or inside.with_suffix(".py").is_file()):
                        yield name, f"{entry.name}/{top} is there: set env: {{PYTHONPATH: {entry.name}}}"
                        break
