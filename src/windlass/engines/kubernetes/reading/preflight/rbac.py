"""Defines the rights that users and supervisors need in a namespace, and Roles with exactly these rights. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from windlass.engines.kubernetes.access.optional import version_of
from windlass.engines.kubernetes.objects import deployment_manifests, labels, layout
from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.engines.kubernetes.objects.workloads.base import Workload
from windlass.engines.kubernetes.objects.workloads.job import BATCH
from windlass.engines.kubernetes.reading.admission import GROUP

RBAC: Final = "rbac.authorization.k8s.io"
MAKING: Final = ("create", "get", "list", "delete")
"""Verbs that an attempt needs on its owner objects."""


class Right(NamedTuple):
    """One verb on one resource."""

    group: str
    resource: str
    """Name of the resource, with its subresource if there is one: `pods/log`."""
    verb: str

    @property
    def on(self) -> str:
        """Resource with its API group, in the format of CRD names."""
        return self.resource + (f".{self.group}" if self.group else "")

    def __str__(self) -> str:
        return f"{self.verb} {self.on}"


def _all(group: str, resource: str, *verbs: str) -> tuple[Right, ...]:
    return tuple(Right(group, resource, verb) for verb in verbs)


NEEDED: Final = (
    *_all("", "configmaps", "create", "get", "list", "delete"),
    *_all("", "services", "create", "get"),
    *_all("", "pods", "list", "watch", "delete"),
    *_all("", "pods/log", "get"),
    *_all("", "events", "list"),
    *_all("batch", "jobs", *MAKING),
)
"""Rights without which no run can be created or followed."""
# An exec request starts as a GET, which is upgraded to a web socket. Servers from 1.35 on also require `create`.
EXEC: Final = _all("", "pods/exec", "get", "create")
"""Rights for `exec`, `cp` and `check --network`, and for a supervisor on the user's machine, which sends its requests
to pods through exec. A supervisor in the cluster does not need them."""
PORTS: Final = _all("", "pods/portforward", "get", "create")
"""Rights for `port-forward`, and for services in pods; with both verbs for the same reason as EXEC."""
CLAIMS: Final = _all("", "persistentvolumeclaims", "create", "get", "delete")
"""Rights for jobs that request a new claim."""
LEASES: Final = _all("coordination.k8s.io", "leases", "get", "create", "update")
"""Rights to fence the supervisors of a run. Without them, two machines that share a record may both supervise the
run."""
QUEUES: Final = tuple(right for kind in ("localqueues", "workloads") for right in _all(GROUP, kind, "list"))
"""Optional rights to show the status of a run in its queue."""
DRY_RUN: Final = (Right("", "pods", "create"),)
"""Rights to plan: a plan checks a run's pods with a dry run, which creates none."""
POLICIES: Final = _all("networking.k8s.io", "networkpolicies", "create", "get")
"""Rights for the NetworkPolicies of runs; without them, runs have none."""
DEPLOYMENTS: Final = (
    *_all("apps", "deployments", "create", "get", "list"),
    *_all("autoscaling", "horizontalpodautoscalers", "create", "get"),
    Right("", "services", "list"),
    *_all("", "secrets", "create", "get"),
)
"""Further rights to deploy and call models. The Secret of a deployment has the token that calls need; the cluster
removes all objects with their Job, so that no right to delete them is needed."""
KSERVE: Final = _all("serving.kserve.io", "inferenceservices", "create", "get", "list")
"""Rights to deploy models as InferenceServices."""
FOLLOWED: Final = (Right("", "configmaps", "watch"), Right("batch", "jobs", "watch"))
"""Rights to follow runs of other machines, as `ps --on TARGET --watch` does, in addition to watching pods."""
SUPERVISED: Final = (
    Right("", "configmaps", "update"),
    Right("batch", "jobs", "update"),
    Right("", "secrets", "create"),
    Right("", "serviceaccounts", "get"),
)
"""Rights to submit runs with a supervisor in the cluster; without them, the supervisor runs on the user's machine. A
supervisor has no rights that its user lacks. It updates its own Job to end it despite an injected sidecar."""
SUPERVISOR: Final = (
    *_all("", "configmaps", "create", "get", "list", "watch", "update", "delete"),
    *_all("", "services", "create", "get"),
    *_all("", "persistentvolumeclaims", "create", "get"),
    *_all("", "pods", "list", "watch", "delete"),
    *_all("", "pods/log", "get"),
    *_all("", "events", "list"),
    *_all("batch", "jobs", *MAKING, "update"),
    *LEASES,
)
"""Rights of a supervisor in the cluster, for any workload kind. Its requests to pods do not need `pods/exec`."""


def of_workload(way: Workload) -> tuple[Right, ...]:
    """Returns the rights to the owner objects of a workload kind of an operator."""
    plurals = [way.plural, *(plural for _, plural in way.parts)]
    return tuple(right for plural in plurals for right in _all(group_of(way.api), plural, *MAKING))


def group_of(api: str) -> str:
    """Returns the group in an API version; empty for the core API."""
    return api.rpartition("/")[0]


def useful(groups: Collection[str]) -> tuple[Right, ...]:
    """Returns all rights that any user may need in a cluster that serves these API groups."""
    basic = (*NEEDED, *EXEC, *PORTS, *CLAIMS, *LEASES, *DRY_RUN, *POLICIES, *FOLLOWED, *SUPERVISED, *DEPLOYMENTS)
    of_kserve = KSERVE if deployment_manifests.KSERVE in groups else ()
    return tuple(dict.fromkeys((*basic, *of_kserve, *_of_operators(groups))))


def supervisor_rights(groups: Collection[str]) -> tuple[Right, ...]:
    """Returns all rights that any supervisor may need in a cluster that serves these API groups."""
    return (*SUPERVISOR, *_of_operators(groups))


def supervisor_needs(way: Workload, *, is_queued: bool) -> tuple[Right, ...]:
    """Returns all rights that the supervisor of a run with this workload kind needs."""
    return (*SUPERVISOR, *(QUEUES if is_queued else ()), *(of_workload(way) if way.api != BATCH else ()))


def _of_operators(groups: Collection[str]) -> tuple[Right, ...]:
    served = [way for way in WORKLOADS.values() if way.api in groups and way.api != BATCH]
    queues = QUEUES if version_of(GROUP, groups) else ()
    return (*queues, *(right for way in served for right in of_workload(way)))


# -- objects that grant rights ----------------------------------------------------------------------------------------


def role(namespace: str, wanted: Iterable[Right], name: str = "windlass") -> dict[str, Any]:
    """Returns a Role that grants exactly these rights in a namespace. Pure."""
    verbs: dict[tuple[str, str], list[str]] = {}
    for right in wanted:
        verbs.setdefault((right.group, right.resource), []).append(right.verb)
    rules = [{"apiGroups": [group], "resources": [resource], "verbs": its} for (group, resource), its in verbs.items()]
    return {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": _meta(namespace, name), "rules": rules}


def binding(namespace: str, user: str) -> dict[str, Any]:
    """Returns the RoleBinding of the Role `windlass` to a user."""
    return _binding(namespace, "windlass", _subject(user))


def supervisor_objects(namespace: str, groups: Collection[str]) -> list[dict[str, Any]]:
    """Returns the objects that a namespace needs once for supervisors in the cluster, in their order of creation. Pure.

    The service account is last: runs use it as soon as it exists, and it must have its rights by then.
    """
    name, rights = layout.SUPERVISOR_ACCOUNT, supervisor_rights(groups)
    account = {"kind": "ServiceAccount", "namespace": namespace, "name": name}
    noted: dict[str, list[str]] = {}
    for right in rights:
        noted.setdefault(right.on, []).append(right.verb)
    return [
        role(namespace, rights, name),
        _binding(namespace, name, account),
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {**_meta(namespace, name), "annotations": {layout.RIGHTS_ANNOTATION: json.dumps(noted)}},
            # only the supervisor's pod mounts the account's token
            "automountServiceAccountToken": False,
        },
    ]


def _binding(namespace: str, name: str, subject: Mapping[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": _meta(namespace, name),
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
        "subjects": [subject],
    }


def _meta(namespace: str, name: str) -> Mapping[str, Any]:
    return {"name": name, "namespace": namespace, "labels": labels.of_setup()}


def _subject(user: str) -> Mapping[str, str]:
    """Returns the subject of a RoleBinding for a user, which may be a service account."""
    prefix = "system:serviceaccount:"
    if user.startswith(prefix) and user.count(":") == 3:
        namespace, name = user.removeprefix(prefix).split(":")
        return {"kind": "ServiceAccount", "namespace": namespace, "name": name}
    return {"kind": "User", "apiGroup": RBAC, "name": user}
