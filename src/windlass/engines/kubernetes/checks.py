"""Turns what a cluster has answered into checks: what was found, whether runs can go well, what to do. Pure."""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from windlass.engines.checking import Check
from windlass.engines.kubernetes import manifests, rights
from windlass.engines.kubernetes.client import Refused, Unreachable
from windlass.engines.kubernetes.facts import GPU_LABELS
from windlass.engines.kubernetes.machinechecks import machine_checks
from windlass.engines.kubernetes.plan import IMAGE, PYTHON
from windlass.engines.kubernetes.queueing import inactive
from windlass.engines.kubernetes.survey import Survey
from windlass.engines.kubernetes.ways import WAYS
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
DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
SHARED: Final = ("efs", "fsx", "nfs", "cephfs", "file.csi.azure", "azurefile", "filestore", "lustre", "weka", "gpfs")
"""Words in the names of provisioners whose volumes several machines may write at once."""
ALONE: Final = ("ebs", "pd.csi", "gce-pd", "disk.csi", "local-path", "rbd", "cinder", "hostpath", "no-provisioner")
"""Words in the names of those whose volumes one machine has at a time."""
SUFFIXES: Final = {
    "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50,
}  # fmt: skip
PODS_MUST_SAY: Final = ("cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory")
"""Limits of a quota under which a pod that says nothing of the resource is refused."""
UNSEEN: Final = {
    "namespace": "pod security",
    "quotas": "quota",
    "classes": "storage classes",
    "nodes": "GPU nodes",
    "queues": "queues",
    "pools": "NodePools",
}


def checks(seen: Survey, target: KubernetesTarget) -> list[Check]:
    """All checks of a cluster; where the first of them fail, those that then mean nothing are left out."""
    if (error := seen.error("version")) is not None and not isinstance(error, Refused):
        name = "api" if isinstance(error, Unreachable) else "login"
        return [Check(name, "fail", error.message, error.hint)]
    if isinstance(error, Refused) and error.status == 401:
        fix = f"log in again, as for kubectl: kubectl --context {seen.context} get pods"
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
        *_rights(seen, target.name),
        _operators(seen, target),
        *_queues(seen),
        *_quota(seen),
        *_storage(seen),
        *_gpus(seen),
        *machine_checks(seen),
        *_security(seen),
        *_unseen(seen),
        _image(target),
    ]


# -- who, and what may they -------------------------------------------------------------------------------------------


def _api(seen: Survey) -> Check:
    version = (seen.get("version") or {}).get("gitVersion", "of unknown version")
    return Check("api", "ok", f"Kubernetes {version} at {seen.server} answers in {1000 * seen.latency_seconds:.0f} ms")


def _login(seen: Survey) -> Check:
    user = seen.user
    return Check("login", "ok", f"{user}, by context {seen.context}" if user else f"by context {seen.context}")


def _absent(seen: Survey) -> Check | None:
    """That the namespace is not there, where that may be known."""
    error = seen.error("namespace")
    if isinstance(error, Refused) and error.status == 404:
        fix = f"kubectl --context {seen.context} create namespace {seen.namespace}; or set namespace: in targets.yaml"
        return Check("namespace", "fail", f"there is no namespace {seen.namespace}", fix)
    return None


def _rights(seen: Survey, target: str) -> Iterator[Check]:
    if (error := seen.error("rights")) is not None:
        yield Check("rights", "warn", f"could not be asked for: {error.message}", error.hint)
        return
    wanted = rights.useful(seen.groups)
    lacking = set(seen.missing)
    fix = f"have this role bound to {seen.user or 'this login'}: windlass check --on {target} --role"
    if not lacking:
        yield Check("rights", "ok", f"all {len(wanted)} that are needed in namespace {seen.namespace}")
    elif lacking >= set(wanted):
        yield Check("rights", "fail", f"none of the {len(wanted)} that are needed in namespace {seen.namespace}", fix)
    elif lacking.intersection(rights.NEEDED):
        yield Check("rights", "fail", f"this login may not {_named(wanted, lacking)}", fix)
    else:
        ways = [(rights.of_way(way), "set via: job") for way in WAYS.values() if way.name != "job"]
        known = (
            (rights.CLAIMS, "jobs that ask for a claim are refused"),
            (rights.LEASES, "two supervisors of one run, on machines that share its records, are not kept apart"),
            (rights.QUEUES, "nobody can say what a queue does with a run"),
        )
        for some, why in (*known, *ways):
            if lacking.intersection(some):
                yield Check("rights", "warn", f"this login may not {_named(some, lacking)}: {why}", fix)


def _named(wanted: Iterable[rights.Right], lacking: Collection[rights.Right]) -> str:
    return ", ".join(str(right) for right in wanted if right in lacking)


def _unseen(seen: Survey) -> Iterator[Check]:
    names = [shown for name, shown in UNSEEN.items() if _is_forbidden(seen, name)]
    if names:
        fix = "runs need none of these rights; with get and list the check says more"
        yield Check("not seen", "warn", f"this login may not look at: {', '.join(names)}", fix)


def _is_forbidden(seen: Survey, name: str) -> bool:
    error = seen.error(name)
    return isinstance(error, Refused) and error.status == 403


# -- what the cluster has ---------------------------------------------------------------------------------------------


def _operators(seen: Survey, target: KubernetesTarget) -> Check:
    found = []
    for name, group, plural in OPERATORS:
        versions = sorted(one for one in seen.groups if one == group or one.startswith(f"{group}/"))
        kinds = [one["name"] for one in (seen.get(group) or {}).get("resources", ())]
        if versions and (plural is None or plural in kinds):
            found.append(f"{name} {', '.join(version.rpartition('/')[2] for version in versions)}")
    text = ", ".join(found) or "none; an Indexed Job needs none"
    api = WAYS[target.via].api if target.via in WAYS else None
    if target.via not in ("auto", *WAYS):
        fix = f"known are: auto, {', '.join(WAYS)}"
        return Check("operators", "fail", f"{text}; via: {target.via} of the target is not in this version", fix)
    if api is not None and api not in seen.groups:
        fix = "install it, or set via: auto in targets.yaml"
        return Check("operators", "fail", f"{text}; the target says via: {target.via}, and no {api} is served", fix)
    return Check("operators", "ok", text)


def _queues(seen: Survey) -> Iterator[Check]:
    """The LocalQueues of the namespace, where there is a Kueue."""
    found = seen.get("queues")
    if found is None:
        return
    queues = {one["metadata"]["name"]: one for one in sorted(found["items"], key=lambda one: one["metadata"]["name"])}
    idle = {name: why for name, one in queues.items() if (why := inactive(one))}
    told = [f"{name} ({_waiting_in(one)})" for name, one in queues.items() if name not in idle]
    text = "; ".join([*told, *(f"{name} admits nobody: {why}" for name, why in idle.items())])
    if not queues:
        fix = "jobs with queue: need one; have whoever keeps Kueue make it"
        yield Check("queues", "warn", f"Kueue is installed, and namespace {seen.namespace} has no LocalQueue", fix)
    elif idle:
        yield Check("queues", "warn", text, f"kubectl -n {seen.namespace} describe localqueue")
    else:
        yield Check("queues", "ok", text)


def _waiting_in(queue: Mapping[str, Any]) -> str:
    status = queue.get("status", {})
    return f"{status.get('admittedWorkloads', 0)} admitted, {status.get('pendingWorkloads', 0)} waiting"


def _quota(seen: Survey) -> Iterator[Check]:
    quotas = seen.get("quotas")
    if quotas is None:
        return
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


def amount(text: str) -> float:
    """A quantity of Kubernetes as a number: `500m` → 0.5, `2Gi` → 2147483648. 0 for what is none."""
    for length in (2, 1):
        if text[-length:] in SUFFIXES:
            text, factor = text[:-length], SUFFIXES[text[-length:]]
            break
    else:
        factor = 1.0
    try:
        return float(text) * factor
    except ValueError:
        return 0.0


def _storage(seen: Survey) -> Iterator[Check]:
    classes = seen.get("classes")
    if classes is None:
        return
    shown, shared, has_default = [], False, False
    for one in classes["items"]:
        provisioner = str(one.get("provisioner", ""))
        is_default = one["metadata"].get("annotations", {}).get(DEFAULT_CLASS) == "true"
        has_default |= is_default
        kind = _kind_of(provisioner)
        shared |= kind != "one machine at a time"
        shown.append(f"{one['metadata']['name']}{' (default)' if is_default else ''}: {provisioner}, {kind}")
    text = "; ".join(shown) or "no storage class"
    if not shown:
        fix = "results need a claim that is there: kubernetes: {results: {claim: NAME}}"
        yield Check("storage", "warn", text, fix)
    elif not shared:
        fix = "results of several nodes need one that may be shared (ReadWriteMany): EFS, FSx, NFS, CephFS"
        yield Check("storage", "warn", text, fix)
    else:
        yield Check("storage", "ok", text, "" if has_default else "name one in kubernetes.results.storage_class")


def _kind_of(provisioner: str) -> str:
    """Whether several machines may share a volume of it, as far as its name tells."""
    if any(word in provisioner for word in SHARED):
        return "shared"
    return "one machine at a time" if any(word in provisioner for word in ALONE) else "shared or not: unknown"


def _gpus(seen: Survey) -> Iterator[Check]:
    nodes = seen.get("nodes")
    if nodes is None:
        return
    having = {node["metadata"]["name"]: node for node in nodes["items"] if _gpus_of(node)}
    if not having:
        yield Check("gpus", "ok", f"none on {len(nodes['items'])} nodes, unless an autoscaler brings some")
        return
    total = sum(_gpus_of(node) for node in having.values())
    pods = seen.get("pods")
    taken = _taken((pods or {}).get("items", ()), having)
    free = f"{total - taken} free of {total}" if pods is not None else f"{total}, some of which may be in use"
    kinds = _counted(_gpu_type(node) for node in having.values())
    instances = _counted(_label(node, manifests.INSTANCE_LABEL) for node in having.values())
    unready = [name for name, node in having.items() if not _is_ready(node)]
    text = f"{free}, on {len(having)} of {len(nodes['items'])} nodes: {kinds}; {instances}"
    if unready:
        yield Check("gpus", "warn", f"{text}; not ready: {', '.join(unready[:5])}", "kubectl describe node NAME")
    else:
        yield Check("gpus", "ok", text)


def _gpus_of(node: Mapping[str, Any]) -> int:
    return int(amount(str(node.get("status", {}).get("allocatable", {}).get(manifests.GPU, "0"))))


def _gpu_type(node: Mapping[str, Any]) -> str:
    return next((found for label in GPU_LABELS if (found := _label(node, label))), "")


def _label(node: Mapping[str, Any], name: str) -> str:
    return str(node["metadata"].get("labels", {}).get(name, ""))


def _counted(values: Iterable[str]) -> str:
    counts = collections.Counter(value or "of unknown type" for value in values)
    return ", ".join(f"{many} × {value}" for value, many in sorted(counts.items()))


def _is_ready(node: Mapping[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _taken(pods: Iterable[Mapping[str, Any]], nodes: Mapping[str, Any]) -> int:
    """GPUs that pods on these nodes have."""
    return sum(
        int(amount(str(container.get("resources", {}).get("limits", {}).get(manifests.GPU, "0"))))
        for pod in pods
        if pod["spec"].get("nodeName") in nodes
        for container in pod["spec"]["containers"]
    )


def _security(seen: Survey) -> Iterator[Check]:
    space = seen.get("namespace")
    if space is None:
        return
    labels = space["metadata"].get("labels", {})
    level = labels.get("pod-security.kubernetes.io/enforce")
    if space.get("status", {}).get("phase") == "Terminating":
        fix = "wait until it is gone, and make it again"
        yield Check("namespace", "fail", f"namespace {seen.namespace} is being deleted", fix)
    yield Check("pod security", "ok", f"{level or 'no level'} is enforced; pods are made for restricted, the strictest")


def _image(target: KubernetesTarget) -> Check:
    python = target.python or PYTHON
    if target.image is None:
        fix = "set image: of the target in targets.yaml, or image: in each job"
        return Check("image", "warn", f"the target names none: {IMAGE}, with {python}", fix)
    return Check("image", "ok", f"{target.image}, with {python}")
