"""Plans a run on a cluster, from its job and the facts of the cluster: every object, and the node template. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from windlass.engines.kubernetes.objects import layout, manifests, ttl
from windlass.engines.kubernetes.objects import supervisor_manifests as supervisor
from windlass.engines.kubernetes.objects.manifests import IMAGE, MAX_PIECES, PIECE_BYTES, PYTHON, Shape
from windlass.engines.kubernetes.objects.workloads import WORKLOADS, mpijob
from windlass.engines.kubernetes.objects.workloads.base import Manifest
from windlass.engines.kubernetes.objects.workloads.runtimes import Runtime
from windlass.engines.kubernetes.planning import mounts as mounting
from windlass.engines.kubernetes.planning import transfers
from windlass.engines.kubernetes.planning.facts import Facts
from windlass.engines.kubernetes.planning.provisioning import (
    disruption_notes,
    node_notes,
    plan_price,
    pools_for,
    provisioning_steps,
    taint_notes,
)
from windlass.engines.kubernetes.planning.queue_notes import queue_notes
from windlass.engines.kubernetes.planning.runtime_notes import runtime_notes
from windlass.engines.kubernetes.planning.runtimes import Runtimes, image_and_user, pod_of, runtime_of
from windlass.engines.kubernetes.planning.spare_notes import can_keep_others, spare_notes
from windlass.engines.kubernetes.planning.supervision import missing_rights, supervised_in_cluster, supervision_notes
from windlass.engines.kubernetes.planning.workload_notes import workload_notes
from windlass.engines.kubernetes.running import reuse
from windlass.plan import arguments
from windlass.plan.lone_ranks import lone_ranks
from windlass.plan.plan import Note, Plan, Step, blocker
from windlass.plan.policy import policy, secret_variable
from windlass.plan.remote import Folders, remote_nodes
from windlass.plan.steps import node_steps
from windlass.plan.template import NodeTemplate
from windlass.plan.time_limit import time_limit

if TYPE_CHECKING:
    from windlass.spec.job import Job
    from windlass.spec.targets import KubernetesTarget

FOLDERS: Final = Folders(layout.CODE, layout.TRAVEL)
_FOLDERS: Final = {"WINDLASS_OUTPUT_DIR": layout.OUTPUT, "WINDLASS_CHECKPOINT_DIR": layout.CHECKPOINTS}


def plan(job: Job, target: KubernetesTarget, facts: Facts, run_id: str, boot: str) -> Plan:
    """The plan of one run on a cluster. `boot` is the program that unpacks the code. Blockers are in `notes`."""
    num_nodes, spares = job.nodes.max, job.kubernetes.spares
    procs = max(1, job.resources.gpus) if job.procs_per_node == "auto" else job.procs_per_node
    asked, why = choose(job, target)
    via = (
        asked if asked in WORKLOADS else "job"
    )  # an unknown one is refused below, and the rest is planned as for a Job
    named = job.kubernetes.runtime if via == "trainjob" else None
    seen = facts.cluster.runtimes if facts.cluster is not None else None
    runtime = runtime_of(named, job.kubernetes.runtime_kind, seen)
    is_inside = supervised_in_cluster(job, target, facts.cluster, via)[0]
    expires = ttl.run_seconds(job)
    outputs_max = transfers.outputs_max(job, via)
    shape = Shape(
        run_id=run_id,
        namespace=job.kubernetes.namespace or target.namespace,
        via=via,
        image=_image(job, target, runtime),
        python=job.python or target.python or PYTHON,
        user=target.user,
        submitter=facts.user,
        code_digest=facts.code.digest,
        num_pieces=0 if (stored := code_source(target, facts)) else num_pieces(facts),
        code_source=stored,
        procs_per_node=procs,
        pull_secrets=tuple(dict.fromkeys((*target.image_pull_secrets, *job.kubernetes.image_pull_secrets))),
        gpu_label=_gpu_label(job, facts),
        runtime=runtime,
        is_supervised_inside=is_inside,
        keeps_others=(is_inside or spares > 0) and can_keep_others(job, via, facts.cluster),
        supervisor_image=target.supervisor_image or _helper_image(job, target, seen, runtime),
        target_env=target.env,
        expires_seconds=expires,
        outputs_max=outputs_max,
        pods_seconds=ttl.pods_seconds(job, via, is_supervised_inside=is_inside),
        supervisor_queue=target.supervisor_queue or "",
        tolerations=_tolerations(job, seen),
        mounts=mounting.mounted(job, target, facts.cluster),
        data_claim=data_claim.claim if (data_claim := transfers.wanted_claim(job, target)) is not None else "",
    )
    made = tuple(_objects(shape, job, facts, boot))
    nodes = _nodes(shape, job, target, facts, num_nodes)
    pools = pools_for(made, facts.cluster.node_pools if facts.cluster is not None else None)
    return Plan(
        run_id=run_id,
        name=job.name,
        target=target.name,
        engine="kubernetes",
        output_dir=_output(job, run_id, outputs_max),
        num_nodes=num_nodes,
        procs_per_node=procs,
        policy=policy(job),
        job=job.model_dump(mode="json", exclude_defaults=True),
        steps=(
            Step(
                "cluster",
                f"{why}: {WORKLOADS[via].api} in namespace {shape.namespace} of context {target.context}",
                {
                    "context": target.context,
                    "namespace": shape.namespace,
                    "via": via,
                    "why": why,
                    **({} if expires is None else {ttl.AFTER: expires}),
                    **({"supervisor_queue": target.supervisor_queue} if target.supervisor_queue else {}),
                    "kubeconfig": facts.kubeconfig,
                    **(image_and_user(seen, shape.image, shape.user) if runtime else {}),
                },
            ),
            *transfers.staging_steps(shape, job, target, facts),
            *mounting.mount_steps(job, target, facts),
            *made,
            *transfers.upload_steps(shape, job),
            *transfers.collect_steps(shape, job),
            *_policies(shape, job, target, facts),
            *_supervisor(shape, job),
            *provisioning_steps(pools, target),
            *node_steps(nodes, job),
        ),
        notes=(
            *_refusals(job, target, facts, asked),
            *spare_notes(job, asked, facts.cluster, is_inside=is_inside),
            *queue_notes(job, facts.cluster),
            *node_notes(pools),
            *taint_notes(made, facts.cluster.taints if facts.cluster is not None else None, pools),
            *disruption_notes(job, pools),
            *runtime_notes(job, facts.cluster, asked),
            *transfers.lost_notes(job, via),
            *_warnings(job, target, facts),
            *_lone_ranks(job, target, facts, num_nodes * procs),
            *time_limit(job, facts.code.saves_at_end),
            *arguments.left_over(job, _FOLDERS),
            *arguments.hidden_launchers(job),
        ),
        price=plan_price(job, pools, target, facts.prices, num_nodes, spares),
        nodes=nodes,
    )


def choose(job: Job, target: KubernetesTarget) -> tuple[str, str]:
    """The kind of object that the job gets there, and why so.

    A Job unless another kind is asked for: of a Job alone, the loss of a pod keeps the others.
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


def num_pieces(facts: Facts) -> int:
    """Objects that the code fills."""
    return -(-len(facts.code.packed.data) // PIECE_BYTES) if facts.code.packed is not None else 0


def code_source(target: KubernetesTarget, facts: Facts) -> str:
    """Where the code is stored that objects cannot carry; empty where they can, or the target names no store."""
    if target.storage is None or num_pieces(facts) <= MAX_PIECES:
        return ""
    return f"{target.storage.rstrip('/')}/code/{facts.code.digest}.tar.gz"


# -- steps ------------------------------------------------------------------------------------------------------------


def _objects(shape: Shape, job: Job, facts: Facts, boot: str) -> Iterator[Step]:
    code = facts.code
    pieces = "1 piece" if shape.num_pieces == 1 else f"{shape.num_pieces or 'no'} pieces"
    how = f"to {shape.code_source}" if shape.code_source else f"in {pieces}"
    yield Step("object", f"make ConfigMap {shape.run_id}, which owns all others", manifests.anchor(shape, job, boot))
    yield Step(
        "code",
        f"send the code, {code.size}, {how}",
        {
            "folder": code.folder,
            "digest": shape.code_digest,
            "bytes": len(code.packed.data) if code.packed is not None else 0,
            **({"source": shape.code_source} if shape.code_source else {}),
            **code.contents(),
            "pieces": [manifests.piece(shape, job, number) for number in range(shape.num_pieces)],
        },
    )
    yield Step("object", f"make Service {shape.run_id}, by which pods find each other", manifests.service(shape, job))
    if (claim := manifests.claim(shape, job)) is not None:
        kept = "kept" if job.kubernetes.results is not None and job.kubernetes.results.keep else "removed with the run"
        yield Step("claim", f"make PersistentVolumeClaim {shape.run_id}, {kept}", claim)
    spares = job.kubernetes.spares
    *parts, made = manifests.attempt(shape, job, 1, job.nodes.max + spares)
    for part in parts:
        yield Step(
            "attempt-part", f"make {part['kind']} {part['metadata']['name']}, which the next one refers to", part
        )
    what = f"{made['kind']} {made['metadata']['name']}"
    more = f"; pods beside those of its nodes, as spares: {spares}" if spares else ""
    waits = "" if job.queue is None else f"; each waits in queue {job.queue}"
    waits += f" at priority {job.priority}" if waits and job.priority is not None else ""
    yield Step("attempt", f"make {what}, and one more for each restart{waits}{more}", made)


def _policies(shape: Shape, job: Job, target: KubernetesTarget, facts: Facts) -> Iterator[Step]:
    if target.network_policy and facts.cluster is not None and facts.cluster.is_isolated:
        for made in manifests.network_policies(shape, job):
            yield Step(
                "policy", f"make NetworkPolicy {made['metadata']['name']}, which admits the run's own pods", made
            )


def _supervisor(shape: Shape, job: Job) -> Iterator[Step]:
    if not shape.is_supervised_inside:
        return
    name, key = layout.supervisor_name(shape.run_id), supervisor.key(shape, job)
    for summary, made in (
        (f"make Secret {key['metadata']['name']}, which only the pods of the run and their supervisor know", key),
        (f"make ConfigMap {name}, the supervisor's code and this plan", supervisor.contents(shape, job)),
        (f"make Service {name}, by which the pods find the supervisor", supervisor.service(shape, job)),
        (f"make Job {name}, the supervisor of the run in the cluster", supervisor.job(shape, job)),
    ):
        yield Step("supervisor", summary, made)


def _nodes(shape: Shape, job: Job, target: KubernetesTarget, facts: Facts, num_nodes: int) -> NodeTemplate:
    """What all attempts have in common."""
    procs = shape.procs_per_node
    nodes = remote_nodes(
        job,
        FOLDERS,
        run_id=shape.run_id,
        python=shape.python,
        num_nodes=num_nodes,
        procs_per_node=procs,
        output_dir=layout.OUTPUT,
        checkpoint_dir=job.checkpoint.place(shape.run_id, layout.CHECKPOINTS),
        data={data.name: transfers.data_path(data, shape) for data in job.data},
        target_env=target.env,
        imports=facts.code.imports,
        grace_seconds=job.grace,
        threads=int(job.resources.cpus) // procs if job.resources.cpus is not None else None,
    )
    return nodes.replace(
        # Of a supervisor in the cluster, pods that fail early also wait until it has started and read their logs.
        stay_seconds=reuse.SECONDS if job.restarts.max or shape.is_supervised_inside else 0.0,
        outputs_max=shape.outputs_max,
        launchers=mpijob.launchers(num_nodes, procs, FOLDERS.proxy(shape.python)) if job.launcher == "mpi" else (),
    )


def _output(job: Job, run_id: str, outputs_max: int) -> str:
    results = job.kubernetes.results
    if results is None and outputs_max:
        return f"in the pods of {run_id}, until they come home"
    if results is None:
        return f"in the pods of {run_id}, while they are there"
    return f"claim {results.claim or run_id}: windlass/{run_id}/output"


def _image(job: Job, target: KubernetesTarget, runtime: Runtime | None) -> str:
    """The image of the pods; empty where it is that of the runtime on which they stand."""
    return job.image or ("" if runtime is not None else target.image or IMAGE)


def _helper_image(job: Job, target: KubernetesTarget, seen: Runtimes | None, runtime: Runtime | None) -> str:
    """The image of the supervisor and of pods that move files; empty for that of the pods, where no runtime has it."""
    if runtime is None or job.image:
        return ""
    return image_and_user(seen, "", target.user)["image"] or target.image or IMAGE


def _tolerations(job: Job, seen: Runtimes | None) -> tuple[Manifest, ...]:
    """Of the pods that train, those of their runtime included: all pods of the run go where these go."""
    of_runtime = pod_of(seen.found).get("tolerations", ()) if seen is not None and seen.found is not None else ()
    return (*([manifests.GPU_TOLERATION] if job.resources.gpus else ()), *of_runtime)


def _gpu_label(job: Job, facts: Facts) -> tuple[str, str] | None:
    """The label of nodes with the GPU type: one whose value has the type as a word."""
    if job.resources.gpu_type is None or facts.cluster is None:
        return None
    wanted = job.resources.gpu_type.lower()
    for label, value in facts.cluster.gpu_labels:
        if wanted in (value.lower(), *value.lower().replace("_", "-").split("-")):
            return label, value
    return None


# -- notes ------------------------------------------------------------------------------------------------------------


def _refusals(job: Job, target: KubernetesTarget, facts: Facts, via: str) -> Iterator[Note]:
    """What the cluster, or this version, cannot do for the job."""
    yield from facts.code.notes(job.script_argv[0])
    code = facts.code.packed
    if code is not None and num_pieces(facts) > MAX_PIECES and target.storage is None:
        largest = ", ".join(f"{name} ({size / 1e6:.1f} MB)" for name, size in code.largest)
        yield blocker(
            "code-too-large",
            f"the code is {len(code.data) / 1e6:.1f} MB compressed, and {MAX_PIECES * PIECE_BYTES / 1e6:.0f} MB "
            "travel in objects of the cluster",
            f"largest: {largest}; name what is no code in .windlassignore, or set storage: s3://… in target "
            f"{target.name}",
        )
    yield from workload_notes(job, facts.cluster, via)
    yield from supervision_notes(job, target, facts.cluster, via)
    if "/" in (job.python or "") and not (job.python or "").startswith("/"):
        yield blocker(
            "python-relative",
            f"python: {job.python} is a path on this machine",
            "give the interpreter's path in the image, or leave it out",
        )
    yield from transfers.transfer_notes(job, target)
    yield from mounting.mount_notes(job, target, facts.cluster)
    yield from _cluster_refusals(job, target, facts, via)


def _cluster_refusals(job: Job, target: KubernetesTarget, facts: Facts, via: str) -> Iterator[Note]:
    cluster = facts.cluster
    if cluster is None:
        yield blocker("cluster-unreachable", facts.unreachable, "is it the right context, and is it up?")
        return
    if lacking := missing_rights(job, target, cluster, via):
        yield blocker(
            "rights-missing",
            f"this login may not {', '.join(lacking)}",
            f"windlass check --on {target.name} --role prints the role that grants these",
        )
    for name in job.secrets:
        if cluster.secrets is not None and name not in cluster.secrets:
            yield blocker(
                "secret-missing",
                f"secret {name} is not in the namespace",
                f"kubectl create secret generic {name} --from-literal=NAME=value",
            )
    if job.notify is not None and cluster.secrets is not None and job.notify not in cluster.secrets:
        how = f"--from-literal={secret_variable(job.notify)}=ADDRESS"
        yield Note(
            "notify-missing",
            f"notify: secret {job.notify} is not in the namespace, so that nothing is told of the end",
            f"kubectl create secret generic {job.notify} {how}",
        )
    results = job.kubernetes.results
    wanted = [volume.claim for volume in job.volumes]
    wanted += [results.claim] if results is not None and results.claim is not None else []
    data_claim = transfers.wanted_claim(job, target)
    wanted += [data_claim.claim] if data_claim is not None and data_claim.size is None else []
    for claim in wanted:
        if cluster.claims is not None and claim not in cluster.claims:
            yield blocker("claim-missing", f"the claim {claim} is not in the namespace", "see: kubectl get pvc")
    is_unknown = job.resources.gpu_type is not None and _gpu_label(job, facts) is None
    if is_unknown and cluster.gpu_labels and cluster.node_pools is None:  # else one may be provisioned
        had = ", ".join(sorted({value for _, value in cluster.gpu_labels}))
        yield blocker("gpu-type-missing", f"no node has a GPU of type {job.resources.gpu_type}", f"there are: {had}")


def _lone_ranks(job: Job, target: KubernetesTarget, facts: Facts, num_ranks: int) -> Iterator[Note]:
    """A runtime may add GPUs to pods for which the job asks for none."""
    asks_for_none = not job.resources.gpus and job.kubernetes.runtime is None
    no_gpus, env = "the job asks for no GPUs" if asks_for_none else "", {*target.env, *job.env}
    yield from lone_ranks(job, num_ranks, facts.code.imports, env, no_gpus=no_gpus)


def _warnings(job: Job, target: KubernetesTarget, facts: Facts) -> Iterator[Note]:
    if not job.image and not target.image and job.kubernetes.runtime is None:
        yield Note("image-default", f"no image is named: {IMAGE} is used", "set image:, in the job or the target")
    if job.resources.cpus is None and job.resources.memory is None and job.kubernetes.runtime is None:
        yield Note(
            "requests-missing",
            "resources: sets neither cpus nor memory: pods without requests are evicted first where a node runs short",
            "set resources: {cpus: …, memory: …}",
        )
    if job.resources.gpu_type is not None and facts.cluster is not None and not facts.cluster.gpu_labels:
        yield Note(
            "gpu-type-unknown",
            f"no node has a label of its GPU type: {job.resources.gpu_type} is not used",
            "set resources.instance",
        )
    if facts.cluster is not None and not facts.cluster.is_fenced:
        yield Note(
            "leases-missing",
            "this login may not use Leases: two supervisors of this run, on machines that "
            "share its records, are not kept apart",
            f"windlass check --on {target.name} --role",
        )
    if target.network_policy and facts.cluster is not None and not facts.cluster.is_isolated:
        yield Note(
            "network-open",
            "this login may not create NetworkPolicies: the run's ports admit all that the cluster lets through",
            f"windlass check --on {target.name} --role; or set network_policy: false in target {target.name}",
        )
    if job.local != type(job.local)():
        yield Note("local-unused", "local: has no meaning on a cluster", "other targets use it")
