"""Reads the rights of the user and of the supervisors' service account, and decides where supervisors run."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused
from windlass.engines.kubernetes.objects.layout import RIGHTS_ANNOTATION, SUPERVISOR_ACCOUNT
from windlass.engines.kubernetes.reading.preflight.rbac import SUPERVISED, Right

if TYPE_CHECKING:
    from windlass.spec.targets import KubernetesTarget

REVIEWS: Final = "authorization.k8s.io/v1"
ASKED_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class Rights:
    """Rights of the user and of supervisors in one namespace."""

    missing: tuple[Right, ...] = ()
    """Rights that runs need and the user lacks."""
    has_account: bool | None = False
    """Whether the namespace has the supervisors' service account; None if the user may not read it."""
    granted: frozenset[str] | None = None
    """Rights of the supervisors' service account, as recorded by its setup; None if unknown."""

    def lacking(self, some: Collection[Right]) -> tuple[str, ...]:
        """Returns the given rights that the user lacks, as text such as `create jobs.batch`."""
        return tuple(str(right) for right in self.missing if right in some)


NO_RIGHTS_MISSING: Final = Rights()


@dataclass(frozen=True, slots=True)
class SupervisorPlace:
    """Place where the supervisors of runs run."""

    is_in_cluster: bool
    """Whether supervisors run in the cluster; otherwise, they run on the machine that starts the run."""
    why: str
    lacking: tuple[str, ...] = ()
    """Resources to which the service account lacks a right, if nothing else prevents supervisors in the cluster."""
    fix: str = ""
    """How to run supervisors in the cluster."""


def read_rights(client: Client, wanted: Iterable[Right]) -> Rights:
    """Returns which of these rights the user lacks, and the rights of the supervisors' service account.

    Raises Refused (401), Unreachable.
    """
    with ThreadPoolExecutor(1) as pool:
        account = pool.submit(_account, client)
        lacking = missing(client, wanted)
        has_account, granted = account.result()
    return Rights(lacking, has_account, granted)


def supervisor_place(
    target: KubernetesTarget, namespace: str, rights: Rights, wanted: Iterable[Right]
) -> SupervisorPlace:
    """Returns where supervisors run if they need the rights `wanted`. Pure."""
    if target.supervisor == "machine":
        return SupervisorPlace(False, f"supervisor: machine of target {target.name}")
    by_setup = f"windlass target setup {target.name}"
    create = f"{by_setup} creates it; for the platform team: {by_setup} -o manifest"
    role = f"windlass check --on {target.name} --role prints the role that grants these"
    if rights.has_account is None:
        return SupervisorPlace(False, f"this login may not get serviceaccounts in namespace {namespace}", fix=role)
    if not rights.has_account:
        return SupervisorPlace(False, f"namespace {namespace} has no service account {SUPERVISOR_ACCOUNT}", fix=create)
    if lacking := rights.lacking(SUPERVISED):
        return SupervisorPlace(False, f"this login may not {', '.join(lacking)}", fix=role)
    granted = rights.granted
    unmet = () if granted is None else tuple(dict.fromkeys(one.on for one in wanted if str(one) not in granted))
    if unmet:
        why = f"service account {SUPERVISOR_ACCOUNT} lacks rights on {', '.join(unmet)}"
        return SupervisorPlace(False, why, unmet, create.replace("creates it", "grants them"))
    return SupervisorPlace(True, f"namespace {namespace} has the service account {SUPERVISOR_ACCOUNT}")


def _account(client: Client) -> tuple[bool | None, frozenset[str] | None]:
    """Returns whether the supervisors' service account exists (None if the user may not read it), and its rights, if
    known.
    """
    try:
        account = client.get_if_exists("v1", "ServiceAccount", SUPERVISOR_ACCOUNT)
    except Refused as error:
        if error.status != 403:
            raise
        return None, None
    return account is not None, granted(account or {})


def granted(account: Mapping[str, Any]) -> frozenset[str] | None:
    """Returns the rights that the setup of supervisors recorded on their service account; None if it recorded none.
    Pure.

    Users may read the account, but mostly neither its Role nor its rights.
    """
    text = account.get("metadata", {}).get("annotations", {}).get(RIGHTS_ANNOTATION, "")
    with contextlib.suppress(ValueError, AttributeError, TypeError):  # another program may have changed the annotation
        return frozenset(f"{verb} {on}" for on, verbs in json.loads(text).items() for verb in verbs)
    return None


def missing(client: Client, wanted: Iterable[Right]) -> tuple[Right, ...]:
    """Returns the given rights that the user lacks in the namespace. Raises Refused, Unreachable.

    The cluster's list of a user's rights may be incomplete, so each unlisted right is checked with a request.
    """
    rules = _rules(client)
    unlisted = [right for right in wanted if not any(_grants(rule, right) for rule in rules)]
    if not unlisted:
        return ()
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        answers = list(pool.map(lambda right: _may(client, right), unlisted))
    return tuple(right for right, may in zip(unlisted, answers, strict=True) if not may)


def _rules(client: Client) -> list[Mapping[str, Any]]:
    """Returns the rules that the cluster lists for the user in the namespace; empty if it lists none."""
    asked = {"apiVersion": REVIEWS, "kind": "SelfSubjectRulesReview", "spec": {"namespace": client.namespace}}
    try:
        review = client.call("POST", client.path(REVIEWS, "SelfSubjectRulesReview"), asked)
    except Refused as error:
        if error.status == 401:
            raise
        return []
    return list(review.get("status", {}).get("resourceRules") or ())


def _grants(rule: Mapping[str, Any], right: Right) -> bool:
    """Whether a rule grants a right for all objects, and not only for objects with certain names."""
    if rule.get("resourceNames"):
        return False
    asked = (("apiGroups", right.group), ("resources", right.resource), ("verbs", right.verb))
    return all({"*", value} & set(rule.get(name) or ()) for name, value in asked)


def _may(client: Client, right: Right) -> bool:
    resource, _, sub = right.resource.partition("/")
    wanted = {
        "namespace": client.namespace,
        "group": right.group,
        "resource": resource,
        "verb": right.verb,
        "subresource": sub,
    }
    review = client.call(
        "POST",
        client.path(REVIEWS, "SelfSubjectAccessReview"),
        {"apiVersion": REVIEWS, "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": wanted}},
    )
    return bool(review["status"]["allowed"])
