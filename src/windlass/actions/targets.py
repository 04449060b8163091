"""Finds the target that a name stands for and opens its engine's doors."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from windlass.actions.edge import Edge
from windlass.actions.jobs import ReadyJob, read_text
from windlass.errors import EngineError, UsageError, WindlassError
from windlass.runs.store import Store

if TYPE_CHECKING:
    from windlass.engines.base import Engine
    from windlass.plan.plan import Plan
    from windlass.spec.targets import KubernetesTarget, Target

DEFAULT: Final = "local"
FILE: Final = "targets.yaml"


def target_files(edge: Edge) -> list[Path]:
    """Where targets are named: beside the job first, then the user's own."""
    config = Path(edge.environ.get("XDG_CONFIG_HOME") or Path(edge.environ.get("HOME", "/")) / ".config")
    return [edge.cwd / FILE, config / "windlass" / FILE]


def find_target(name: str, edge: Edge) -> Target:
    """The target called `name`. Raises UsageError where there is none, JobFileError for a file with problems."""
    from windlass.spec.targets import LocalTarget

    known: dict[str, Target] = {}
    for path in reversed(target_files(edge)):
        if path.is_file():
            from windlass.spec.parse import parse_targets

            known |= parse_targets(read_text(path, str(path)), str(path))
    if name == DEFAULT:
        return known.get(name, LocalTarget(name=DEFAULT))
    if name not in known:
        names = ", ".join(sorted({DEFAULT, *known}))
        raise UsageError(f"no target is called '{name}'", f"known are: {names}; more are named in {FILE}")
    return known[name]


def find_targets(names: str, edge: Edge) -> list[Target]:
    """The targets of a list as `a,b`, in its order. Raises UsageError, JobFileError."""
    return [find_target(name.strip(), edge) for name in names.split(",")]


def plan_for_first(ready: ReadyJob, targets: Sequence[Target], run_id: str, edge: Edge) -> Plan:
    """The plan on the first of these targets that can run the job, with notes on why those before it cannot.

    Where none can, it is that on the first, with notes on the others. Raises UsageError where there is but one target,
    and it cannot be used at all.
    """
    from windlass.plan.plan import Note

    if len(targets) == 1:
        return plan_for(ready, targets[0], run_id, edge)
    plans: list[Plan] = []
    notes: list[Note] = []
    errors: list[WindlassError] = []
    for target in targets:
        try:
            made = plan_for(ready, target, run_id, edge)
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


def plan_for(ready: ReadyJob, target: Target, run_id: str, edge: Edge) -> Plan:
    """The plan of a run of `ready` on `target`; reads the world's facts, changes nothing."""
    from windlass.spec.targets import KubernetesTarget, LocalTarget

    if isinstance(target, LocalTarget):
        from windlass.engines.local.facts import read_facts
        from windlass.engines.local.plan import plan

        job = (
            ready.job
            if ready.job.python or not target.python
            else ready.job.model_copy(update={"python": target.python})
        )
        facts = read_facts(job, base=ready.base, home=edge.home, environ=edge.environ)
        return plan(job, target, facts, run_id)
    if isinstance(target, KubernetesTarget):
        return _plan_for_cluster(ready, target, run_id, edge)
    raise UsageError(
        f"target {target.name} is of kind {target.kind}",
        "this version runs jobs on targets of kind local and kubernetes",
    )


def _plan_for_cluster(ready: ReadyJob, target: KubernetesTarget, run_id: str, edge: Edge) -> Plan:
    """The plan, with what the cluster itself says of it: it is asked, and makes nothing."""
    from windlass.engines.kubernetes.facts import WAY_UNFIT, boot_program, dry_run, read_facts
    from windlass.engines.kubernetes.plan import plan

    facts = read_facts(ready.job, target, base=ready.base, environ=edge.environ)
    made = plan(ready.job, target, facts, run_id, boot_program())
    if facts.cluster is None or any(note.blocks for note in made.notes):
        return made
    said = dry_run(made)
    unfit = [note.message for note in said if note.code == WAY_UNFIT]
    if unfit:  # another way may do, unless this one was asked for
        cluster = dataclasses.replace(facts.cluster, unfit=unfit[0])
        other = plan(ready.job, target, dataclasses.replace(facts, cluster=cluster), run_id, boot_program())
        if other.requests("cluster")[0]["via"] != made.requests("cluster")[0]["via"]:
            made, said = other, dry_run(other)
    return dataclasses.replace(made, notes=(*made.notes, *said))


def engine_of(name: str, store: Store) -> Engine:
    """The engine that keeps the runs whose record names engine `name`. Raises UsageError for one not known here."""
    if name == "local":
        from windlass.engines.local.engine import LocalEngine

        return LocalEngine(store)
    if name == "kubernetes":
        from windlass.engines.kubernetes.engine import KubernetesEngine

        return KubernetesEngine(store)
    if name == "fake":
        from windlass.engines.fake import FakeEngine

        return FakeEngine(store, lambda rank: None)  # to look at: only the process that plays a run can go on with it
    raise UsageError(f"the run was made by the engine '{name}', which this version does not have", "upgrade Windlass")
