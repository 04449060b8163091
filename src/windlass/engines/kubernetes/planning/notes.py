"""Notes of a plan for the user: problems that block the run, and warnings. Pure.

Notes on mounts, transfers, runtimes and node provisioning are created by the modules that plan these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from windlass.engines.kubernetes.access.optional import version_of
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.manifests import MAX_PIECES, PIECE_BYTES, num_pieces
from windlass.engines.kubernetes.objects.pod_template import IMAGE, Shape, pod_template
from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.engines.kubernetes.objects.workloads.job import has_limit_per_index
from windlass.engines.kubernetes.planning.mounts import mount_notes
from windlass.engines.kubernetes.planning.runtimes import runtime_notes
from windlass.engines.kubernetes.planning.transfers import lost_notes, transfer_notes, wanted_claim
from windlass.engines.kubernetes.reading.admission import GROUP
from windlass.engines.kubernetes.reading.preflight import rbac
from windlass.errors import near
from windlass.plan import arguments
from windlass.plan.environment import secret_variable
from windlass.plan.notes import Note, blocker, lone_ranks, time_limit
from windlass.spec.labels import SERVICE_LABEL

if TYPE_CHECKING:
    from windlass.engines.kubernetes.planning.facts import Cluster, Facts
    from windlass.engines.kubernetes.reading.preflight.rights import SupervisorPlace
    from windlass.engines.travel import CodeFacts
    from windlass.spec.job import Job
    from windlass.spec.targets import KubernetesTarget

FOLDERS = {"WINDLASS_OUTPUT_DIR": layout.OUTPUT, "WINDLASS_CHECKPOINT_DIR": layout.CHECKPOINTS}


def plan_notes(
    job: Job,
    target: KubernetesTarget,
    facts: Facts,
    via: str,
    shape: Shape,
    *,
    num_ranks: int,
    supervisor: SupervisorPlace,
    on_provisioning: Sequence[Note],
    on_patches: Sequence[Note],
) -> Iterator[Note]:
    """Yields all notes of a plan. `via` is the requested or chosen workload kind, which may be unknown."""
    cluster = facts.cluster
    yield from _code_notes(job, target, facts.code)
    yield from _workload_notes(job, cluster, via)
    yield from _supervisor_notes(job, target, cluster, supervisor)
    yield from transfer_notes(job, target)
    yield from mount_notes(job, target, cluster)
    yield from _cluster_notes(job, target, facts, supervisor)
    yield from _spare_notes(job, via, cluster, is_inside=supervisor.is_in_cluster)
    yield from queue_notes(job, cluster)
    yield from on_provisioning
    yield from on_patches
    yield from runtime_notes(job, cluster, via, shape)
    yield from lost_notes(job, via)
    yield from _default_notes(job, target, cluster)
    yield from _host_notes(job, target, shape, has_supervisor=supervisor.is_in_cluster)
    yield from _capability_notes(job, shape)
    yield from _lone_ranks(job, target, facts, num_ranks)
    yield from time_limit(job, facts.code.saves_at_end)
    yield from arguments.left_over(job, FOLDERS)
    yield from arguments.hidden_launchers(job)


def _code_notes(job: Job, target: KubernetesTarget, code: CodeFacts) -> Iterator[Note]:
    """Yields problems of the transferred code, and of the interpreter's path."""
    yield from code.notes(job.script_argv[0])
    packed = code.packed
    if packed is not None and num_pieces(code.num_packed_bytes) > MAX_PIECES and target.storage is None:
        largest = ", ".join(f"{name} ({size / 1e6:.1f} MB)" for name, size in packed.largest)
        yield blocker(
            "code-too-large",
            f"the code is {code.num_packed_bytes / 1e6:.1f} MB compressed, and {MAX_PIECES * PIECE_BYTES / 1e6:.0f} MB "
            "travel in objects of the cluster",
            f"largest: {largest}; exclude other files in .windlassignore, or set storage: s3://… in target "
            f"{target.name}",
        )
    if "/" in (job.python or "") and not (job.python or "").startswith("/"):
        yield blocker(
            "python-relative",
            f"python: {job.python} is a path on this machine",
            "give the interpreter's path in the image, or leave it out",
        )


def _workload_notes(job: Job, cluster: Cluster | None, via: str) -> Iterator[Note]:
    """Yields problems of the requested or chosen workload kind."""
    if via not in WORKLOADS:
        yield blocker("via-unknown", f"via: {via} is not in this version", f"known are {', '.join(WORKLOADS)}")
        return
    way = WORKLOADS[via]
    if cluster is not None and via != "job" and way.api not in cluster.groups:
        yield blocker(
            f"{via}-missing", f"via: {via}, and the cluster serves no {way.api}", "via: job needs no operator"
        )
    if isinstance(job.kubernetes.ttl, float) and way.no_ttl:
        article = "an" if via == "mpijob" else "a"
        yield blocker(
            "ttl", f"kubernetes.ttl: {article} {way.kind} {way.no_ttl}", "leave it out; windlass rm removes the run"
        )
    if (job.launcher == "mpi") != (via == "mpijob"):
        yield blocker("mpi", f"launcher: {job.launcher}, and via: {via}", "launcher: mpi and via: mpijob go together")
    if job.queue is not None and via == "trainjob":
        message = (
            "from Trainer 2.2 on, Kueue (0.16 and before) cannot give a TrainJob the node labels and "
            "tolerations of its quota's flavor"
        )
        yield Note(
            "queue-flavor",
            f"queue: {job.queue}, and via: trainjob: {message}",
            "where the flavor has some: the same in kubernetes.node_selector, or another via:",
        )
    groups = cluster.groups if cluster is not None else frozenset()
    if via == "mpijob" and way.api not in groups and "kubeflow.org/v1" in groups:
        message = "the cluster may serve MPIJob v1, whose operator is no longer maintained"
        yield blocker("mpijob-old", message, "install mpi-operator 0.7 or newer")


def _supervisor_notes(
    job: Job, target: KubernetesTarget, cluster: Cluster | None, supervisor: SupervisorPlace
) -> Iterator[Note]:
    """Yields reasons why the supervisor cannot run in a cluster, if the target requires this or the cluster was set up
    for it.
    """
    if cluster is None or supervisor.is_in_cluster:
        return
    if SERVICE_LABEL in job.labels:
        yield blocker(
            "service-unsupervised",
            f"a service ends by its supervisor in the cluster, and {supervisor.why}",
            supervisor.fix or f"windlass target setup {target.name}",
        )
    if target.supervisor == "cluster":
        yield blocker("supervisor-missing", f"supervisor: cluster, and {supervisor.why}", supervisor.fix)
    elif supervisor.lacking:
        yield Note("supervisor-rights", f"{supervisor.why}: this machine supervises the run", supervisor.fix)


def _cluster_notes(job: Job, target: KubernetesTarget, facts: Facts, supervisor: SupervisorPlace) -> Iterator[Note]:
    """Yields problems of the cluster: no answer, missing permissions, and missing objects or GPUs that the job
    names.
    """
    cluster = facts.cluster
    if cluster is None:
        yield blocker("cluster-unreachable", facts.unreachable, "is it the right context, and is it up?")
        return
    needed = rbac.NEEDED if supervisor.is_in_cluster else (*rbac.NEEDED, *rbac.EXEC)
    if lacking := cluster.rights.lacking(needed):
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
            f"notify: secret {job.notify} is not in the namespace, so no notification is sent at the end",
            f"kubectl create secret generic {job.notify} {how}",
        )
    results = job.kubernetes.results
    wanted = [volume.claim for volume in job.volumes if volume.claim is not None]
    wanted += [results.claim] if results is not None and results.claim is not None else []
    data_claim = wanted_claim(job, target)
    wanted += [data_claim.claim] if data_claim is not None and data_claim.size is None else []
    for claim in wanted:
        if cluster.claims is not None and claim not in cluster.claims:
            yield blocker("claim-missing", f"the claim {claim} is not in the namespace", "see: kubectl get pvc")
    is_unknown = job.resources.gpu_type is not None and cluster.gpu_label(job.resources.gpu_type) is None
    # with NodePools, a node with this GPU may be provisioned
    if is_unknown and cluster.gpu_labels and cluster.node_pools is None:
        had = ", ".join(sorted({value for _, value in cluster.gpu_labels}))
        yield blocker("gpu-type-missing", f"no node has a GPU of type {job.resources.gpu_type}", f"there are: {had}")


def _spare_notes(job: Job, via: str, cluster: Cluster | None, *, is_inside: bool) -> Iterator[Note]:
    """Yields reasons why a job cannot have its requested spares, and a warning if the supervisor runs on this
    machine.
    """
    if not job.kubernetes.spares or cluster is None:
        return
    asked = f"kubernetes.spares: {job.kubernetes.spares}"
    if via != "job":
        yield blocker(
            "spares", f"{asked}, and via: {via}, which replaces all pods when one is lost", "kubernetes: {via: job}"
        )
    elif job.queue is not None:
        yield blocker(
            "spares",
            f"{asked}, and queue: {job.queue}: a queue admits and evicts all pods of a Job at once",
            "leave out one of spares and queue",
        )
    elif not has_limit_per_index(cluster.version):
        yield blocker(
            "spares",
            f"{asked}, and Kubernetes {cluster.version}: before 1.29 a Job ends all its pods when one is lost",
            "leave spares out",
        )
    elif not job.restarts.max or "node-loss" not in job.restarts.on:
        yield blocker(
            "spares",
            f"{asked}, and restarts: does not restart after node-loss, so no spare is ever used",
            "restarts: 3",
        )
    elif job.nodes.min < job.nodes.max:
        yield blocker(
            "spares",
            f"{asked}, and nodes: {job.nodes.min}..{job.nodes.max}: a run that continues with fewer "
            "nodes has no place for a spare",
            "nodes: with one number, or leave spares out",
        )
    elif not is_inside:
        yield Note(
            "spares-unwatched",
            f"{asked}, and the supervisor runs on this machine: while that is off, spares "
            "replace no lost pod, and are kept after the end of the run",
            "windlass target setup lets it run in the cluster; timeout: bounds what they cost",
        )


def queue_notes(job: Job, cluster: Cluster | None) -> Iterator[Note]:
    """Yields problems of the job's queue."""
    if job.queue is None or cluster is None:
        return
    if not version_of(GROUP, cluster.groups):
        yield blocker(
            "queue-ignored",
            f"queue: {job.queue}, and the cluster has no Kueue: the run would start at once",
            "leave out queue:, or have Kueue installed",
        )
    elif cluster.queues is not None:
        queues = dict(cluster.queues)
        if job.queue not in queues:
            hint = near(job.queue, queues)
            meant = f" ({hint})" if hint else ""
            yield blocker(
                "queue-missing",
                f"there is no LocalQueue {job.queue} in the namespace{meant}",
                f"there are: {', '.join(sorted(queues)) or 'none'}",
            )
        elif queues[job.queue]:
            yield Note(
                "queue-inactive",
                f"queue {job.queue} admits no jobs now: {queues[job.queue]}",
                "the run waits until it does; see: kubectl describe localqueue",
            )


def _lone_ranks(job: Job, target: KubernetesTarget, facts: Facts, num_ranks: int) -> Iterator[Note]:
    """Yields warnings about ranks that do not communicate. A runtime may add GPUs that the job does not request."""
    asks_for_none = not job.resources.gpus and job.kubernetes.runtime is None
    no_gpus, env = "the job asks for no GPUs" if asks_for_none else "", {*target.env, *job.env}
    yield from lone_ranks(job, num_ranks, facts.code.imports, env, no_gpus=no_gpus)


def uses_host_network(shape: Shape) -> bool:
    """Whether the ranks are in the network of their nodes, where a NetworkPolicy cannot select them."""
    return any((patch.get("spec") or {}).get("hostNetwork") for patch in shape.pod_patches)


def _host_notes(job: Job, target: KubernetesTarget, shape: Shape, *, has_supervisor: bool) -> Iterator[Note]:
    if uses_host_network(shape) and job.nodes.max > 1 and shape.pods.affinity.apart is None:
        yield Note(
            "host-ports",
            "hostNetwork: pods of the run that share a node also share its ports, on which their ranks would fail",
            "kubernetes: {affinity: {apart: node}}",
        )
    if target.network_policy and uses_host_network(shape):
        kept = ", and the supervisor's would keep these pods out" if has_supervisor else ""
        yield Note(
            "network-open",
            f"hostNetwork: NetworkPolicies have no effect on pods in the network of their nodes{kept}: none is made",
            f"network_policy: false in target {target.name} says so for all runs",
        )


def _capability_notes(job: Job, shape: Shape) -> Iterator[Note]:
    """Yields a warning about capabilities without effect: Linux gives them to processes of root alone."""
    spec = pod_template(shape, job, 1, job.nodes.max)["spec"]
    of_pod, of_container = (one.get("securityContext") or {} for one in (spec, spec["containers"][0]))
    user = of_container.get("runAsUser", of_pod.get("runAsUser"))
    if (names := shape.pods.capabilities) and user:
        yield Note(
            "capabilities",
            f"capabilities: {', '.join(names)} has no effect for user {user}: Linux gives it to root alone",
            "if ranks need it: pod: {spec: {securityContext: {runAsUser: 0, runAsNonRoot: false}}}",
        )


def _default_notes(job: Job, target: KubernetesTarget, cluster: Cluster | None) -> Iterator[Note]:
    """Yields warnings about missing settings, with the default that is used, and about settings without effect."""
    if not job.image and not target.image and job.kubernetes.runtime is None:
        yield Note("image-default", f"no image is named: {IMAGE} is used", "set image:, in the job or the target")
    if job.resources.cpus is None and job.resources.memory is None and job.kubernetes.runtime is None:
        yield Note(
            "requests-missing",
            "resources: sets neither cpus nor memory: pods without requests are evicted first where a node runs short",
            "set resources: {cpus: …, memory: …}",
        )
    if job.resources.gpu_type is not None and cluster is not None and not cluster.gpu_labels:
        yield Note(
            "gpu-type-unknown",
            f"no node has a label of its GPU type: {job.resources.gpu_type} is not used",
            "set resources.instance",
        )
    if cluster is not None and cluster.rights.lacking(rbac.LEASES):
        yield Note(
            "leases-missing",
            "this login may not use Leases: two supervisors of this run, on machines that "
            "share its records, do not exclude each other",
            f"windlass check --on {target.name} --role",
        )
    if target.network_policy and cluster is not None and cluster.rights.lacking(rbac.POLICIES):
        yield Note(
            "network-open",
            "this login may not create NetworkPolicies: the run's ports accept all traffic that the cluster allows",
            f"windlass check --on {target.name} --role; or set network_policy: false in target {target.name}",
        )
    if job.local != type(job.local)():
        yield Note("local-unused", "local: has no effect on a cluster", "other targets use it")
