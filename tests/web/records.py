"""Records that are written fast: a failed run, ten thousand runs, and a run of a thousand ranks.

`python -m tests.web.records HOME` writes all of them, for a browser or a benchmark.
"""

from __future__ import annotations

import json
import math
import random
import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from windlass.plan.plan import NO_PLAN, Plan
from windlass.plan.steps import FolderStep
from windlass.runs import events
from windlass.runs.events import RECORD_VERSION, Event, Progress
from windlass.runs.metrics import FILE
from windlass.runs.phase import Phase
from windlass.runs.record import fold
from windlass.runs.store import Store, _dump
from windlass.worker.protocol import INDEX_RECORD

BEGAN: Final = 1_790_000_000.0
HOSTILE: Final = "<script>alert('x')</script>"
"""Text that a page must not execute."""
NAMES: Final = ("digits", "bert-large", "resnet50", "llama-lora", "whisper-small")
ENDS: Final = (Phase.SUCCEEDED, Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED, Phase.LOST)


def small_record(folder: Path, engine: str = "local") -> str:
    """Writes a home with one failed run of an engine, whose texts contain a script; returns the id."""
    run_id = "digits-7f3k2"
    history = _history(run_id, "digits", Phase.FAILED, ranks=2, labels={"team": "vision"})
    with Store(folder / "home") as store:
        _insert(store, [(run_id, history, replace(_plan(store, run_id), engine=engine))])
        store.write_note(run_id, HOSTILE)
        run_dir = store.run_dir(run_id)
    output = run_dir / "output"
    output.mkdir()
    (output / "model.txt").write_text("weights")
    (output / f"{HOSTILE.replace('/', '_')}.txt").write_text("named by an attacker")
    write_log(run_dir, 1, 0, [f"line {number} {HOSTILE}" for number in range(500)])
    write_metrics(run_dir, ranks=2, steps=50, names=("loss", f"acc {HOSTILE}"))
    return run_id


def many_runs(folder: Path, number: int = 10_000) -> None:
    """Writes a home with this many ended runs, in one transaction.

    They are copies of a few with other ids, times, labels and learning rates: to fold the events of each takes minutes.
    """
    chance = random.Random(1)
    with Store(folder / "home") as store:
        models = []
        for name, end in zip(NAMES, ENDS, strict=True):
            run_id = f"{name}-MODEL"
            history = _history(run_id, name, end, ranks=2, labels={"team": "TEAM", "sweep": "SWEEP"})
            models.append(json.dumps(_rows(store, run_id, history, _plan(store, run_id, lr="RATE"))))
        with store._transaction():
            for at in range(number):
                words = {
                    "MODEL": f"{at:05}",
                    "TEAM": chance.choice(("vision", "speech")),
                    "SWEEP": f"lr{at % 7}",
                    "RATE": f"{10 ** -chance.uniform(1, 5):.2g}",
                }
                _insert_rows(store, json.loads(_copy(models[at % len(models)], words, 60.0 * at)))


def _copy(text: str, words: dict[str, str], seconds: float) -> str:
    """Returns a text with other words, and with times that are later by so many seconds."""
    text = re.sub("|".join(words), lambda match: words[match[0]], text)
    return re.sub(r"1790000\d+\.\d+", lambda match: str(float(match[0]) + seconds), text)


def large_run(folder: Path, ranks: int = 1_000, log_lines: int = 1_000) -> str:
    """Writes a run of this many ranks with metrics, logs and step times, of which rank 17 is a straggler."""
    run_id = "bert-large-big01"
    nodes = max(1, ranks // 8)
    history = _history(run_id, "bert-large", None, ranks=ranks, restarts=2, nodes=nodes)
    with Store(folder / "home") as store:
        _insert(store, [(run_id, history, _plan(store, run_id, nodes=nodes, procs=8))])
        run_dir = store.run_dir(run_id)
    write_log(run_dir, 3, 0, [f"step {number} loss {1 / (number + 1):.4f}" for number in range(log_lines)])
    write_metrics(run_dir, ranks=1, steps=5_000, names=("loss", "eval/accuracy", "lr"), attempts=3)
    write_step_seconds(run_dir, ranks)
    return run_id


# -- files of a run ---------------------------------------------------------------------------------------------------


def write_log(run_dir: Path, attempt: int, rank: int, lines: Iterable[str]) -> None:
    """Writes the log of a rank and its index, with a record for every hundred lines."""
    folder = run_dir / f"attempt-{attempt}"
    folder.mkdir(parents=True, exist_ok=True)
    end, records, texts = 0, [], []
    for number, line in enumerate(lines, 1):
        data = f"{line}\n".encode()
        texts.append(data)
        end += len(data)
        if number % 100 == 0:
            records.append(INDEX_RECORD.pack(int((BEGAN + number / 100) * 1e9), end))
    records.append(INDEX_RECORD.pack(int((BEGAN + len(texts) / 100 + 1) * 1e9), end))
    (folder / f"rank-{rank}.log").write_bytes(b"".join(texts))
    (folder / f"rank-{rank}.idx").write_bytes(b"".join(records))


def write_metrics(run_dir: Path, *, ranks: int, steps: int, names: Iterable[str], attempts: int = 1) -> None:
    """Writes metrics that fall like 1/step; each attempt after the first repeats a tenth of the steps before it."""
    with open(run_dir / FILE, "a") as file:
        for attempt in range(1, attempts + 1):
            first = (attempt - 1) * steps // attempts - (steps // 10 if attempt > 1 else 0)
            for rank in range(ranks):
                for name in names:
                    numbers = list(range(first, attempt * steps // attempts))
                    _write_batch(
                        file,
                        attempt,
                        rank,
                        "report",
                        name,
                        numbers,
                        [BEGAN + 30 * attempt + number / 10 for number in numbers],
                        [1 / (number + 1) + 0.01 * math.sin(number) for number in numbers],
                    )


def write_step_seconds(run_dir: Path, ranks: int, points: int = 60, straggler: int = 17) -> None:
    """Writes the seconds per step of every rank; those of the straggler are three times as long."""
    chance = random.Random(2)
    with open(run_dir / FILE, "a") as file:
        for rank in range(ranks):
            mean = 0.3 if rank == straggler else 0.1
            times = [BEGAN + 100 + 5.0 * point for point in range(points)]
            values = [mean * chance.uniform(0.95, 1.05) for _ in times]
            _write_batch(file, 3, rank, "node", "step_seconds", [None] * points, times, values)


def _write_batch(file: Any, attempt: int, rank: int, source: str, name: str, *columns: list[Any]) -> None:
    batch: dict[str, Any] = {"attempt": attempt, "node": rank // 8, "seq": 1, "rank": rank}
    batch |= {"source": source, "name": name, **dict(zip(("steps", "times", "values"), columns, strict=True))}
    file.write(json.dumps(batch, separators=(",", ":")) + "\n")


# -- rows of the record -----------------------------------------------------------------------------------------------


def _history(
    run_id: str,
    name: str,
    end: Phase | None,
    *,
    ranks: int,
    labels: dict[str, str] | None = None,
    began: float = BEGAN,
    restarts: int = 0,
    nodes: int = 1,
) -> list[Event]:
    created = events.Created(
        run_id, name, "local", f"/nowhere/{run_id}", version=RECORD_VERSION, restarts=3, labels=labels or {}, user="ann"
    )
    entries: list[tuple[float, events.Entry]] = [(0.0, created)]
    at = 1.0
    for attempt in range(1, restarts + 2):
        entries.append(
            (
                at,
                events.AttemptStarted(
                    number=attempt, world_size=ranks, nodes=tuple(tuple(range(ranks))[at::nodes] for at in range(nodes))
                ),
            )
        )
        entries += [(at + 1, events.RankChanged(rank=rank, pid=1000 + rank)) for rank in range(ranks)]
        entries.append((at + 2, events.PhaseEntered(Phase.TRAINING)))
        entries.append((at + 20, Progress(step=attempt * 100, total=1000, loss=0.5 / attempt, at=began + at + 20)))
        at += 30
        if attempt <= restarts:
            entries.append((at, events.RootCause(f"rank 3 failed {HOSTILE}", rank=3)))
            entries.append((at, events.AttemptEnded(phase=Phase.FAILED, reason="failure")))
    if end is Phase.FAILED:
        entries.append((at, events.RankChanged(rank=0, exit_code=1)))
        entries.append((at, events.RootCause(f"ModuleNotFoundError {HOSTILE}", rank=0)))
    if end is not None:
        entries.append((at, events.AttemptEnded(phase=end, reason=None if end is Phase.SUCCEEDED else "failure")))
        entries.append((at, events.RunEnded(end, 1 if end is Phase.FAILED else 0)))
    return [entry.event(seq, began + after) for seq, (after, entry) in enumerate(entries, 1)]


def _plan(store: Store, run_id: str, *, lr: str = "0.1", nodes: int = 1, procs: int = 2) -> Plan:
    folder = store.run_dir(run_id)
    folders = FolderStep("makes the folders", str(folder / "output"), str(folder / "checkpoints"))
    job = {"name": run_id.rpartition("-")[0], "run": "train.py", "env": {"LR": lr, "WHO": HOSTILE}}
    return replace(
        NO_PLAN,
        run_id=run_id,
        engine="local",
        target="local",
        num_nodes=nodes,
        procs_per_node=procs,
        job=job,
        steps=(folders,),
    )


_INSERT: Final = """INSERT INTO runs (id, created_at, ended_at, version, phase, status, plan)
    VALUES (?, ?, ?, ?, ?, ?, ?)"""


def _insert(store: Store, runs: Iterable[tuple[str, list[Event], Plan]]) -> None:
    """Writes runs without their locks, a hundred times faster than `RunWriter`."""
    with store._transaction():
        for run_id, history, plan in runs:
            _insert_rows(store, _rows(store, run_id, history, plan))


def _rows(store: Store, run_id: str, history: list[Event], plan: Plan) -> tuple[list[Any], list[list[Any]]]:
    """Returns the row of a run, and those of its events."""
    status = replace(fold(history), output_dir=str(store.run_dir(run_id) / "output"))
    times, phase = status.times, status.phase.value
    run = [run_id, times.created_at, times.ended_at, RECORD_VERSION, phase, _dump(status), plan.to_text()]
    return run, [[run_id, event.seq, event.time, event.kind, json.dumps(event.data)] for event in history]


def _insert_rows(store: Store, rows: tuple[list[Any], list[list[Any]]]) -> None:
    run, history = rows
    store.run_dir(run[0]).mkdir(parents=True)
    store._db.execute(_INSERT, run)
    store._db.executemany("INSERT INTO events (run_id, seq, time, kind, data) VALUES (?, ?, ?, ?, ?)", history)


if __name__ == "__main__":
    home = Path(sys.argv[1])
    small_record(home)
    many_runs(home)
    large_run(home, log_lines=1_000_000)
