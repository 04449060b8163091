"""Finds a target by its name, and plans a job on it or on the first of several."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from windlass.actions.jobs import ReadyJob
from windlass.engines import TARGETS, added_kinds, engine_class, target_model
from windlass.errors import EngineError, UsageError, WindlassError
from windlass.runs.context import Context
from windlass.spec.text_file import read_text

if TYPE_CHECKING:
    from windlass.plan.notes import Note
    from windlass.plan.plan import Plan
    from windlass.spec.address import ClusterAddress
    from windlass.spec.job import Job
    from windlass.spec.targets import Target

DEFAULT: Final = "local"
FILE: Final = "targets.yaml"


def target_files(context: Context) -> list[Path]:
    """Where targets are named: beside the job first, then the user's own, then those of clusters of one's own."""
    config = Path(context.environ.get("XDG_CONFIG_HOME") or Path(context.environ.get("HOME", "/")) / ".config")
    return [context.cwd / FILE, config / "windlass" / FILE, *sorted(context.home.glob(f"clusters/*/{FILE}"))]


def find_target(name: str, context: Context) -> Target:
    """The target called `name`. Raises UsageError where there is none, JobFileError for a file with problems."""
    known = named_targets(context)
    if name not in known:
        names = ", ".join(sorted(known))
        raise UsageError(f"no target is called '{name}'", f"known are: {names}; more are named in {FILE}")
    return known[name][0]


def named_targets(context: Context) -> dict[str, tuple[Target, Path | None]]:
    """The targets by name, each with the file that names it; `local` is there without one. Raises JobFileError."""
    from windlass.spec.targets import LocalTarget

    known: dict[str, tuple[Target, Path | None]] = {DEFAULT: (LocalTarget(name=DEFAULT), None)}
    for path in reversed(target_files(context)):
        if path.is_file():
            from windlass.spec.parse import parse_targets

            found = parse_targets(read_text(path, str(path)), str(path), target_model, added_kinds)
            named = {name for name, target in found.items() if "kind" in target.model_fields_set}  # else added: `local`
            known |= {name: (target, path) for name, target in found.items() if name in named}
    return known


def target_names(context: Context) -> list[str]:
    """The names that `--on` takes, in the order of their files; without the models of targets, for completion."""
    from windlass.spec.yamltext import read_yaml

    names = [DEFAULT]
    for path in target_files(context):
        with contextlib.suppress(WindlassError):
            names += read_yaml(read_text(path, str(path)), str(path), "")[0] if path.is_file() else ()
    return list(dict.fromkeys(names))


def remote_names(context: Context) -> list[str]:
    """The names of targets that runs of other machines may be on, as far as their files can be read."""
    from windlass.spec.yamltext import read_yaml

    found: dict[str, bool] = {}
    for path in target_files(context):
        with contextlib.suppress(WindlassError):
            entries = read_yaml(read_text(path, str(path)), str(path), "")[0] if path.is_file() else {}
            for name, entry in entries.items():
                found.setdefault(str(name), isinstance(entry, dict) and entry.get("kind") in TARGETS)
    return [name for name, is_remote in found.items() if is_remote]


def find_address(name: str, context: Context) -> Target | ClusterAddress:
    """How to reach the target called `name`, for commands on its runs: they read no more of the target of a cluster.

    So they start in half of the time that the models of all fields take. Raises as `find_target`.
    """
    from windlass.spec.address import read_address

    files = ((read_text(path, str(path)), str(path)) for path in target_files(context) if path.is_file())
    return read_address(files, name) or find_target(name, context)


def plan_for_first(ready: ReadyJob, targets: Sequence[Target], run_id: str, context: Context) -> Plan:
    """The plan on the first of these targets that can run the job, with notes on why those before it cannot.

    Where none can, it is that on the first, with notes on the others. Raises UsageError where there is but one target,
    and it cannot be used at all.
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
            return dataclasses.replace(made, notes=(*notes, *made.notes))
        plans.append(made)
        why = "; ".join(note.message for note in blocking)
        notes.append(Note("target-passed-over", f"{target.name} cannot run it: {why}", blocking[0].fix))
    if not plans:
        raise errors[0]
    others = [note for note in notes if not note.message.startswith(f"{plans[0].target} cannot run it: ")]
    return dataclasses.replace(plans[0], notes=(*plans[0].notes, *others))


def plan_for(ready: ReadyJob, target: Target, run_id: str, context: Context) -> Plan:
    """The plan of a run of `ready` on `target`; reads the facts of the target, changes nothing."""
    from windlass.plan.notes import Note

    engine = engine_class(target.kind, f"target {target.name}")
    job, notes = _with_variables(ready.job if engine.is_remote else ready.local_job, ready.base)
    made = engine.make_plan(job, target, run_id, ready.base, context)
    if job.python != ready.job.python:  # of this machine alone: a later plan finds it in the node's request
        made = dataclasses.replace(made, job={name: one for name, one in made.job.items() if name != "python"})
    return dataclasses.replace(made, notes=(*(Note(*remark) for remark in ready.remarks), *notes, *made.notes))


def _with_variables(job: Job, base: Path) -> tuple[Job, list[Note]]:
    """The job with `launcher: torchrun`, and a note on it, where its only rank cannot run without those variables."""
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
