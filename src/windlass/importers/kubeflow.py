"""Reads jobs of Kubeflow's training operator and its predecessors: PyTorchJob, TFJob, JAXJob, MPIJob and others."""

from __future__ import annotations

from typing import Final

from windlass.importers.common import (
    Elastic,
    compare,
    put_start,
    ranks_named,
    restart_policy,
    run_policy,
    started,
)
from windlass.importers.documents import Documents
from windlass.importers.draft import Draft
from windlass.importers.pods import OF_TORCH, Pods, fields_of
from windlass.importers.source import View

PYTORCH: Final = ("pytorch", "elasticjob-worker")
"""Usual names of the training container."""
XGBOOST: Final = ("xgboost",)
MPI: Final = ("mpi", "mpi-launcher", "mpi-worker")


def pytorchjob(found: Documents, draft: Draft) -> None:
    """Reads a PyTorchJob: a Master and Workers, or only Workers, which may be elastic.

    An ElasticJob, of the controller that predates torchrun, has the same fields without `elasticPolicy` around them.
    """
    spec = found.job.view.at("spec")
    elastic = spec.at("elasticPolicy") or spec
    draft.put_restarts(elastic.at("maxRestarts"))
    for policy in (spec, spec.at("runPolicy"), spec.at("RunPolicy")):
        run_policy(policy, draft)
    specs = spec.at("pytorchReplicaSpecs") or spec.at("replicaSpecs")
    pods, template, replicas = _replicas(found, draft, specs, ("Master", "Worker"), PYTORCH)
    nodes = _range(elastic)
    per_node = spec.at("nprocPerNode")
    named = ranks_named(elastic.at("nProcPerNode"), draft) or ranks_named(per_node, draft)
    start = started(pods, template)
    begun = Elastic(replicas, specs.at("Worker", "replicas"), elastic.at("maxReplicas"))
    put_start(draft, start, nodes or replicas or None, per_node, named, given=("torchrun",), elastic=begun)


def tfjob(found: Documents, draft: Draft) -> None:
    """Reads a TFJob of workers, which find each other by TF_CONFIG. Raises JobFileError for parameter servers."""
    specs = found.job.view.at("spec", "tfReplicaSpecs")
    for name in ("PS", "Evaluator"):
        if specs.at(name):
            message = "has tasks of their own in TF_CONFIG, and all nodes of a job are workers"
            raise specs.at(name).refused(
                message, "keep it under its operator, or train with MultiWorkerMirroredStrategy"
            )
    for name in ("Chief", "Master"):
        if specs.at(name):
            specs.at(name).remark(
                f"a {name.lower()} in TF_CONFIG", "it is worker 0, which takes its part", is_handled=True
            )
    _of_framework(found, draft, specs, ("Chief", "Master", "Worker"), ("tensorflow",), "tensorflow")


def jaxjob(found: Documents, draft: Draft) -> None:
    """Reads a JAXJob of workers, which find each other by the address of a coordinator."""
    specs = found.job.view.at("spec", "jaxReplicaSpecs")
    specs.at("Worker").remark(
        "COORDINATOR_ADDRESS, COORDINATOR_PORT, NUM_PROCESSES and PROCESS_ID, which its operator sets",
        "ranks have JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, which "
        "jax.distributed.initialize() reads",
    )
    _of_framework(found, draft, specs, ("Worker",), ("jax",), "jax")


def xgboostjob(found: Documents, draft: Draft) -> None:
    """Reads an XGBoostJob: a Master and Workers with RANK, WORLD_SIZE and MASTER_ADDR, as in a PyTorchJob."""
    specs = found.job.view.at("spec", "xgbReplicaSpecs")
    specs.remark("WORKER_ADDRS and WORKER_PORT, which its operator sets", "ranks have WINDLASS_HOSTS: choose a port")
    _of_framework(found, draft, specs, ("Master", "Worker"), XGBOOST, "pytorch")


def _of_framework(
    found: Documents, draft: Draft, specs: View, replicas: tuple[str, ...], container: tuple[str, ...], launcher: str
) -> None:
    """Reads a job of replicas whose containers each start once, with the variables of this launcher."""
    spec = found.job.view.at("spec")
    for policy in (spec, spec.at("runPolicy")):
        run_policy(policy, draft)
    pods, template, nodes = _replicas(found, draft, specs, replicas, container)
    start = started(pods, template)
    if start[0].by in ("python", "program") and (nodes > 1 or launcher != "tensorflow"):
        draft.fields["launcher"] = launcher  # a single worker gets no TF_CONFIG
    put_start(draft, start, nodes or 1, specs, has_group=False)


def mpijob(found: Documents, draft: Draft) -> None:
    """Reads an MPIJob: a launcher that calls mpirun, and workers; v1alpha1 has one template for both."""
    spec = found.job.view.at("spec")
    for policy in (spec, spec.at("runPolicy")):
        run_policy(policy, draft, of_mpi=True)
    implementation = spec.at("mpiImplementation")
    if implementation.value in ("Intel", "MPICH"):
        message = f"is {implementation.value}, but Windlass starts ranks with Open MPI: each would run separately"
        raise implementation.refused(message, "build the program with Open MPI, or keep the job under its operator")
    replicas = spec.at("mpiReplicaSpecs")
    launcher, worker = (replicas.at("Launcher"), replicas.at("Worker")) if replicas else (spec, spec)
    for one in (launcher, worker):
        restart_policy(one, draft)
    has_ranks = spec.at("runLauncherAsWorker").take_if(True)  # then the launcher's pod also runs ranks
    spec.at("runLauncherAsWorker").take_if(False)
    workers = worker.whole("replicas")
    nodes = max(1, (workers if workers is not None else 1 - has_ranks) + has_ranks)
    if replicas and nodes == has_ranks:
        worker = launcher
    if replicas:
        launcher.at("replicas").take_if(1)
    machine = Pods(draft, found, has_probes=not replicas or worker is launcher)
    machine.read(worker.at("template"), MPI)
    calls = machine
    if replicas and worker is not launcher:
        calls = Pods(Draft(), found)
        calls.read(launcher.at("template"), MPI)
        if machine.start is not None and calls.start is not None:
            for waiting in machine.words:
                waiting.remark("the workers wait to be called", "Windlass starts the ranks there", is_handled=True)
    start = started(calls if calls.start is not None else machine, launcher.at("template"))
    if start[0].by != "mpi":
        message = (
            "is no line of mpirun that Windlass can start by itself: each node would run it, not only the launcher"
        )
        raise start[1].refused(message, "write run: PROGRAM, launcher: mpi, nodes: and procs_per_node: in a job file")
    if calls is not machine:
        _launchers_own(draft, calls.draft, start[1], launcher.at("template"), has_ranks=has_ranks)
    put_start(draft, start, nodes, spec.at("slotsPerWorker"), spec.whole("slotsPerWorker"))


def _launchers_own(draft: Draft, launcher: Draft, at: View, template: View, *, has_ranks: bool) -> None:
    """Merges the variables of the launcher, and reports other fields in which it differs from the workers.

    `has_ranks` is whether the launcher's pod is one of the nodes.
    """
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
            is_handled="image" not in own and not has_ranks,
        )


def _replicas(
    found: Documents, draft: Draft, specs: View, names: tuple[str, ...], container: tuple[str, ...]
) -> tuple[Pods, View, int]:
    """Returns the pods of rank 0, their template, and the number of pods of all replicas."""
    total = 0
    base: Pods | None = None
    template = specs
    for name in names:
        replica = specs.at(name)
        if not replica:
            continue
        restart_policy(replica, draft)
        count = replica.whole("replicas")
        total += 1 if count is None else count
        pods = Pods(Draft(), found, of_operator=OF_TORCH if container in (PYTORCH, XGBOOST) else ())
        pods.read(replica.at("template"), container)
        if base is None:
            base, template = pods, replica.at("template")
        elif count != 0:
            compare(fields_of(base), fields_of(pods), replica.at("template"))
    if base is not None:
        draft.absorb(base.draft)
    return base or Pods(draft, found), template, total


def _range(view: View) -> dict[str, int] | None:
    """Returns `minReplicas` and `maxReplicas` as a range of nodes; None without either."""
    least, most = view.whole("minReplicas"), view.whole("maxReplicas")
    if least is None and most is None:
        return None
    least = 1 if least is None else least
    return {"min": least, "max": least if most is None else most}
