"""Derives the checks of a cluster from a survey: findings, whether they prevent runs, and fixes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from windlass.engines.checks import Check
from windlass.engines.kubernetes.access.errors import NotLoggedIn, Refused, Unreachable
from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.engines.kubernetes.reading.admission import inactive
from windlass.engines.kubernetes.reading.preflight import rbac
from windlass.engines.kubernetes.reading.preflight.nodes import group_checks, image_check, node_checks, pool_check
from windlass.engines.kubernetes.reading.preflight.rights import SupervisorPlace, supervisor_place
from windlass.engines.kubernetes.reading.preflight.storage import storage_checks
from windlass.engines.kubernetes.reading.preflight.survey import Survey
from windlass.errors import EngineError
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
"""Name of each operator, the API group (or the only version) that serves it, and its kind if the group has several."""
PODS_MUST_SAY: Final = ("cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory")
"""Resources that every pod must specify if a quota limits them."""
Json = Mapping[str, Any]


def checks(seen: Survey, target: KubernetesTarget) -> list[Check]:
    """Returns all checks of a cluster. If one of the first checks fails, the checks that depend on it are omitted."""
    if (error := seen.error("version")) is not None and not isinstance(error, Refused):
        name = "login" if isinstance(error, NotLoggedIn) or not isinstance(error, Unreachable) else "api"
        return [Check(name, "fail", error.message, error.hint)]
    if seen.refusal("version") == 401:
        fix = f"log in again, as for kubectl: {seen.kubectl} get pods"
        return [
            Check("api", "ok", seen.server),
            Check("login", "fail", "the cluster rejects this login: it has expired or is invalid", fix),
        ]
    found = [_api(seen), _login(seen)]
    absent = _absent(seen)
    if absent is not None:
        return [*found, absent]
    return [
        *found,
        *_rights(seen, target),
        _operators(seen, target),
        *(
            check
            for name, (_, rule) in RULES.items()
            if (answer := seen.get(name)) is not None
            for check in rule(seen, answer, target)
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
    """Returns a failed check if the namespace does not exist; None if it exists or is unknown."""
    if seen.refusal("namespace") == 404:
        fix = f"{seen.kubectl} create namespace {seen.namespace}; or set namespace: in targets.yaml"
        return Check("namespace", "fail", f"there is no namespace {seen.namespace}", fix)
    return None


def _rights(seen: Survey, target: KubernetesTarget) -> Iterator[Check]:
    if isinstance(seen.rights, EngineError):
        yield Check("rights", "warn", f"could not be asked for: {seen.rights.message}", seen.rights.hint)
        return
    place = supervisor_place(target, seen.namespace, seen.rights, rbac.supervisor_rights(seen.groups))
    wanted = rbac.useful(seen.groups)
    lacking = set(seen.missing)
    fix = f"have this role bound to {seen.user or 'this login'}: windlass check --on {target.name} --role"
    needed = rbac.NEEDED if place.is_in_cluster or place.lacking else (*rbac.NEEDED, *rbac.EXEC)
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
            (rbac.PORTS, "port-forward is refused, and services in pods cannot be reached"),
            (rbac.CLAIMS, "jobs that ask for a claim are refused"),
            (rbac.LEASES, "two supervisors of one run, on machines that share its records, do not exclude each other"),
            (rbac.QUEUES, "the status of a run in its queue cannot be read"),
            (rbac.DRY_RUN, "plan does not find pods that limits, quotas or webhooks refuse"),
            (rbac.POLICIES, "runs get no NetworkPolicy"),
            (rbac.DEPLOYMENTS, "models cannot be deployed, listed or called"),
            (rbac.KSERVE, "models cannot be deployed as InferenceServices"),
            (rbac.FOLLOWED, "runs of other machines cannot be followed by --watch"),
            (rbac.SUPERVISED, "no run can be submitted with a supervisor in the cluster"),
        )
        for some, why in (*known, *ways):
            if lacking.intersection(some):
                yield Check("rights", "warn", f"this login may not {_named(some, lacking)}: {why}", fix)
    yield _supervisor(place, target)


def _supervisor(place: SupervisorPlace, target: KubernetesTarget) -> Check:
    """Returns the check of where supervisors run: in the cluster, or on the machine that starts a run."""
    is_required = target.supervisor == "cluster"
    if place.lacking:
        what = "are not started" if is_required else "are supervised on the machine that starts them"
        return Check("supervisor", "warn", f"{place.why}: runs that need them {what}", place.fix)
    if place.is_in_cluster:
        fix = f"to supervise them on this machine: supervisor: machine of target {target.name}"
        return Check("supervisor", "ok", f"runs are supervised in the cluster: {place.why}", fix)
    if is_required:
        return Check("supervisor", "fail", f"supervisor: cluster, and {place.why}", place.fix)
    fix = f"leave out supervisor: of target {target.name}, to supervise them in the cluster"
    if target.supervisor != "machine":
        fix = f"to supervise them in the cluster: {place.fix}"
    return Check("supervisor", "ok", f"runs are supervised on the machine that starts them: {place.why}", fix)


def _named(wanted: Iterable[rbac.Right], lacking: Collection[rbac.Right]) -> str:
    return ", ".join(str(right) for right in wanted if right in lacking)


def _unseen(seen: Survey) -> Iterator[Check]:
    names = [shown for name, (shown, _) in RULES.items() if seen.refusal(name) == 403]
    if names:
        fix = "runs do not need these rights; with get and list, the check shows more"
        yield Check("not seen", "warn", f"this login may not read: {', '.join(names)}", fix)


# -- operators, queues and quota --------------------------------------------------------------------------------------


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
        fix = f"known: auto, {', '.join(WORKLOADS)}"
        return Check("operators", "fail", f"{text}; via: {target.via} of the target is not in this version", fix)
    if api is not None and api not in seen.groups:
        fix = "install it, or set via: auto in targets.yaml"
        return Check("operators", "fail", f"{text}; the target has via: {target.via}, and no {api} is served", fix)
    return Check("operators", "ok", text)


def _queues(seen: Survey, found: Json) -> Iterator[Check]:
    queues = {one["metadata"]["name"]: one for one in sorted(found["items"], key=lambda one: one["metadata"]["name"])}
    idle = {name: why for name, one in queues.items() if (why := inactive(one))}
    active = [f"{name} ({_waiting_in(one)})" for name, one in queues.items() if name not in idle]
    text = "; ".join([*active, *(f"{name} admits no jobs: {why}" for name, why in idle.items())])
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
        fix = f"end other workloads, or have the quota raised: kubectl -n {seen.namespace} get resourcequota"
        yield Check("quota", "warn", f"{text}; used up: {', '.join(spent)}", fix)
    else:
        yield Check("quota", "ok", text, "jobs must set resources.cpus and resources.memory here" if says else "")


def _security(seen: Survey, space: Json) -> Iterator[Check]:
    labels = space["metadata"].get("labels", {})
    level = labels.get("pod-security.kubernetes.io/enforce")
    if space.get("status", {}).get("phase") == "Terminating":
        fix = "wait until it is deleted, and create it again"
        yield Check("namespace", "fail", f"namespace {seen.namespace} is being deleted", fix)
    yield Check(
        "pod security", "ok", f"{level or 'no level'} is enforced; pods are created for restricted, the strictest"
    )


RULES: Final[Mapping[str, tuple[str, Callable[[Survey, Json, KubernetesTarget], Iterable[Check]]]]] = {
    "queues": ("queues", lambda seen, found, _: _queues(seen, found)),
    "quotas": ("quota", lambda seen, found, _: _quota(seen, found)),
    "classes": ("storage classes", lambda _seen, found, _: storage_checks(found)),
    "nodes": ("GPU nodes", lambda seen, found, target: node_checks(found["items"], seen.get("pods"), target)),
    "pools": ("NodePools", lambda _seen, found, _: [pool_check(found["items"])]),
    "autoscaler": ("the node autoscaler", lambda _seen, found, _: group_checks(found["status"])),
    "namespace": ("pod security", lambda seen, found, _: _security(seen, found)),
}
"""Functions that derive checks, by the survey result that they use; each with the name to report for a forbidden
result."""
