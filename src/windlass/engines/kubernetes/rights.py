"""The rights that Windlass uses in a namespace: which of them a login has, and the role that grants exactly them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from windlass.engines.kubernetes import layout
from windlass.engines.kubernetes.client import Client, Refused
from windlass.engines.kubernetes.queueing import GROUP, api_of
from windlass.engines.kubernetes.ways import WAYS
from windlass.engines.kubernetes.ways.base import Way
from windlass.engines.kubernetes.ways.job import BATCH

RBAC: Final = "rbac.authorization.k8s.io"
REVIEWS: Final = "authorization.k8s.io/v1"
ASKED_AT_ONCE: Final = 16
MAKING: Final = ("create", "get", "list", "delete")
"""What is done to the objects of which the pods of an attempt come."""


class Right(NamedTuple):
    """One verb on one resource."""

    group: str
    resource: str
    """With its subresource, if one is meant: `pods/log`."""
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}" + (f".{self.group}" if self.group else "")


def _all(group: str, resource: str, *verbs: str) -> tuple[Right, ...]:
    return tuple(Right(group, resource, verb) for verb in verbs)


NEEDED: Final = (
    *_all("", "configmaps", "create", "get", "list", "delete"),
    *_all("", "services", "create", "get"),
    *_all("", "pods", "list", "watch", "delete"),
    *_all("", "pods/log", "get"),
    # A command begins with a GET that is turned into a web socket, which servers from 1.35 on also ask `create` for.
    *_all("", "pods/exec", "get", "create"),
    *_all("", "events", "list"),
    *_all("batch", "jobs", *MAKING),
)
"""Without these no run can be made or followed."""
CLAIMS: Final = _all("", "persistentvolumeclaims", "create", "get", "delete")
"""For jobs that ask for a claim of their own."""
LEASES: Final = _all("coordination.k8s.io", "leases", "get", "create", "update")
"""To fence the supervisors of a run; without them two machines that share its records may both act for it."""
QUEUES: Final = tuple(right for kind in ("localqueues", "workloads") for right in _all(GROUP, kind, "list"))
"""To say what a queue does with a run; no run needs them."""


def of_way(way: Way) -> tuple[Right, ...]:
    """For the objects of a way that needs more than every cluster has."""
    plurals = [way.plural, *(plural for _, plural in way.parts)]
    return tuple(right for plural in plurals for right in _all(group_of(way.api), plural, *MAKING))


def group_of(api: str) -> str:
    """The group of an API version; that of the core is empty."""
    return api.rpartition("/")[0]


def useful(groups: Collection[str]) -> tuple[Right, ...]:
    """All that is of use in a cluster that serves these API groups."""
    served = [way for way in WAYS.values() if way.api in groups and way.api != BATCH]
    queues = QUEUES if api_of(groups) else ()
    return (*NEEDED, *CLAIMS, *LEASES, *queues, *(right for way in served for right in of_way(way)))


def missing(client: Client, wanted: Iterable[Right]) -> tuple[Right, ...]:
    """Of these rights, what the login does not have in the namespace. Raises Refused, Unreachable.

    One answer lists most; the cluster need not list all that it would allow, so the others are asked for one by one.
    """
    rules = _rules(client)
    rights = tuple(right for right in wanted if not any(_grants(rule, right) for rule in rules))
    if not rights:
        return ()
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        answers = list(pool.map(lambda right: _may(client, right), rights))
    return tuple(right for right, may in zip(rights, answers, strict=True) if not may)


def _rules(client: Client) -> list[Mapping[str, Any]]:
    """What the login is known to be allowed in the namespace; empty where the cluster does not tell."""
    asked = {"apiVersion": REVIEWS, "kind": "SelfSubjectRulesReview", "spec": {"namespace": client.namespace}}
    try:
        told = client.call("POST", client.path(REVIEWS, "SelfSubjectRulesReview"), asked)
    except Refused as error:
        if error.status == 401:
            raise
        return []
    return list(told.get("status", {}).get("resourceRules") or ())


def _grants(rule: Mapping[str, Any], right: Right) -> bool:
    """Whether a rule allows something of every object, and not only of some that it names."""
    if rule.get("resourceNames"):
        return False
    asked = (("apiGroups", right.group), ("resources", right.resource), ("verbs", right.verb))
    return all({"*", value} & set(rule.get(name) or ()) for name, value in asked)


def _may(client: Client, right: Right) -> bool:
    resource, _, sub = right.resource.partition("/")
    wanted = {"namespace": client.namespace, "group": right.group, "resource": resource, "verb": right.verb,
              "subresource": sub}  # fmt: skip
    review = client.call(
        "POST",
        client.path(REVIEWS, "SelfSubjectAccessReview"),
        {"apiVersion": REVIEWS, "kind": "SelfSubjectAccessReview",
         "spec": {"resourceAttributes": wanted}},
    )  # fmt: skip
    return bool(review["status"]["allowed"])


def role(namespace: str, wanted: Iterable[Right]) -> dict[str, Any]:
    """The Role that grants these rights in a namespace, and no other. Pure."""
    verbs: dict[tuple[str, str], list[str]] = {}
    for right in wanted:
        verbs.setdefault((right.group, right.resource), []).append(right.verb)
    rules = [
        {"apiGroups": [group], "resources": [resource], "verbs": granted}
        for (group, resource), granted in verbs.items()
    ]
    return {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": _meta(namespace), "rules": rules}


def binding(namespace: str, user: str) -> dict[str, Any]:
    """What gives that role to a user."""
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": _meta(namespace),
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "windlass"},
        "subjects": [_subject(user)],
    }


def _meta(namespace: str) -> Mapping[str, Any]:
    return {"name": "windlass", "namespace": namespace, "labels": {layout.MANAGED_LABEL: "windlass"}}


def _subject(user: str) -> Mapping[str, str]:
    """Service accounts have names with two parts; everybody else is known by what the login says."""
    prefix = "system:serviceaccount:"
    if user.startswith(prefix) and user.count(":") == 3:
        namespace, name = user.removeprefix(prefix).split(":")
        return {"kind": "ServiceAccount", "namespace": namespace, "name": name}
    return {"kind": "User", "apiGroup": RBAC, "name": user}
