"""Reads a TrainJob of Kubeflow Trainer, with its runtime if the same file contains it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from windlass.importers.common import put_start, ranks_named, started
from windlass.importers.container_command import Start, start_of
from windlass.importers.documents import RUNTIMES, Documents
from windlass.importers.draft import Draft
from windlass.importers.jobset import of_set
from windlass.importers.pods import Pods, marks
from windlass.importers.source import View

PLAIN_RUNTIMES: Final = ("torch-distributed",)
"""Runtimes of Kubeflow Trainer that add no fields to a TrainJob."""
NODE: Final = ("node", "trainer")


def trainjob(found: Documents, draft: Draft) -> None:
    """Reads a TrainJob, merged with its runtime."""
    spec = found.job.view.at("spec")
    trainer = spec.at("trainer")
    draft.put_seconds("timeout", spec.at("activeDeadlineSeconds"))
    spec.at("suspend").take_if(False)
    marks(draft, spec)
    base = Draft()
    pods = Pods(base, found)
    policy, of_runtime = _runtime(found, spec.at("runtimeRef"), draft, pods)
    own = Pods(Draft(), found)
    _trainer(trainer, own)
    draft.absorb(own.draft)
    for patch in _patches(spec):
        pods.read(patch, NODE, is_patch=True)
    if (container := pods.container) is not None and (names := [*_overridden(draft.fields, base.fields)]):
        container.remark(f"{', '.join(names)} of the runtime", "the job has its own, which is taken", is_handled=True)
    draft.absorb(base)
    if own.start is None and trainer.at("args"):
        _args_alone(trainer, pods, own)
    for words in pods.words if own.start is not None else ():
        words.remark("the command of the runtime", "the job has its own, which is taken", is_handled=True)
    start = started(own if own.start is not None else pods, trainer or spec)
    _of_policy(policy, start, draft)
    own_nodes, runtime_nodes = trainer.whole("numNodes"), policy.whole("numNodes")
    nodes = own_nodes or runtime_nodes or of_runtime
    if own_nodes is not None:
        policy.at("numNodes").report("how many nodes there are", "the job overrides it", is_handled=True)
    per_node = trainer.at("numProcPerNode")
    of_torch, of_mpi = policy.at("torch", "numProcPerNode"), policy.at("mpi", "numProcPerNode")
    said = [ranks_named(view, draft) for view in (per_node, of_torch, of_mpi)]
    if start[0].by in ("python", "program") and ((nodes or 1) > 1 or said[0] not in (None, 1)):
        _need_runtime(spec.at("runtimeRef"))
    has_group = pods.has_group or own.has_group
    of_node = said[0] or said[1] or said[2]
    put_start(draft, start, nodes, per_node, of_node, has_group=has_group, given=("torchrun", "index"))


def _overridden(own: Mapping[str, Any], base: Mapping[str, Any]) -> Iterator[str]:
    """Yields the fields of a runtime that its job overrides with another value: `resources.gpus`."""
    for name in sorted(own.keys() & base.keys()):
        mine, theirs = own[name], base[name]
        if name == "pod":  # patches are merged
            continue
        if isinstance(mine, dict) and isinstance(theirs, dict):
            yield from (f"{name}.{below}" for below in _overridden(mine, theirs))
        elif mine != theirs:
            yield name


def _of_policy(policy: View, started: tuple[Start, View], draft: Draft) -> None:
    """Reads how the nodes find each other. Raises JobFileError for methods that Windlass does not set up."""
    for name in ("flux", "xgboost"):
        if policy.at(name):
            raise policy.at(name).refused(
                f"has the policy {name}, by which the Trainer starts the ranks or sets their variables",
                "keep it under the Trainer: Windlass does so for torch, jax, tensorflow and mpi",
            )
    start, at = started
    if policy.at("mpi") and start.by != "mpi":
        raise at.refused(
            "is started only on the first node by an MPI runtime",
            "write it behind mpirun -np N, and import it again",
        )
    if policy.at("jax"):
        policy.at("jax").take()
        draft.fields["launcher"] = "jax"


def _trainer(view: View, pods: Pods) -> None:
    """Reads the section `trainer`, which has the fields of a container under other names."""
    pods.draft.put_text("image", view.at("image"))
    pods.amounts(view.at("resourcesPerNode"))
    pods.variables(view)
    if view.at("command"):
        pods.command(view)


def _args_alone(view: View, pods: Pods, own: Pods) -> None:
    """Reads `args` without `command`: they are appended to the command of the runtime."""
    args = view.texts("args")
    if pods.start is not None and pods.command_words:
        own.start = start_of([*pods.command_words, *args], {**pods.env, **own.env}), view.at("args")
    else:
        pods.command(view)


def _runtime(found: Documents, ref: View, draft: Draft, pods: Pods) -> tuple[View, int]:
    """Returns the ML policy of the runtime, and its number of pods; a runtime missing from the file is reported."""
    name = ref.text("name")
    kind = ref.text("kind")
    ref.text("apiGroup")
    for runtime in [one for one in RUNTIMES if kind in (None, one)]:
        document = found.called(runtime, name or "")
        if document is not None:
            document.view.text("metadata", "name")
            document.view.text("metadata", "namespace")
            spec = document.view.at("spec")
            template = spec.at("template", "spec")
            draft.put_restarts(template.at("failurePolicy", "maxRestarts"))
            _, _, nodes = of_set(template, pods.draft, found, pods)
            return spec.at("mlPolicy"), nodes
    if name in PLAIN_RUNTIMES:
        ref.remark(f"runtime {name} passes the nodes to torchrun", "Windlass does that itself", is_handled=True)
    elif name is not None:
        ref.report(
            f"runtime {name} is not in this file, so what it adds to the job is not known",
            f"append it and import again: kubectl get {kind or RUNTIMES[1]} {name} -o yaml",
        )
    return View(found.job, ("spec", "runtimeRef", "mlPolicy"), None), 1


def _need_runtime(ref: View) -> None:
    """Raises JobFileError if the command starts no ranks itself, and the runtime that may do so is missing from the
    file.
    """
    if ref.path in ref.source.reported:
        name, kind = ref.at("name").value, ref.at("kind").value or RUNTIMES[1]
        message = f"runtime {name} is not in this file: it may start the ranks, or set the variables by which they meet"
        raise ref.refused(message, f"append it and import again: kubectl get {kind} {name} -o yaml")


def _patches(spec: View) -> Iterator[View]:
    """Yields the pod template patches of a TrainJob, from `runtimePatches` and the older `podTemplateOverrides`."""
    for patch in spec.at("runtimePatches").each():
        inner = patch.at("trainingRuntimeSpec", "template", "spec", "replicatedJobs")
        for one in inner.each():
            if one.at("name").value in NODE:
                one.text("name")
                yield one.at("template", "spec", "template")
            else:
                one.report(f"a patch of job {one.at('name').value}", "only the pods that train are carried over")
    for patch in spec.at("podTemplateOverrides").each():
        names = [one.at("name").value for one in patch.at("targetJobs").each()]
        if not names or any(name in NODE for name in names):
            patch.at("targetJobs").take()
            yield patch
        else:
            patch.report(f"a patch of job {', '.join(map(str, names))}", "only the pods that train are carried over")
