"""Builds the parts of a run's page that are loaded when the user opens them."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from windlass.actions.artifacts import list_artifacts
from windlass.actions.checkpoints import find_checkpoints
from windlass.actions.why import report
from windlass.code.kept import kept_digest, why_not_kept
from windlass.engines import engine_class
from windlass.errors import UsageError, WindlassError
from windlass.runs.data import data_differences
from windlass.runs.ledger import cost_of, ledger_of
from windlass.views.artifacts import Artifact
from windlass.views.checkpoints import CheckpointView
from windlass.views.pages import (
    EventRow,
    FileRow,
    RunArtifacts,
    RunCheckpoints,
    RunEnvironment,
    RunEvents,
    RunPlan,
    RunTime,
    StepRow,
)
from windlass.views.serialise import view_of
from windlass.views.verdict import Why
from windlass.web.files import open_below
from windlass.web.site import Site, reading_engine

Query = Mapping[str, str]

PAGE_EVENTS: Final = 200
MAX_STEPS: Final = 40
MAX_REQUEST: Final = 3_000
"""Maximum characters of one request on the page."""
MAX_CHECKPOINTS: Final = 200
MAX_FILES: Final = 500
MAX_JOB: Final = 20_000


def why_part(site: Site, run_id: str, given: Query) -> Why:
    """Returns the verdict on a run from its record and logs. Raises NoSuchRun, WindlassError."""
    with site.records.open() as store:
        status = store.status(run_id)
        return site.verdicts.get(run_id, status.last_seq, lambda: report(run_id, reading_engine(run_id, store)))


def time_part(site: Site, run_id: str, given: Query) -> RunTime:
    """Returns the time and the cost of a run by purpose, at the price in its plan. Raises NoSuchRun."""
    with site.records.open() as store:
        plan = store.plan(run_id)
        ledger = site.tallies.read(run_id, store, lambda tally: ledger_of(tally, site.now(), plan.num_spares))
        cost = cost_of(ledger, plan.price)
        billed = engine_class(plan.engine, run_id).billed(store.run_dir(run_id), cost)
        return RunTime(run_id, ledger, cost, plan.price, billed)


def events_part(site: Site, run_id: str, given: Query) -> RunEvents:
    """Returns events of a run, newest first: the newest ones, or those before the number `before`. Raises NoSuchRun."""
    from windlass.cli.eventtext import colour_of, sentence

    before = given.get("before", "")
    with site.records.open() as store:
        status = store.status(run_id, with_progress=False)
        last = int(before) - 1 if before.isdecimal() and len(before) < 12 else status.last_seq
        first = max(0, last - PAGE_EVENTS)
        found = store.events(run_id, first, last=last)
    rows = tuple(
        EventRow(event.seq, event.time, event.kind, sentence(event), colour_of(event) or "")
        for event in reversed(found)
    )
    return RunEvents(run_id, status.times.created_at, rows, first + 1 if first > 0 else None)


def plan_part(site: Site, run_id: str, given: Query) -> RunPlan:
    """Returns the plan of a run. Raises NoSuchRun, StoreError."""
    from windlass.spec.yamlwriter import block_lines

    with site.records.open() as store:
        plan = store.plan(run_id)
    steps = []
    for step in plan.steps[:MAX_STEPS]:
        data = step.to_json()
        text = json.dumps(data["request"], indent=2, ensure_ascii=False)
        steps.append(StepRow(data["kind"], data["summary"], text[:MAX_REQUEST], len(text) > MAX_REQUEST))
    job = "\n".join(block_lines(plan.job))[:MAX_JOB]
    return RunPlan(run_id, job, tuple(map(asdict, plan.notes)), tuple(steps), len(plan.steps))


def environment_part(site: Site, run_id: str, given: Query) -> RunEnvironment:
    """Returns the interpreter, command, variables, code and data of a run. Raises NoSuchRun, StoreError."""
    with site.records.open() as store:
        status, plan = store.status(run_id), store.plan(run_id)
        nodes = plan.nodes
        return RunEnvironment(
            run_id,
            nodes.worker_python,
            tuple(nodes.argv),
            nodes.cwd,
            {
                "contract": _words(nodes.contract),
                "engine": _words(nodes.defaults),
                "target": _words(nodes.target_env),
                "job": _words(nodes.job_env),
            },
            tuple(nodes.imports),
            plan.revision,
            kept_digest(store.run_dir(run_id)) or "",
            why_not_kept(store.run_dir(run_id)),
            status.files.data,
            data_differences(status, store),
        )


def _words(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value)[:MAX_REQUEST] for name, value in values.items()}


def checkpoints_part(site: Site, run_id: str, given: Query) -> RunCheckpoints:
    """Returns the checkpoints of a run as far as this machine can list them. Raises NoSuchRun."""
    with site.records.open() as store:
        engine = reading_engine(run_id, store)
        note, folder = "", engine.checkpoint_dir(run_id)
        found: tuple[CheckpointView, ...] = ()
        try:
            if engine.is_remote or "://" in folder:  # a page contacts no target and no object store
                place = "at the target" if engine.is_remote else "in an object store"
                note = f"they are {place}; list them: windlass checkpoints {run_id}"
            else:
                found = tuple(view_of(CheckpointView, one) for one in find_checkpoints(engine, run_id).found)
        except WindlassError as error:
            note = error.message
    return RunCheckpoints(run_id, folder, found[:MAX_CHECKPOINTS], len(found), note)


def results_folder(site: Site, run_id: str) -> Path | None:
    """Returns the folder with the results of a run on this machine; None if they are elsewhere. Raises NoSuchRun."""
    with site.records.open() as store:
        engine = reading_engine(run_id, store)
        if not engine.is_remote:
            place = engine.results(run_id)
            return Path(place.copied or place.path) if place.copied or place.kind == "folder" else None
        status = store.status(run_id)
        copied = store.run_dir(run_id) / "output"
        return copied if status.files.collected is not None and status.output_dir == str(copied) else None


def artifacts_part(site: Site, run_id: str, given: Query) -> RunArtifacts:
    """Returns the results of a run, and the files in the folder `path`. Raises NoSuchRun, UsageError."""
    path = given.get("path", "").strip("/")
    folder = results_folder(site, run_id)
    with site.records.open() as store:
        engine = reading_engine(run_id, store)
        found: tuple[Artifact, ...] = ()
        note = ""
        if engine.is_remote:
            note = f"windlass artifacts {run_id} lists them with the commands that copy them"
        else:
            found = list_artifacts(engine, run_id).artifacts
    if folder is None:
        return RunArtifacts(run_id, found, path, (), 0, note or "the results are not on this machine")
    try:
        files = list_folder(folder, path)
    except FileNotFoundError:
        return RunArtifacts(run_id, found, path, (), 0, "the folder does not exist")
    except OSError as error:
        raise UsageError(f"the folder cannot be read ({error.strerror or error})") from error
    return RunArtifacts(run_id, found, path, tuple(files[:MAX_FILES]), len(files), note)


def list_folder(folder: Path, path: str) -> list[FileRow]:
    """Returns the files and folders in `path` below `folder`, without links. Raises OSError.

    A name that is not valid Unicode has no `path`, since no URL leads to it.
    """
    opened = open_below(folder, path, is_folder=True)
    try:
        rows = []
        for name in os.listdir(opened):  # noqa: PTH208 - of an open folder, which pathlib cannot list
            try:
                about = os.stat(name, dir_fd=opened, follow_symlinks=False)
            except FileNotFoundError:  # an active run renames its checkpoints
                continue
            is_folder = stat.S_ISDIR(about.st_mode)
            if is_folder or stat.S_ISREG(about.st_mode):
                size = None if is_folder else about.st_size
                place = f"{path}/{name}".lstrip("/") if name == name.encode(errors="replace").decode() else ""
                rows.append(FileRow(name, place, is_folder, size, about.st_mtime))
    finally:
        os.close(opened)
    return sorted(rows, key=lambda row: (not row.is_folder, row.name))
