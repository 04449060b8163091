"""Checks on a cluster: what was found, whether runs can go well, what to do. Pure."""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from windlass.engines.checks import Check
from windlass.engines.kubernetes.access.client import NotLoggedIn, Refused, Unreachable
from windlass.engines.kubernetes.objects import manifests
from windlass.engines.kubernetes.objects.manifests import GPU_LABELS
from windlass.engines.kubernetes.objects.node_pools import taint_not_tolerated, taint_text, taints_of_node
from windlass.engines.kubernetes.objects.quantity import is_true
from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.engines.kubernetes.planning import supervision
from windlass.engines.kubernetes.planning.facts import is_default
from windlass.engines.kubernetes.planning.provisioning import group_check, pool_check
from windlass.engines.kubernetes.reading.admission import inactive
from windlass.engines.kubernetes.reading.preflight import rbac
from windlass.engines.kubernetes.reading.preflight.image import image_check
from windlass.engines.kubernetes.reading.preflight.survey import Survey
from windlass.spec.quantities import amount

if TYPE_CHECKING:
    from windlass.spec.targets import KubernetesTarget

OPERATORS: Final = (
    ("JobSet", "jobset.x-k8s.io", None),
    ("Kueue", "kueue.x-k8s.io", None),
    ("Trainer", "trainer.kubeflow.org", None),
    ("PyTorchJob", "kubeflow.org/v1", "pytorchjobs"),
    ("MPIJob", "kubeflow.org/v2beta1", "mpijobs"),
    ("Karpenter", "karpenter.sh", None),
)
"""What is found, the group (or its one version) that it is served in, and which of its kinds is meant."""
SHARED: Final = ("efs", "fsx", "nfs", "cephfs", "file.csi.azure", "azurefile", "filestore", "lustre", "weka", "gpfs")
"""Parts of the names of provisioners whose volumes several nodes may write at once."""
ALONE: Final = ("ebs", "pd.csi", "gce-pd", "disk.csi", "local-path", "rbd", "cinder", "hostpath", "no-provisioner")
"""Parts of the names of those whose volumes one node has at a time."""
PODS_MUST_SAY: Final = ("cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory")
"""Limits of a quota under which a pod without a request for the resource is refused."""
Json = Mapping[str, Any]


def checks(seen: Survey, target: KubernetesTarget) -> list[Check]:
    """All checks of a cluster; where the first of them fail, those that then mean nothing are left out."""
    if (error := seen.error("version")) is not None and not isinstance(error, Refused):
        name = "login" if isinstance(error, NotLoggedIn) or not isinstance(error, Unreachable) else "api"
        return [Check(name, "fail", error.message, error.hint)]
    if seen.refusal("version") == 401:
        fix = f"log in again, as for kubectl: {seen.kubectl} get pods"
        return [
            Check("api", "ok", seen.server),
            Check("login", "fail", "the cluster does not know this login: it has run out, or was never valid", fix),
        ]
    found = [_api(seen), _login(seen)]
    absent = _absent(seen)
    if absent is not None:
        return [*found, absent]
    return [
        *found,
        *_rights(seen, target),
        _supervisor(seen, target),
        _operators(seen, target),
        *(
            check
            for name, (_, rule) in RULES.items()
            if (answer := seen.get(name)) is not None
            for check in rule(seen, answer)
        ),
        *_unseen(seen),
        image_check(target, (seen.get("nodes") or {}).get("items", ())),
    ]


# -- login and rights -------------------------------------------------------------------------------------------


def _api(seen: Survey) -> Check:
    version = (seen.get("version") or {}).get("gitVersion", "of unknown version")
    return Check("api", "ok", f"Kubernetes {version} at {seen.server} answers in {1000 * seen.latency_seconds:.0f} ms")


def _login(seen: Survey) -> Check:
    user = seen.user
    return Check("login", "ok", f"{user}, by context {seen.context}" if user else f"by context {seen.context}")


def _absent(seen: Survey) -> Check | None:
    """That the namespace is not there, where that may be known."""
    if seen.refusal("namespace") == 404:
        fix = f"{seen.kubectl} create namespace {seen.namespace}; or set namespace: in targets.yaml"
        return Check("namespace", "fail", f"there is no namespace {seen.namespace}", fix)
    return None


def _rights(seen: Survey, target: KubernetesTarget) -> Iterator[Check]:
    if (error := seen.error("rights")) is not None:
        yield Check("rights", "warn", f"could not be asked for: {error.message}", error.hint)
        return
    wanted = rbac.useful(seen.groups)
    lacking = set(seen.missing)
    fix = f"have this role bound to {seen.user or 'this login'}: windlass check --on {target.name} --role"
    needed = rbac.NEEDED if _decided(seen, target)[0] else (*rbac.NEEDED, *rbac.EXEC)
    if not lacking:
        yield Check("rights", "ok", f"all {len(wanted)} that are needed in namespace {seen.namespace}")
    elif lacking >= set(wanted):
        yield Check("rights", "fail", f"none of the {len(wanted)} that are needed in namespace {seen.namespace}", fix)
    elif lacking.intersection(needed):
        yield Check("rights", "fail", f"this login may not {_named(wanted, lacking)}", fix)
    else:
        ways = [(rbac.of_workload(way), "set via: job") for way in WORKLOADS.values() if way.name != "job"]
        known = (
            (rbac.EXEC, "exec, cp and check --network are refused"),
            (rbac.CLAIMS, "jobs that ask for a claim are refused"),
            (rbac.LEASES, "two supervisors of one run, on machines that share its records, are not kept apart"),
            (rbac.QUEUES, "the status of a run in its queue cannot be read"),
            (rbac.DRY_RUN, "plan does not find pods that limits, quotas or webhooks refuse"),
            (rbac.POLICIES, "runs get no NetworkPolicy"),
            (rbac.FOLLOWED, "runs of other machines cannot be followed by --watch"),
            (rbac.SUPERVISED, "no run can be submitted with a supervisor in the cluster"),
        )
        for some, why in (*known, *ways):
            if lacking.intersection(some):
                yield Check("rights", "warn", f"this login may not {_named(some, lacking)}: {why}", fix)


def _supervisor(seen: Survey, target: KubernetesTarget) -> Check:
    """Where the supervisors of runs run."""
    is_there, why = _decided(seen, target)
    granted = rbac.granted(seen.get("account") or {})
    if is_there and (lacking := supervision.lacking_on(rbac.supervisor_rights(seen.groups), granted)):
        what = "are not started" if target.supervisor == "cluster" else "are supervised on the machine that starts them"
        fix = supervision.how_to(target.name, has_account=True, lacking=lacking)
        return Check("supervisor", "warn", f"{supervision.lacks(lacking)}: runs that need them {what}", fix)
    if is_there:
        fix = f"to supervise them on this machine: supervisor: machine of target {target.name}"
        return Check("supervisor", "ok", f"runs are supervised in the cluster: {why}", fix)
    fix = f"leave out supervisor: of target {target.name}, to supervise them in the cluster"
    if target.supervisor != "machine":
        fix = f"to supervise them in the cluster: {supervision.how_to(target.name, has_account=_has_account(seen))}"
    if target.supervisor == "cluster":
        return Check("supervisor", "fail", f"supervisor: cluster, and {why}", fix)
    return Check("supervisor", "ok", f"runs are supervised on the machine that starts them: {why}", fix)


def _decided(seen: Survey, target: KubernetesTarget) -> tuple[bool, str]:
    """Whether runs are supervised in the cluster, and why."""
    missing = [str(right) for right in seen.missing if right in rbac.SUPERVISED]
    return supervision.decide(target, seen.namespace, has_account=_has_account(seen), missing=missing)


def _has_account(seen: Survey) -> bool | None:
    """Whether the namespace has the service account of supervisors; None where that is not known."""
    if seen.error("account") is None:
        return True
    return False if seen.refusal("account") == 404 else None


def _named(wanted: Iterable[rbac.Right], lacking: Collection[rbac.Right]) -> str:
    return ", ".join(str(right) for right in wanted if right in lacking)


def _unseen(seen: Survey) -> Iterator[Check]:
    names = [shown for name, (shown, _) in RULES.items() if seen.refusal(name) == 403]
    if names:
        fix = "runs need none of these rights; with get and list the check shows more"
        yield Check("not seen", "warn", f"this login may not look at: {', '.join(names)}", fix)


# -- what the cluster has ---------------------------------------------------------------------------------------------


def _operators(seen: Survey, target: KubernetesTarget) -> Check:
    found = []
    for name, group, plural in OPERATORS:
        versions = sorted(one for one in seen.groups if one == group or one.startswith(f"{group}/"))
        kinds = [one["name"] for one in (seen.get(group) or {}).get("resources", ())]
        if versions and (plural is None or plural in kinds):
            found.append(f"{name} {', '.join(version.rpartition('/')[2] for version in versions)}")
    text = ", ".join(found) or "none; an Indexed Job needs none"
    api = WORKLOADS[target.via].api if target.via in WORKLOADS else None
    if target.via not in ("auto", *WORKLOADS):
        fix = f"known are: auto, {', '.join(WORKLOADS)}"
        return Check("operators", "fail", f"{text}; via: {target.via} of the target is not in this version", fix)
    if api is not None and api not in seen.groups:
        fix = "install it, or set via: auto in targets.yaml"
        return Check("operators", "fail", f"{text}; the target has via: {target.via}, and no {api} is served", fix)
    return Check("operators", "ok", text)


def _queues(seen: Survey, found: Json) -> Iterator[Check]:
    """The LocalQueues of the namespace, where there is a Kueue."""
    queues = {one["metadata"]["name"]: one for one in sorted(found["items"], key=lambda one: one["metadata"]["name"])}
    idle = {name: why for name, one in queues.items() if (why := inactive(one))}
    told = [f"{name} ({_waiting_in(one)})" for name, one in queues.items() if name not in idle]
    text = "; ".join([*told, *(f"{name} admits no jobs: {why}" for name, why in idle.items())])
    if not queues:
        fix = "jobs with queue: need one; ask the administrator of Kueue for it"
        yield Check("queues", "warn", f"Kueue is installed, and namespace {seen.namespace} has no LocalQueue", fix)
    elif idle:
        yield Check("queues", "warn", text, f"kubectl -n {seen.namespace} describe localqueue")
    else:
        yield Check("queues", "ok", text)


def _waiting_in(queue: Mapping[str, Any]) -> str:
    status = queue.get("status", {})
    return f"{status.get('admittedWorkloads', 0)} admitted, {status.get('pendingWorkloads', 0)} waiting"


def _quota(seen: Survey, quotas: Json) -> Iterator[Check]:
    lines, spent, says = [], [], False
    for quota in quotas["items"]:
        hard, used = quota.get("status", {}).get("hard", {}), quota.get("status", {}).get("used", {})
        for name, limit in hard.items():
            says |= name in PODS_MUST_SAY
            lines.append(f"{name} {used.get(name, '0')} of {limit}")
            if amount(str(used.get(name, "0"))) >= amount(str(limit)):
                spent.append(name)
    text = ", ".join(lines) or "none"
    if spent:
        fix = f"end what uses it, or have the quota raised: kubectl -n {seen.namespace} get resourcequota"
        yield Check("quota", "warn", f"{text}; used up: {', '.join(spent)}", fix)
    else:
        yield Check("quota", "ok", text, "jobs must set resources.cpus and resources.memory here" if says else "")


def _storage(seen: Survey, classes: Json) -> Iterator[Check]:
    shown, shared, has_default = [], False, False
    for one in classes["items"]:
        provisioner = str(one.get("provisioner", ""))
        has_default |= is_default(one)
        kind = _kind_of(provisioner)
        shared |= kind != "one node at a time"
        shown.append(f"{one['metadata']['name']}{' (default)' if is_default(one) else ''}: {provisioner}, {kind}")
    text = "; ".join(shown) or "no storage class"
    if not shown:
        fix = "results need a claim that is there: kubernetes: {results: {claim: NAME}}"
        yield Check("storage", "warn", text, fix)
    elif not shared:
        fix = "results of several nodes need one that may be shared (ReadWriteMany): EFS, FSx, NFS, CephFS"
        yield Check("storage", "warn", text, fix)
    else:
        yield Check("storage", "ok", text)
    if shown and not has_default:
        fix = "name one in kubernetes.results.storage_class of the jobs, or have an administrator mark one as default"
        yield Check(
            "default storage",
            "warn",
            "no storage class is the default: results: with a size and no storage_class is refused",
            fix,
        )


def _kind_of(provisioner: str) -> str:
    """Whether several nodes may share a volume of it, as far as its name shows."""
    if any(word in provisioner for word in SHARED):
        return "shared"
    return "one node at a time" if any(word in provisioner for word in ALONE) else "shared or not: unknown"


def _gpus(seen: Survey, nodes: Json) -> Iterator[Check]:
    having = {node["metadata"]["name"]: node for node in nodes["items"] if _gpus_of(node)}
    if not having:
        yield Check("gpus", "ok", f"none on {len(nodes['items'])} nodes, unless an autoscaler provisions some")
        return
    total = sum(_gpus_of(node) for node in having.values())
    pods = seen.get("pods")
    taken = _taken((pods or {}).get("items", ()), having)
    free = f"{total - taken} free of {total}" if pods is not None else f"{total}, some of which may be in use"
    kinds = _counted(_gpu_type(node) for node in having.values())
    instances = _counted(_label(node, manifests.INSTANCE_LABEL) for node in having.values())
    unready = [name for name, node in having.items() if not is_true(node, "Ready")]
    text = f"{free}, on {len(having)} of {len(nodes['items'])} nodes: {kinds}; {instances}"
    if unready:
        yield Check("gpus", "warn", f"{text}; not ready: {', '.join(unready[:5])}", "kubectl describe node NAME")
    else:
        yield Check("gpus", "ok", text)


def _nodes(seen: Survey, nodes: Json) -> Iterator[Check]:
    yield from _gpus(seen, nodes)
    found = [taints_of_node(node) for node in nodes["items"] if is_true(node, "Ready")]
    texts = collections.Counter(taint_text(one) for taints in found for one in taints)
    if not texts:
        return
    shown = ", ".join(f"{text} on {count} of {len(found)} nodes" for text, count in sorted(texts.items()))
    text = f"{shown}; pods of jobs that request GPUs tolerate {manifests.GPU}, and no other"
    if all(taint_not_tolerated(taints, {"tolerations": [manifests.GPU_TOLERATION]}) for taints in found):
        fix = "use nodes without such a taint, or have a policy add the toleration"
        yield Check("taints", "warn", f"{text}: there is no node for them", fix)
    else:
        yield Check("taints", "ok", text)


def _gpus_of(node: Mapping[str, Any]) -> int:
    return int(amount(str(node.get("status", {}).get("allocatable", {}).get(manifests.GPU, "0"))))


def _gpu_type(node: Mapping[str, Any]) -> str:
    return next((found for label in GPU_LABELS if (found := _label(node, label))), "")


def _label(node: Mapping[str, Any], name: str) -> str:
    return str(node["metadata"].get("labels", {}).get(name, ""))


def _counted(values: Iterable[str]) -> str:
    counts = collections.Counter(value or "of unknown type" for value in values)
    return ", ".join(f"{many} × {value}" for value, many in sorted(counts.items()))


def _taken(pods: Iterable[Mapping[str, Any]], nodes: Mapping[str, Any]) -> int:
    """GPUs that pods on these nodes have."""
    return sum(
        int(amount(str(container.get("resources", {}).get("limits", {}).get(manifests.GPU, "0"))))
        for pod in pods
        if pod["spec"].get("nodeName") in nodes
        for container in pod["spec"]["containers"]
    )


def _security(seen: Survey, space: Json) -> Iterator[Check]:
    labels = space["metadata"].get("labels", {})
    level = labels.get("pod-security.kubernetes.io/enforce")
    if space.get("status", {}).get("phase") == "Terminating":
        fix = "wait until it is gone, and make it again"
        yield Check("namespace", "fail", f"namespace {seen.namespace} is being deleted", fix)
    yield Check("pod security", "ok", f"{level or 'no level'} is enforced; pods are made for restricted, the strictest")


def _pools(_: Survey, pools: Json) -> Iterator[Check]:
    yield pool_check(pools["items"])


def _autoscaler(_: Survey, answer: Json) -> Iterator[Check]:
    if answer["status"] is not None:
        yield group_check(answer["status"])


RULES: Final[Mapping[str, tuple[str, Callable[[Survey, Json], Iterator[Check]]]]] = {
    "queues": ("queues", _queues),
    "quotas": ("quota", _quota),
    "classes": ("storage classes", _storage),
    "nodes": ("GPU nodes", _nodes),
    "pools": ("NodePools", _pools),
    "autoscaler": ("the node autoscaler", _autoscaler),
    "namespace": ("pod security", _security),
}
"""By an answer that is needed, what it is called where it is forbidden, and the checks on it."""
