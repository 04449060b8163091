"""Plans, lists, resumes and removes runs; other operations go directly to the run's engine."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from windlass.actions.targets import find_address, find_target
from windlass.engines import engine_class, target_class
from windlass.errors import EngineError, NoSuchRun, UsageError, WindlassError
from windlass.runs.context import Context, here
from windlass.runs.naming import newest_of
from windlass.runs.phase import Phase
from windlass.runs.record import Status
from windlass.runs.store import Store
from windlass.spec.labels import SERVICE_LABEL, command_of_service

if TYPE_CHECKING:
    from pathlib import Path

    from windlass.actions.jobs import ReadyJob
    from windlass.engines.base import Engine
    from windlass.engines.values import RunState
    from windlass.plan.notes import Note
    from windlass.plan.plan import Plan
    from windlass.spec.job import Job
    from windlass.spec.targets import Target
    from windlass.views.code_files import ChangedFiles

STOP_SECONDS: Final = 60.0
"""Seconds beyond the grace period that a stop waits for an unresponsive target."""
STOP_LOOK_SECONDS: Final = 5.0
TOKEN_TO_LOOK: Final = "xxxxx"
OF_RUN: Final = (
    "checkpoint.folder", "code", "data", "kubernetes.namespace", "kubernetes.results", "kubernetes.via", "labels",
    "local", "name", "outputs.at", "outputs.to", "volumes",
)  # fmt: skip
"""Job fields that cannot change in a resumed run: they determine its name and the locations of data and results."""
SHARED_RUNS: Final = 20
"""Number of newest runs that are searched for identical code; runs with identical code share one stored file."""


def make_plan(ready: ReadyJob, on: str, context: Context, *, to_look: bool = False) -> Plan:
    """Plans a run of this job on the target `on`, or on the first of several targets (`a,b`) that can run it.

    With `to_look`, the plan is only displayed: the run id ends with `xxxxx` instead of a random suffix. Changes
    nothing. Raises UsageError, JobFileError.
    """
    from windlass.code.revision import read_revision

    targets = [find_target(name.strip(), context) for name in on.split(",")]
    token = TOKEN_TO_LOOK if to_look else context.token()
    made = _plan_for_first(ready, targets, f"{ready.job.name}-{token}", context)
    return replace(made, revision=read_revision(ready.base / ready.job.code_path, context.environ))


def _plan_for_first(ready: ReadyJob, targets: Sequence[Target], run_id: str, context: Context) -> Plan:
    """Returns the plan for the first target that can run the job, with notes on why earlier targets cannot. If no
    target can, returns the plan for the first target, with notes on the others. Raises UsageError if the only target
    cannot be used at all.
    """
    from windlass.plan.notes import Note

    if len(targets) == 1:
        return plan_for(ready, targets[0], run_id, context)
    plans: list[Plan] = []
    notes: list[Note] = []
    errors: list[WindlassError] = []
    for target in targets:
        try:
            made = plan_for(ready, target, run_id, context)
        except (UsageError, EngineError) as error:
            errors.append(error)
            notes.append(Note("target-passed-over", f"{target.name}: {error.message}", error.hint or ""))
            continue
        blocking = [note for note in made.notes if note.blocks]
        if not blocking:
            return replace(made, notes=(*notes, *made.notes))
        plans.append(made)
        why = "; ".join(note.message for note in blocking)
        notes.append(Note("target-passed-over", f"{target.name} cannot run it: {why}", blocking[0].fix))
    if not plans:
        raise errors[0]
    others = [note for note in notes if not note.message.startswith(f"{plans[0].target} cannot run it: ")]
    return replace(plans[0], notes=(*plans[0].notes, *others))


def plan_for(ready: ReadyJob, target: Target, run_id: str, context: Context) -> Plan:
    """Plans a run of `ready` on `target`; reads the facts of the target, changes nothing."""
    from windlass.plan.notes import Note

    engine = engine_class(target.kind, f"target {target.name}")
    job, notes = _with_variables(ready.job if engine.is_remote else ready.local_job, ready.base)
    made = engine.make_plan(job, target, run_id, ready.base, context)
    # The recorded job omits an interpreter of this machine; a later plan takes the interpreter from the node spec.
    if job.python != ready.job.python:
        made = replace(made, job={name: one for name, one in made.job.items() if name != "python"})
    return replace(made, notes=(*(Note(*remark) for remark in ready.remarks), *notes, *made.notes))


def _with_variables(job: Job, base: Path) -> tuple[Job, list[Note]]:
    """Adds `launcher: torchrun` and a note to a job whose single rank needs the torchrun variables."""
    from windlass.code.process_group import needs_variables
    from windlass.plan.notes import Note

    if "launcher" in job.model_fields_set or job.launcher != "plain" or job.script_kind == "program":
        return job, []
    need = needs_variables(job, base / job.code_path)
    if need is None:
        return job, []
    text = f"{need.file} line {need.line} {need.what}: its one rank gets the variables of torchrun"
    note = Note("torchrun-variables", text, "launcher: torchrun in the job says so; launcher: plain leaves them out")
    return job.model_copy(update={"launcher": "torchrun"}), [note]


def submit(engine: Engine, plan: Plan, context: Context) -> Status:
    """Starts the run of a plan, and stores a copy of its code, or the code that was sent, next to the record.

    Raises the errors of `Engine.submit`.
    """
    from windlass.actions.jobs import code_folder
    from windlass.code.snapshot import keep_sent, keep_snapshot
    from windlass.engines.sources import own_folders
    from windlass.plan.steps import CodeStep

    status = engine.submit(plan)
    newest = engine.store.statuses(last=SHARED_RUNS)
    others = [engine.store.run_dir(one.id) for one in newest if one.name == plan.name and one.id != status.id]
    run_dir, code = engine.store.run_dir(status.id), plan.first(CodeStep)
    if plan.archive is not None and code is not None:
        keep_sent(plan.archive, code.unpacked_bytes, run_dir, others)
    else:
        own = own_folders(str(engine.store.home), plan.output_dir)
        keep_snapshot(code_folder(plan), run_dir, context.environ, others, own)
    return status


def after_runs(plan: Plan, named: Sequence[str], store: Store, context: Context) -> Plan:
    """Returns the plan with steps that wait until each of these runs has succeeded. Raises UsageError, NoSuchRun."""
    from windlass.plan.steps import AfterStep

    steps = []
    for name in named:
        engine, run_id = find(name, store, None, context)
        status = engine.store.status(run_id)
        for kind, where in ((plan.engine, f"this run is on {plan.target}"), (engine.kind, f"{run_id} is not")):
            if not engine_class(kind).can_follow:
                raise UsageError(
                    f"--after is for runs of this machine alone: {where}",
                    f"in a shell: windlass status {run_id} --watch --exit-code && windlass run …",
                )
        if supervised_elsewhere(status, store) is not None:
            raise UsageError(f"--after {name}: {run_id} is on another machine", "name a run of this machine")
        steps.append(AfterStep(f"wait until {run_id} has succeeded", run_id))
    return replace(plan, steps=(*steps, *plan.steps))


def rerun_plan(
    engine: Engine, run_id: str, on: str | None, overrides: Mapping[str, Any], more: Sequence[str], context: Context
) -> Plan:
    """Plans a new run of the job of `run_id`, with fields replaced and arguments appended; by default on the same
    target.

    Raises UsageError, JobFileError.
    """
    from windlass.actions.jobs import planned_job

    old = engine.plan_of(run_id)
    if old is None:
        raise UsageError(f"{run_id} has no plan on this machine", "run its job file: windlass run")
    _refuse_service(engine.status(run_id))
    _require_code(old, run_id)
    return make_plan(planned_job(old, overrides, more), on or old.target, context)


def _refuse_service(status: Status) -> None:
    """Raises UsageError for a service: its certificate and its token were removed at its end."""
    if kind := status.about.labels.get(SERVICE_LABEL):
        raise UsageError(
            f"{status.id} is a service, which has credentials for one start",
            f"{command_of_service(kind)} starts another",
        )


def changed_code(engine: Engine, run_id: str, context: Context) -> list[str]:
    """Returns files of the code folder that are new or changed since the start of the run; empty if unknown.

    Results that the script wrote into the code folder are left out.
    """
    from windlass.actions.jobs import code_folder
    from windlass.code.snapshot import differing
    from windlass.engines.sources import own_folders
    from windlass.views.code_files import changed_files

    plan = engine.plan_of(run_id)
    if plan is None or not (folder := code_folder(plan)).is_dir():
        return []
    own = own_folders(str(engine.store.home), plan.output_dir)
    found = differing(folder, engine.store.run_dir(run_id), context.environ, own) or []
    written = changed_files(engine.status(run_id).files.code_files, plan)
    return found if written is None else [name for name in found if not _is_result(name, written)]


def _is_result(name: str, written: ChangedFiles) -> bool:
    """Whether a file resembles results that the run wrote into its code folder, and is no program or settings file."""
    from windlass.code.kept import PROGRAM_TEXT
    from windlass.views.code_files import pattern_of
    from windlass.worker.collect import matches

    patterns = (one.split("/") for one in written.wanted)
    is_alike = pattern_of(name) in written.patterns or any(matches(name.split("/"), parts) for parts in patterns)
    return is_alike and not name.endswith(PROGRAM_TEXT)


def has_sent_code(engine: Engine, run_id: str) -> bool:
    """Whether the ranks use a copy of the code instead of the folder itself."""
    from windlass.plan.steps import CodeStep

    plan = engine.plan_of(run_id)
    return plan is not None and plan.first(CodeStep) is not None


def _require_code(plan: Plan, run_id: str) -> None:
    from windlass.actions.jobs import code_folder

    folder = code_folder(plan)
    if not folder.is_dir():
        raise UsageError(
            f"the code of {run_id} was in {folder}, which does not exist",
            f"windlass cp {run_id}:code FOLDER has the code of then",
        )


# -- finding runs -----------------------------------------------------------------------------------------------------


def connect(target_name: str, store: Store, context: Context) -> Engine:
    """Returns the engine of the named target. Raises UsageError, JobFileError."""
    target = find_address(target_name, context)
    return target_class(target.kind, f"target {target.name}").connect(store, target, context)


def engine_for(run_id: str, store: Store) -> Engine:
    """Returns the engine of a recorded run. Raises NoSuchRun."""
    return _engine(store.engine_of(run_id), store, run_id)


def _engine(kind: str, store: Store, needed_by: str = "") -> Engine:
    """Returns the engine for this kind of run. Raises UsageError if it is not installed."""
    found = engine_class(kind, needed_by)
    # A remote engine would write the status of its target into the record, which is read-only here.
    if store.is_read_only and found.is_remote:
        from windlass.engines.recorded import RecordedEngine

        return RecordedEngine(store)
    return found.connect(store)


def find(run: str | None, store: Store, on: str | None = None, context: Context | None = None) -> tuple[Engine, str]:
    """Resolves a run name to its engine and id, like `naming.choose`; by default the newest run.

    With `on`, finds a run on this target, whichever machine started it. If `run` is a job name, `context` prints the
    chosen run. Raises NoSuchRun, UsageError, EngineError.
    """
    if on is not None:
        engine, run_id = connect(on, store, context or here()).find(run)
    else:
        run_id = store.find(run)
        engine = engine_for(run_id, store)
    if run is not None and context is not None and (line := newest_of(run, run_id)):
        context.say(line)
    return engine, run_id


def find_by_id(run: str, store: Store, on: str | None) -> tuple[Engine, str]:
    """Resolves a run like `find`, but rejects job names, because irreversible commands require an id. Raises
    UsageError.
    """
    engine, run_id = find(run, store, on)
    if newest_of(run, run_id):
        raise UsageError(
            f"'{run}' is the name of a job, and a run is removed by its id",
            f"to remove its newest run: windlass rm {run_id}",
        )
    return engine, run_id


def unreadable_ids(named: Sequence[str], store: Store) -> list[str]:
    """Returns the names that are ids of runs recorded by another version of Windlass.

    Raises UsageError for a run that a process of that version still supervises.
    """
    unreadable = {one.id for one in store.unreadable()}
    found = [name for name in dict.fromkeys(named) if name in unreadable]
    for run_id in found:
        if store.is_held(run_id):
            raise UsageError(
                f"{run_id} is supervised by another version of Windlass", "stop it with that version, then remove it"
            )
    return found


def find_all(
    named: Sequence[str],
    labels: tuple[str, ...],
    store: Store,
    on: str | None,
    context: Context,
    *,
    is_over: bool | None = None,
) -> list[tuple[Engine, str]]:
    """Resolves the named runs, without duplicates, and the runs with all of these labels; the newest run if neither is
    given.

    `is_over` selects ended or active runs among the runs with the labels. Raises NoSuchRun, also if no run has the
    labels, UsageError, EngineError.
    """
    if not named and not labels:
        return [find(None, store, on, context)]
    found = [find(one, store, on, context) for one in named]
    found += _with_labels(labels, store, on, context, is_over) if labels else []
    return list({run_id: (engine, run_id) for engine, run_id in found}.values())


def _with_labels(
    labels: tuple[str, ...], store: Store, on: str | None, context: Context, is_over: bool | None
) -> list[tuple[Engine, str]]:
    from windlass.actions.listing import Filter, labels_in

    wanted = Filter(labels=labels_in(labels))
    remote = connect(on, store, context) if on is not None else None
    listed = [one.status for one in remote.list()] if remote is not None else statuses(store)
    chosen = [one.id for one in listed if wanted.matches(one) and is_over in (None, one.phase.is_terminal)]
    if not chosen:
        kind = {None: "run", True: "ended run", False: "unfinished run"}[is_over]
        raise NoSuchRun(f"no {kind} has the label {' '.join(labels)}", "windlass ps --all lists all runs")
    return [find(one, store, on) for one in chosen]


@contextlib.contextmanager
def opened(run: str | None, on: str | None = None) -> Iterator[tuple[Engine, str]]:
    """Resolves a run like `find` for one command, and keeps the record open meanwhile."""
    context = here()
    with context.store() as store:
        yield find(run, store, on, context)


# -- status of runs ---------------------------------------------------------------------------------------------------


def statuses(store: Store, *, last: int | None = None) -> list[Status]:
    """Returns the current status of active runs, and the `last` newest runs (None: all), newest first. Also retries the
    unfinished cleanup of ended runs.
    """
    if last is None:
        store.empty_trash()  # deletes the files of removed runs; cheap compared with listing all runs
    fresh, by_kind = {}, dict[str, list[Status]]()
    for unfinished in store.statuses(unfinished=True):
        fresh[unfinished.id] = unfinished
        with contextlib.suppress(WindlassError):  # a run that cannot be checked now must not hide the others
            by_kind.setdefault(store.engine_of(unfinished.id), []).append(unfinished)
    for kind, some in by_kind.items():
        with contextlib.suppress(WindlassError):  # runs of an engine that is not installed must not hide the others
            fresh |= {status.id: status for status in _engine(kind, store).statuses(some)}
    found = {**fresh, **{status.id: status for status in store.statuses(last=last)}}
    for run_id in [one.id for one in found.values() if one.phase.is_terminal and store.has_leftovers(one.id)]:
        with contextlib.suppress(WindlassError):
            found[run_id] = engine_for(run_id, store).status(run_id)
    return sorted(found.values(), key=lambda status: (-status.times.created_at, status.id))


def states(found: Iterable[Status], store: Store, now: float) -> list[RunState]:
    """Returns the states of recorded runs at `now`. Each engine is queried once, for all its active and lost runs."""
    from windlass.engines.values import RunState

    found = list(found)
    by_kind: dict[str, list[Status]] = {}
    for status in found:
        if not status.phase.is_terminal or status.phase is Phase.LOST:
            by_kind.setdefault(store.engine_of(status.id), []).append(status)
    known: dict[str, RunState] = {}
    for kind, some in by_kind.items():
        with contextlib.suppress(UsageError):  # runs of an engine that is not installed must not hide the others
            known |= {state.status.id: state for state in _engine(kind, store).states(some, now)}
    # Matched by run id, because the phase in a state may be newer than the phase in `found`.
    return [known.get(status.id) or RunState(status, now) for status in found]


# -- changing runs ----------------------------------------------------------------------------------------------------


def replanned(old: Plan, changes: Mapping[str, Any], more: Sequence[str], context: Context) -> Plan:
    """Plans the same run again, with fields of its job replaced and arguments appended.

    An elastic job whose number of nodes is set keeps its minimum. The launcher is kept, because a script that used
    `RANK` on two nodes also needs `RANK` on one node. Raises UsageError for a field that cannot change, JobFileError.
    """
    from windlass.actions.jobs import planned_job
    from windlass.code.revision import read_revision

    _require_code(old, old.run_id)
    before = planned_job(old, {}).job
    fields = dict(changes)
    if isinstance(most := fields.get("nodes"), int):
        least = min(most, before.nodes.min) if before.nodes.min < before.nodes.max else most
        fields["nodes"] = {"min": least, "max": most}
    if before.launcher != "plain":
        fields.setdefault("launcher", before.launcher)
    ready = planned_job(old, fields, more)
    _require_unchanged(before, ready.job, old.run_id)
    made = plan_for(ready, find_target(old.target, context), old.run_id, context)
    from windlass.plan.steps import AfterStep

    made = replace(made, steps=(*old.every(AfterStep), *made.steps))
    return replace(made, revision=read_revision(ready.base / ready.job.code_path, context.environ))


def _require_unchanged(before: Job, after: Job, run_id: str) -> None:
    old, new = before.model_dump(mode="json"), after.model_dump(mode="json")
    for field in OF_RUN:
        section, _, name = field.partition(".")
        was, is_now = old[section], new[section]
        if (was[name] != is_now[name]) if name else (was != is_now):
            raise UsageError(
                f"{field} cannot change in a resumed run: its existing files and objects are found by this field",
                f"start a new run: windlass rerun {run_id} --set {field}=…",
            )


def resume(
    run_id: str,
    engine: Engine,
    context: Context,
    *,
    changes: Mapping[str, Any] | None = None,
    more: Sequence[str] = (),
    new_code: bool = False,
    checkpoint: str | None = None,
) -> Status:
    """Continues an ended run from the newest checkpoint, or from one given by name, step or path. Fields of its job can
    be replaced and arguments appended.

    The current code of the job's folder is used if the run is on this machine, anything has changed, or `new_code` is
    set; otherwise the code that was sent at the start. Raises NoSuchRun, UsageError, JobFileError, PlanError,
    EngineError, StoreError.
    """
    from windlass.actions.checkpoints import find_checkpoints, to_resume_from

    require_record(engine, run_id, "resume")
    _refuse_service(engine.status(run_id))
    if checkpoint is not None:
        checkpoint = to_resume_from(find_checkpoints(engine, run_id), checkpoint)
    is_planned = bool(changes or more or new_code)
    plan = replanned(engine.store.plan(run_id), changes or {}, more, context) if is_planned else None
    return engine.resume(run_id, plan, checkpoint)


def wait_stopped(engine: Engine, run_id: str, grace_seconds: float) -> Status:
    """Blocks until a run with a stop request has ended.

    Raises EngineError if the target has not confirmed the end `STOP_SECONDS` after the grace period, because it does
    not respond or reports running pods. Raises NoSuchRun.
    """
    give_up = time.monotonic() + grace_seconds + STOP_SECONDS
    while True:
        found = engine.wait(run_id, STOP_LOOK_SECONDS)
        if found.phase in engine.final_phases:
            return found
        if found.supervision.condition and time.monotonic() >= give_up:
            why = found.supervision.condition.message
            raise EngineError(
                f"{run_id} was asked to end, and it is not known whether it has: {why}",
                f"the stop request stays in place; look again: windlass status {run_id}",
            )


def require_record(engine: Engine, run_id: str, command: str) -> None:
    """Raises UsageError for a run without a record on this machine, which `command` needs."""
    if engine.plan_of(run_id) is None:
        raise engine.unsupported(command)


def require_here(engine: Engine, run_id: str) -> None:
    """Raises UsageError for an active run that another machine supervises, because only that machine can end the
    run.
    """
    if (host := supervised_elsewhere(engine.status(run_id), engine.store)) is not None:
        raise UsageError(f"{run_id} has not ended, and is supervised on {host}", f"call this on {host}")


def supervised_elsewhere(status: Status, store: Store) -> str | None:
    """Returns the name of another machine that supervises the active run; None if this machine does, or if the run
    ended.
    """
    return None if status.phase.is_terminal else store.host_elsewhere(status)


def _waiting_for(run_id: str, store: Store) -> list[str]:
    """Returns queued runs that start after the success of this run (`--after`) and may not have read its status yet."""
    from windlass.plan.steps import AfterStep

    waiting = [one for one in store.statuses(unfinished=True) if one.phase is Phase.QUEUED and not one.attempts]
    return [one.id for one in waiting if any(step.run == run_id for step in store.plan(one.id).every(AfterStep))]


def require_removable(engine: Engine, run_id: str, on: str | None = None) -> None:
    """Raises UsageError for a run that is active, that other runs wait for, or that has the only copy of checkpoints.

    `on` is the target named by the user.
    """
    from windlass.actions.checkpoints import kept_only_here

    found = engine.status(run_id)
    if not found.phase.is_terminal:
        host = supervised_elsewhere(found, engine.store)
        where = f", and is supervised on {host}" if host is not None else f": it is {found.phase}"
        way = f" --on {on}" if on is not None else ""
        raise UsageError(f"{run_id} has not ended{where}", f"windlass stop {run_id}{way}, then remove it")
    if found.phase is Phase.SUCCEEDED and (waiting := _waiting_for(run_id, engine.store)):
        raise UsageError(
            f"{run_id} is one after which {' and '.join(waiting)} may still start",
            f"windlass rm --force {run_id} removes it",
        )
    if lost := engine.only_copy(run_id) or kept_only_here(engine, found):
        is_resumable = found.phase is not Phase.SUCCEEDED
        raise UsageError(
            f"{run_id} has ended as {found.phase}{' and can be resumed' * is_resumable}; with it would go {lost}",
            f"{f'windlass resume {run_id}' if is_resumable else 'copy it'}, or windlass rm --force {run_id}",
        )
