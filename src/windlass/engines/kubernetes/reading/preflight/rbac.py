"""The rights that users and supervisors use in a namespace, and the roles with exactly these. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from windlass.engines.kubernetes.access.optional import version_of
from windlass.engines.kubernetes.objects import labels, layout
from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.engines.kubernetes.objects.workloads.base import Workload
from windlass.engines.kubernetes.objects.workloads.job import BATCH
from windlass.engines.kubernetes.reading.admission import GROUP

RBAC: Final = "rbac.authorization.k8s.io"
MAKING: Final = ("create", "get", "list", "delete")
"""Verbs on the owner objects of an attempt."""


class Right(NamedTuple):
    """One verb on one resource."""

    group: str
    resource: str
    """With its subresource, if one is meant: `pods/log`."""
    verb: str

    @property
    def on(self) -> str:
        """The resource with its group, as in the name of a CRD."""
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
"""Without these no run can be made or followed."""
# A command begins with a GET that is turned into a web socket, which servers from 1.35 on also ask `create` for.
EXEC: Final = _all("", "pods/exec", "get", "create")
"""For `exec`, `cp` and `check --network`. A supervisor on the user's machine sends its orders to pods by it, one in the
cluster does not."""
CLAIMS: Final = _all("", "persistentvolumeclaims", "create", "get", "delete")
"""For jobs that ask for a claim of their own."""
LEASES: Final = _all("coordination.k8s.io", "leases", "get", "create", "update")
"""To fence the supervisors of a run; without them two machines that share its records may both act for it."""
QUEUES: Final = tuple(right for kind in ("localqueues", "workloads") for right in _all(GROUP, kind, "list"))
"""To show the status of a run in its queue; no run needs them."""
DRY_RUN: Final = (Right("", "pods", "create"),)
"""For plans, which try the pods of a run by a dry run; no pod is created by it."""
POLICIES: Final = _all("networking.k8s.io", "networkpolicies", "create", "get")
"""For the NetworkPolicies of runs; without them, runs get none."""
FOLLOWED: Final = (Right("", "configmaps", "watch"), Right("batch", "jobs", "watch"))
"""To follow runs of other machines, as `ps --on TARGET --watch` does; pods are watched for every run."""
SUPERVISED: Final = (
    Right("", "configmaps", "update"),
    Right("batch", "jobs", "update"),
    Right("", "secrets", "create"),
    Right("", "serviceaccounts", "get"),
)
"""To submit runs that a supervisor in the cluster supervises; without them it runs on the user's machine. It updates
its own Job, to end it beside an injected sidecar, and may do no more than its user."""
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
"""What a supervisor in the cluster does whatever the workload kind. Orders reach pods without `pods/exec`."""


def of_workload(way: Workload) -> tuple[Right, ...]:
    """For the owner objects of a workload kind that needs an operator."""
    plurals = [way.plural, *(plural for _, plural in way.parts)]
    return tuple(right for plural in plurals for right in _all(group_of(way.api), plural, *MAKING))


def group_of(api: str) -> str:
    """The group of an API version; that of the core is empty."""
    return api.rpartition("/")[0]


def useful(groups: Collection[str]) -> tuple[Right, ...]:
    """All that is of use in a cluster that serves these API groups."""
    basic = (*NEEDED, *EXEC, *CLAIMS, *LEASES, *DRY_RUN, *POLICIES, *FOLLOWED, *SUPERVISED)
    return (*basic, *_of_operators(groups))


def supervisor_rights(groups: Collection[str]) -> tuple[Right, ...]:
    """All that a supervisor uses that runs in a cluster which serves these API groups."""
    return (*SUPERVISOR, *_of_operators(groups))


def supervisor_needs(way: Workload, *, is_queued: bool) -> tuple[Right, ...]:
    """All that the supervisor of a run of this workload kind uses."""
    return (*SUPERVISOR, *(QUEUES if is_queued else ()), *(of_workload(way) if way.api != BATCH else ()))


def _of_operators(groups: Collection[str]) -> tuple[Right, ...]:
    """Rights that depend on the operators that are installed in the cluster."""
    served = [way for way in WORKLOADS.values() if way.api in groups and way.api != BATCH]
    queues = QUEUES if version_of(GROUP, groups) else ()
    return (*queues, *(right for way in served for right in of_workload(way)))


# -- objects that grant rights ----------------------------------------------------------------------------------------


def role(namespace: str, wanted: Iterable[Right], name: str = "windlass") -> dict[str, Any]:
    """The Role that grants these rights in a namespace, and no other. Pure."""
    verbs: dict[tuple[str, str], list[str]] = {}
    for right in wanted:
        verbs.setdefault((right.group, right.resource), []).append(right.verb)
    rules = [{"apiGroups": [group], "resources": [resource], "verbs": its} for (group, resource), its in verbs.items()]
    return {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": _meta(namespace, name), "rules": rules}


def binding(namespace: str, user: str) -> dict[str, Any]:
    """What gives that role to a user."""
    return _binding(namespace, "windlass", _subject(user))


def supervisor_objects(namespace: str, groups: Collection[str]) -> list[dict[str, Any]]:
    """The objects that a namespace needs once for supervisors in the cluster, in the order of their creation. Pure.

    The service account comes last: where it exists, runs use it, and it must then have its rights.
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
            # Only the supervisor's pod mounts its token.
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
    """Service accounts have names with two parts; every other user is named as the login is."""
    prefix = "system:serviceaccount:"
    if user.startswith(prefix) and user.count(":") == 3:
        namespace, name = user.removeprefix(prefix).split(":")
        return {"kind": "ServiceAccount", "namespace": namespace, "name": name}
    return {"kind": "User", "apiGroup": RBAC, "name": user}
