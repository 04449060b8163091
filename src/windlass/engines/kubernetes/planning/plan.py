"""Plans a run on a cluster from its job and the facts of the cluster: every object, and the node template. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from windlass.engines.kubernetes.objects import layout, pod_assignment, ttl
from windlass.engines.kubernetes.objects.find_pod_specs import pod_spec
from windlass.engines.kubernetes.objects.manifests import MAX_PIECES, RunObjects, num_pieces, run_objects
from windlass.engines.kubernetes.objects.pod_template import GPU_TOLERATION, IMAGE, PYTHON, Shape, tolerated
from windlass.engines.kubernetes.objects.supervisor_manifests import supervisor_objects
from windlass.engines.kubernetes.objects.workloads import WORKLOADS, mpijob
from windlass.engines.kubernetes.objects.workloads.base import Manifest
from windlass.engines.kubernetes.objects.workloads.job import has_limit_per_index
from windlass.engines.kubernetes.planning.facts import Cluster, Facts
from windlass.engines.kubernetes.planning.mounts import Mounts, plan_mounts
from windlass.engines.kubernetes.planning.notes import plan_notes, uses_host_network
from windlass.engines.kubernetes.planning.patches import plan_patches
from windlass.engines.kubernetes.planning.provisioning import plan_provisioning
from windlass.engines.kubernetes.planning.runtimes import Runtimes, runtime_of
from windlass.engines.kubernetes.planning.transfers import outputs_max, plan_transfers, wanted_claim
from windlass.engines.kubernetes.reading.preflight.rbac import POLICIES, supervisor_needs
from windlass.engines.kubernetes.reading.preflight.rights import SupervisorPlace, supervisor_place
from windlass.plan.compose import NodeTemplate
from windlass.plan.environment import SERVICE_DIR, SERVICE_PORT
from windlass.plan.plan import Plan, Policy
from windlass.plan.remote import Folders, remote_nodes
from windlass.plan.steps import (
    AttemptPartStep,
    AttemptStep,
    ClaimStep,
    ClusterStep,
    NetworkPolicyStep,
    ObjectStep,
    Step,
    SupervisorStep,
    node_steps,
)
from windlass.spec.labels import SERVICE_LABEL

if TYPE_CHECKING:
    from windlass.engines.travel import CodeFacts
    from windlass.spec.job import Job
    from windlass.spec.targets import KubernetesTarget

FOLDERS: Final = Folders(layout.CODE, layout.TRAVEL)


def plan(job: Job, target: KubernetesTarget, facts: Facts, run_id: str, boot: str) -> Plan:
    """Plans one run on a cluster. `boot` is the program that unpacks the code. Blocking problems are in `notes`."""
    cluster = facts.cluster
    via, why = choose_workload(job, target)
    # an unknown kind is refused in the notes, and the rest is planned with a Job
    planned_via = via if via in WORKLOADS else "job"
    place = planned_supervisor(job, target, cluster, planned_via)
    mounts = plan_mounts(job, target, cluster)
    shape = _shape(job, target, facts, run_id, planned_via, mounts, is_inside=place.is_in_cluster)
    patches = plan_patches(shape, job, target)
    shape = patches.shape
    objects = run_objects(shape, job, boot)
    transfers = plan_transfers(shape, job, target, cluster)
    nodes = _nodes(shape, job, target, facts.code, transfers.data_paths)
    provisioning = plan_provisioning(job, target, cluster, facts.prices, pod_spec(objects.attempt))
    return Plan(
        run_id=run_id,
        name=job.name,
        target=target.name,
        engine="kubernetes",
        output_dir=_output_dir(shape, job),
        num_nodes=job.nodes.max,
        procs_per_node=shape.procs_per_node,
        policy=Policy.of_job(job),
        job=job.model_dump(mode="json", exclude_defaults=True),
        archive=facts.code.archive,
        steps=(
            _cluster_step(shape, job, target, facts, why),
            *transfers.before,
            *mounts.steps,
            *patches.steps,
            *_object_steps(objects, shape, job, facts.code),
            *transfers.after,
            *(() if uses_host_network(shape) else _policy_steps(objects, target, facts)),
            *_supervisor_steps(shape, job),
            *provisioning.steps,
            *node_steps(nodes, job),
        ),
        notes=tuple(
            plan_notes(
                job,
                target,
                facts,
                via,
                shape,
                num_ranks=job.nodes.max * shape.procs_per_node,
                supervisor=place,
                on_provisioning=provisioning.notes,
                on_patches=patches.notes,
            )
        ),
        price=provisioning.price,
        num_spares=job.kubernetes.spares,
        nodes=nodes,
    )


def choose_workload(job: Job, target: KubernetesTarget) -> tuple[str, str]:
    """Returns the workload kind of a job, and the reason.

    The default is a Job, the only kind that keeps the other pods when one is lost.
    """
    if job.kubernetes.via != "auto":
        return job.kubernetes.via, "kubernetes.via of the job"
    if job.kubernetes.runtime is not None:
        return "trainjob", "kubernetes.runtime of the job"
    if target.via != "auto":
        return target.via, f"via of target {target.name}"
    if job.launcher == "mpi":
        return "mpijob", "launcher: mpi"
    return "job", "needs no operator"


def planned_supervisor(job: Job, target: KubernetesTarget, cluster: Cluster | None, via: str) -> SupervisorPlace:
    """Returns where the supervisor of a job's run with this workload kind will run."""
    if cluster is None:
        return SupervisorPlace(False, "the cluster does not answer")
    needs = supervisor_needs(WORKLOADS[via], is_queued=job.queue is not None)
    return supervisor_place(target, job.kubernetes.namespace or target.namespace, cluster.rights, needs)


# -- decisions --------------------------------------------------------------------------------------------------------


def _shape(
    job: Job, target: KubernetesTarget, facts: Facts, run_id: str, via: str, mounts: Mounts, *, is_inside: bool
) -> Shape:
    """Decides all settings that the pods of all attempts share."""
    cluster, options = facts.cluster, job.kubernetes
    seen = _runtimes(facts)
    runtime = runtime_of(options.runtime if via == "trainjob" else None, options.runtime_kind, seen)
    default_image = target.image or IMAGE
    can_keep_others = via == "job" and job.queue is None and has_limit_per_index(cluster.version if cluster else "")
    stored = _code_source(target, facts.code)
    claim = wanted_claim(job, target)
    pods = options.over(target)
    return Shape(
        run_id=run_id,
        namespace=options.namespace or target.namespace,
        via=via,
        image=job.image or ("" if runtime is not None else default_image),
        python=job.python or target.python or PYTHON,
        user=target.user,
        submitter=facts.user,
        code_digest=facts.code.digest,
        num_pieces=0 if stored else num_pieces(facts.code.num_packed_bytes),
        code_source=stored,
        procs_per_node=max(1, job.resources.gpus) if job.procs_per_node == "auto" else job.procs_per_node,
        pull_secrets=tuple(dict.fromkeys((*target.image_pull_secrets, *options.image_pull_secrets))),
        gpu_label=cluster.gpu_label(job.resources.gpu_type) if cluster is not None else None,
        runtime=runtime,
        is_supervised_inside=is_inside,
        keeps_others=(is_inside or options.spares > 0) and can_keep_others,
        supervisor_image=target.supervisor_image
        or ("" if runtime is None or job.image else seen.image or default_image),
        target_env=target.env,
        expires_seconds=ttl.run_seconds(job),
        outputs_max=outputs_max(job, via),
        pods_seconds=ttl.pods_seconds(job, via, is_supervised_inside=is_inside),
        supervisor_queue=target.supervisor_queue or "",
        tolerations=(
            *((GPU_TOLERATION,) if job.resources.gpus else ()),
            *map(tolerated, pods.tolerations),
            *seen.tolerations,
        ),
        labels=target.labels,
        pods=pods,
        mounts=mounts.sets,
        data_claim=claim.claim if claim is not None else "",
    )


def _runtimes(facts: Facts) -> Runtimes:
    """Returns the runtime that the job names, as far as it is known."""
    seen = facts.cluster.runtimes if facts.cluster is not None else None
    return seen or Runtimes(None)


def _code_source(target: KubernetesTarget, code: CodeFacts) -> str:
    """Returns the store address for code that is too large for ConfigMaps; else empty, also if the target names no
    store.
    """
    if target.storage is None or num_pieces(code.num_packed_bytes) <= MAX_PIECES:
        return ""
    return f"{target.storage.rstrip('/')}/code/{code.digest}.tar.gz"


def _output_dir(shape: Shape, job: Job) -> str:
    results = job.kubernetes.results
    if results is None and shape.outputs_max:
        return f"in the pods of {shape.run_id}, until they are fetched"
    if results is None:
        return f"in the pods of {shape.run_id}, while they are there"
    return f"claim {results.claim or shape.run_id}: windlass/{shape.run_id}/output"


def _nodes(
    shape: Shape, job: Job, target: KubernetesTarget, code: CodeFacts, data_paths: Mapping[str, str]
) -> NodeTemplate:
    """Returns the template from which the node specs of each attempt are created."""
    procs, num_nodes = shape.procs_per_node, job.nodes.max
    nodes = remote_nodes(
        job,
        FOLDERS,
        run_id=shape.run_id,
        python=shape.python,
        num_nodes=num_nodes,
        procs_per_node=procs,
        output_dir=layout.OUTPUT,
        checkpoint_dir=job.checkpoint.location(shape.run_id, layout.CHECKPOINTS),
        data=data_paths,
        target_env=target.env,
        imports=code.imports,
        grace_seconds=job.grace,
        threads=int(job.resources.cpus) // procs if job.resources.cpus is not None else None,
    )
    return nodes.replace(
        # Pods that fail early wait until a supervisor in the cluster has started and read their logs.
        reuse_wait_seconds=pod_assignment.STAY_SECONDS if job.restarts.max or shape.is_supervised_inside else 0.0,
        outputs_max=shape.outputs_max,
        contract={**nodes.contract, **(_service_variables() if SERVICE_LABEL in job.labels else {})},
        launchers=mpijob.launchers(num_nodes, procs, FOLDERS.proxy(shape.python)) if job.launcher == "mpi" else (),
    )


def _service_variables() -> dict[str, str]:
    """Returns the variables by which the program of a service finds its credentials and its port."""
    return {SERVICE_DIR: layout.SERVICE, SERVICE_PORT: str(layout.SERVICE_PORT)}


# -- steps ------------------------------------------------------------------------------------------------------------


def _cluster_step(shape: Shape, job: Job, target: KubernetesTarget, facts: Facts, why: str) -> ClusterStep:
    """Returns the step with the cluster, the namespace, and facts for later commands that no object contains."""
    results = job.kubernetes.results
    return ClusterStep(
        f"{why}: {WORKLOADS[shape.via].api} in namespace {shape.namespace} of context {target.context}",
        namespace=shape.namespace,
        via=shape.via,
        context=target.context,
        kubeconfig=facts.kubeconfig,
        why=why,
        expires_seconds=shape.expires_seconds,
        keeps_claim=results is not None and results.keep,
    )


def _object_steps(objects: RunObjects, shape: Shape, job: Job, code: CodeFacts) -> Iterator[Step]:
    """Yields steps for the objects that every run has, in the order of their creation."""
    run_id, num = shape.run_id, len(objects.pieces)
    how = f"to {shape.code_source}" if shape.code_source else f"in {num or 'no'} piece{'' if num == 1 else 's'}"
    yield ObjectStep(f"make ConfigMap {run_id}, which owns all others", objects.owner_config_map)
    yield code.step(how, source=shape.code_source, pieces=tuple(objects.pieces))
    yield ObjectStep(f"make Service {run_id}, by which pods find each other", objects.service)
    if objects.claim is not None:
        kept = "kept" if job.kubernetes.results is not None and job.kubernetes.results.keep else "removed with the run"
        yield ClaimStep(f"make PersistentVolumeClaim {run_id}, {kept}", objects.claim)
    *parts, owner = objects.attempt
    for part in parts:
        yield AttemptPartStep(f"make {_named(part)}, which the next one refers to", part)
    spares = job.kubernetes.spares
    more = f"; pods beside those of its nodes, as spares: {spares}" if spares else ""
    waits = "" if job.queue is None else f"; each waits in queue {job.queue}"
    waits += f" at priority {job.priority}" if waits and job.priority is not None else ""
    yield AttemptStep(f"make {_named(owner)}, and one more for each restart{waits}{more}", owner)


def _policy_steps(objects: RunObjects, target: KubernetesTarget, facts: Facts) -> Iterator[Step]:
    if target.network_policy and facts.cluster is not None and not facts.cluster.rights.lacking(POLICIES):
        for made in objects.policies:
            yield NetworkPolicyStep(f"make {_named(made)}, which admits the run's own pods", made)


def _supervisor_steps(shape: Shape, job: Job) -> Iterator[Step]:
    if shape.is_supervised_inside:
        purposes = (
            "which only the pods of the run and their supervisor know",
            "the supervisor's code and this plan",
            "by which the pods find the supervisor",
            "the supervisor of the run in the cluster",
        )
        for made, purpose in zip(supervisor_objects(shape, job), purposes, strict=True):
            yield SupervisorStep(f"make {_named(made)}, {purpose}", made)


def _named(made: Manifest) -> str:
    """Returns kind and name of an object, such as `ConfigMap digits-7f3k2`."""
    return f"{made['kind']} {made['metadata']['name']}"
