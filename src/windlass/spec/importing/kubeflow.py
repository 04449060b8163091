"""Reads the kinds of Kubeflow's training operator and of its forerunners: PyTorchJob, MPIJob, ElasticJob."""

from __future__ import annotations

from typing import Any, Final

from windlass.spec.importing.common import (
    automatic,
    compare,
    metadata,
    put_start,
    ranks_named,
    restart_policy,
    run_policy,
    started,
)
from windlass.spec.importing.documents import Documents
from windlass.spec.importing.draft import Draft
from windlass.spec.importing.places import GPU
from windlass.spec.importing.pods import Pods
from windlass.spec.importing.source import View

PYTORCH: Final = ("pytorch",)
ELASTIC: Final = ("elasticjob-worker",)
MPI: Final = ("mpi", "mpi-launcher", "mpi-worker")


def pytorchjob(found: Documents, draft: Draft, where: str) -> None:
    """A Master and Workers, or Workers alone, which may be elastic."""
    view = found.job.view
    spec = view.at("spec")
    metadata(view, draft)
    elastic, policy = spec.at("elasticPolicy"), spec.at("runPolicy")
    if (restarts := elastic.whole("maxRestarts")) is not None:
        draft.put("restarts", {"max": restarts}, elastic.at("maxRestarts"))
    run_policy(spec, draft)
    run_policy(policy, draft)
    nodes = _range(elastic)
    pods, template, replicas = _replicas(
        found, draft, spec.at("pytorchReplicaSpecs"), PYTORCH, is_range=nodes is not None
    )
    start = started(pods, template, where)
    named = ranks_named(elastic.at("nProcPerNode"), draft) or ranks_named(spec.at("nprocPerNode"), draft)
    if named is None and start.by == "torchrun" and "procs_per_node" not in start.fields:
        named = automatic(spec.at("nprocPerNode"), draft)
    if start.by in ("python", "program") and named not in (None, 1):
        spec.at("nprocPerNode").remark(
            f"{named} ranks on each node, of which the command starts one",
            "procs_per_node: 1 is written; with a launcher of ranks, as torchrun, say more",
        )
        named = 1
    put_start(draft, start, pods.start_view or template, nodes or replicas or None, named or 1)


def elasticjob(found: Documents, draft: Draft, where: str) -> None:
    """What the TorchElastic controller ran before torch had torchrun."""
    view = found.job.view
    spec = view.at("spec")
    metadata(view, draft)
    for policy in (spec, spec.at("runPolicy"), spec.at("RunPolicy")):
        run_policy(policy, draft)
    nodes = _range(spec)
    pods, template, replicas = _replicas(found, draft, spec.at("replicaSpecs"), ELASTIC, is_range=nodes is not None)
    start = started(pods, template, where)
    put_start(draft, start, pods.start_view or template, nodes or replicas or None, 1)


def mpijob(found: Documents, draft: Draft, where: str) -> None:
    """A launcher that calls mpirun, and workers; the oldest version has one template for both."""
    view = found.job.view
    spec = view.at("spec")
    metadata(view, draft)
    run_policy(spec, draft, of_mpi=True)
    run_policy(spec.at("runPolicy"), draft, of_mpi=True)
    if spec.at("template"):
        _one_template(found, draft, spec, where)
        return
    replicas = spec.at("mpiReplicaSpecs")
    launcher, worker = replicas.at("Launcher"), replicas.at("Worker")
    for one in (launcher, worker):
        restart_policy(one, draft)
    if launcher.at("replicas").value == 1:
        launcher.at("replicas").take()
    nodes = worker.whole("replicas") or 1
    machine = Pods(draft, found)
    machine.read(worker.at("template"), MPI)
    calls = Pods(Draft(), found)
    calls.read(launcher.at("template"), MPI)
    if machine.start is not None and machine.start_view is not None and calls.start is not None:
        machine.start_view.remark("the workers wait to be called", "Windlass starts the ranks there", is_ours=True)
    start = started(calls if calls.start is not None else machine, launcher.at("template"), where)
    at = calls.start_view or machine.start_view or launcher
    _launchers_own(draft, calls.draft, at, launcher.at("template"))
    slots = spec.whole("slotsPerWorker")
    _put_mpi(draft, start, at, nodes, slots, spec.at("slotsPerWorker"))


def _one_template(found: Documents, draft: Draft, spec: View, where: str) -> None:
    """Version v1alpha1: `replicas`, or a number of GPUs, and one template for launcher and workers."""
    pods = Pods(draft, found)
    pods.read(spec.at("template"), MPI)
    nodes, slots = spec.whole("replicas"), spec.whole("slotsPerWorker")
    for total_name, each_name in (("gpus", "gpusPerNode"), ("processingUnits", "processingUnitsPerNode")):
        total = spec.whole(total_name)
        each = spec.whole(each_name)
        if total is not None and total > 0:
            each = min(total, each or 16)
            nodes, slots = -(-total // each), slots or each
            if spec.at("processingResourceType").value in (None, "gpu", GPU) and draft.get("resources.gpus") is None:
                draft.put("resources.gpus", each, spec.at(total_name))
    if spec.at("processingResourceType").value in ("gpu", GPU, "cpu"):
        spec.text("processingResourceType")
    start = started(pods, spec.at("template"), where)
    _put_mpi(draft, start, pods.start_view or spec, nodes or 1, slots, spec.at("slotsPerWorker"))


def _put_mpi(draft: Draft, start: Any, view: View, nodes: int, slots: int | None, at: View) -> None:
    """Ranks by slots; a number of ranks that the command names wins, where it divides over the nodes."""
    procs = slots or 1
    if start.ranks is not None and start.ranks != nodes * procs:
        if start.ranks % nodes == 0:
            procs = start.ranks // nodes
            if slots is not None:
                at.remark(
                    f"{slots} slots of each worker, and mpirun starts {start.ranks} ranks",
                    f"procs_per_node: {procs} on each of {nodes} nodes is written",
                )
        else:
            view.remark(
                f"mpirun starts {start.ranks} ranks on {nodes} nodes, which do not divide",
                f"procs_per_node: {procs} is written: say how many each node has",
            )
    put_start(draft, start, view, nodes, procs)


def _launchers_own(draft: Draft, launcher: Draft, at: View, template: View) -> None:
    """Take the variables of the launcher too, and say what else is another than the workers'."""
    for name, value in launcher.fields.pop("env", {}).items():
        if name not in draft.fields.get("env", {}):
            draft.put_env(name, value, at)
        elif draft.fields["env"][name] != value:
            at.remark(f"{name} is {value[:60]!r} for mpirun, and another for the ranks", "that of the workers is taken")
    if "image" not in draft.fields and "image" in launcher.fields:
        draft.fields["image"] = launcher.fields["image"]
    for name in ("grace", "timeout"):
        launcher.fields.pop(name, None)
    own = {name: value for name, value in launcher.fields.items() if value != draft.fields.get(name)}
    if own:
        template.remark(
            f"the launcher's pod has another {', '.join(sorted(own))} than the workers'",
            "mpirun is started on node 0, in a pod like all others",
            is_ours="image" not in own,
        )


def _replicas(
    found: Documents, draft: Draft, specs: View, names: tuple[str, ...], *, is_range: bool
) -> tuple[Pods, View, int]:
    """The pods of rank 0, where their template is, and how many there are of all kinds."""
    total = 0
    base: Pods | None = None
    template = specs
    for name in ("Master", "Worker"):
        replica = specs.at(name)
        if not replica:
            continue
        restart_policy(replica, draft)
        if is_range:
            replica.at("replicas").leave(
                "how many pods there are at the start", "as many as there is room for", is_ours=True
            )
        count = replica.whole("replicas")
        total += 1 if count is None else count
        pods = Pods(Draft(), found)
        pods.read(replica.at("template"), names)
        if base is None:
            base, template = pods, replica.at("template")
        elif count != 0:
            compare(_said(base), _said(pods), replica.at("template"))
    if base is not None:
        draft.absorb(base.draft)
    return base or Pods(draft, found), template, total


def _said(pods: Pods) -> dict[str, Any]:
    """All that a template says, but for how many nodes there are, which the manifest says better."""
    fields = {**pods.draft.fields, **(pods.start.fields if pods.start is not None else {})}
    return {name: value for name, value in fields.items() if name not in ("nodes", "restarts")}


def _range(view: View) -> dict[str, int] | None:
    """`minReplicas` and `maxReplicas` as a range of nodes."""
    least, most = view.whole("minReplicas"), view.whole("maxReplicas")
    if least is None and most is None:
        return None
    least = least if least is not None else 1
    return {"min": least, "max": most if most is not None else least}
