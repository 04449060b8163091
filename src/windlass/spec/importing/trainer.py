"""Reads a TrainJob of Kubeflow's Trainer, with the runtime it names where that is in the same file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from windlass.spec.importing.common import automatic, metadata, put_start, ranks_named, started
from windlass.spec.importing.documents import RUNTIMES, Documents
from windlass.spec.importing.draft import Draft
from windlass.spec.importing.pods import Pods
from windlass.spec.importing.sets import of_set
from windlass.spec.importing.source import View
from windlass.spec.importing.words import start_of

PLAIN_RUNTIMES: Final = ("torch-distributed",)
"""Runtimes that come with the Trainer and add nothing to what a TrainJob says."""
NODE: Final = ("node", "trainer")
ANCESTOR: Final = "trainer.kubeflow.org/trainjob-ancestor-step"


def trainjob(found: Documents, draft: Draft, where: str) -> None:
    """A TrainJob, which stands on its runtime."""
    view = found.job.view
    spec, trainer = view.at("spec"), view.at("spec", "trainer")
    metadata(view, draft)
    if (seconds := spec.whole("activeDeadlineSeconds")) is not None:
        draft.put("timeout", float(seconds), spec.at("activeDeadlineSeconds"))
    if spec.at("suspend").value is False:
        spec.at("suspend").take()
    base = Draft()
    pods = Pods(base, found)
    policy, of_runtime = _runtime(found, spec.at("runtimeRef"), draft, pods)
    own = Pods(Draft(), found)
    _trainer(trainer, own)
    draft.absorb(own.draft)
    for patch in _patches(spec):
        pods.read(patch, NODE, is_patch=True)
    draft.absorb(base)
    if own.start is None and own.start_view is None and trainer.at("args"):
        _args_alone(trainer, pods, own)
    chosen = own if own.start is not None else pods
    start = started(chosen, trainer if trainer else spec, where)
    own_nodes, runtime_nodes = trainer.whole("numNodes"), policy.whole("numNodes")
    nodes = own_nodes or runtime_nodes or of_runtime
    if own_nodes is not None:
        policy.at("numNodes").leave("how many nodes there are", "the job itself says it", is_ours=True)
    named: Any = ranks_named(trainer.at("numProcPerNode"), draft)
    for name in ("torch", "mpi"):
        by_runtime = ranks_named(policy.at(name, "numProcPerNode"), draft)
        named = named if named is not None else by_runtime
    if named is None and start.by == "torchrun" and "procs_per_node" not in start.fields:
        named = automatic(trainer.at("numProcPerNode"), draft)
    if start.by == "mpi" and start.ranks is not None and named is None:
        named = start.ranks // nodes if start.ranks % nodes == 0 else None
    if start.by == "python" and named not in (None, 1):
        trainer.at("numProcPerNode").remark("python starts one rank on each node", "procs_per_node: 1 is written")
        named = 1
    put_start(draft, start, chosen.start_view or trainer, nodes, named or 1)


def _trainer(view: View, pods: Pods) -> None:
    """What stands under `trainer`, which is a container in other words."""
    if (image := view.text("image")) is not None:
        pods.draft.put("image", image, view.at("image"))
    pods.amounts(view.at("resourcesPerNode"))
    pods.variables(view)
    if view.at("command"):
        pods.command(view)


def _args_alone(view: View, pods: Pods, own: Pods) -> None:
    """Arguments that stand behind the command of the runtime."""
    args = view.texts("args")
    if pods.start is not None and pods.command_words:
        own.start, own.start_view = start_of([*pods.command_words, *args], {**pods.env, **own.env}), view.at("args")
    else:
        pods.command(view)


def _runtime(found: Documents, ref: View, draft: Draft, pods: Pods) -> tuple[View, int]:
    """The ML policy of the runtime, and its number of pods; one that is not in the file is named in the job."""
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
            if (limit := template.whole("failurePolicy", "maxRestarts")) is not None:
                draft.put("restarts", {"max": limit}, template.at("failurePolicy", "maxRestarts"))
            _, _, nodes = of_set(template, pods.draft, found, pods)
            return spec.at("mlPolicy"), nodes
    if name in PLAIN_RUNTIMES:
        ref.remark(f"runtime {name} starts torchrun on each node", "Windlass does that itself", is_ours=True)
    elif name is not None:
        ref.leave(
            f"runtime {name} is not in this file, so what it adds to the job is not known",
            f"append it and import again: kubectl get {kind or RUNTIMES[1]} {name} -o yaml",
        )
    return View(found.job, ("spec", "runtimeRef", "mlPolicy"), None), 1


def _patches(spec: View) -> Iterator[View]:
    """The pod templates with which a TrainJob patches its runtime's, in the words of all versions."""
    for patch in spec.at("runtimePatches").each():
        patch.at("manager").leave("who has made the patch", "nothing to do", is_ours=True)
        inner = patch.at("trainingRuntimeSpec", "template", "spec", "replicatedJobs")
        for one in inner.each():
            if one.at("name").value in NODE:
                one.text("name")
                yield one.at("template", "spec", "template")
            else:
                one.leave(f"a patch of job {one.at('name').value}", "only the pods that train are carried over")
    for patch in spec.at("podTemplateOverrides").each():
        names = [one.at("name").value for one in patch.at("targetJobs").each()]
        if not names or any(name in NODE for name in names):
            patch.at("targetJobs").take()
            yield patch
        else:
            patch.leave(f"a patch of job {', '.join(map(str, names))}", "only the pods that train are carried over")
