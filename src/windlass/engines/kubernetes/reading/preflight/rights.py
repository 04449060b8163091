"""Reads which rights a login and the service account of supervisors have, and decides by them where supervisors run."""

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
    """The rights in one namespace."""

    missing: tuple[Right, ...] = ()
    """Rights that runs use and that the login lacks."""
    has_account: bool | None = False
    """Whether the namespace has the service account of supervisors; None where the login may not read it."""
    granted: frozenset[str] | None = None
    """The rights of that account, as its set-up has noted them; None where they are not known."""

    def lacking(self, some: Collection[Right]) -> tuple[str, ...]:
        """Of these rights, those that the login lacks: `create jobs.batch`."""
        return tuple(str(right) for right in self.missing if right in some)


NO_RIGHTS_MISSING: Final = Rights()


@dataclass(frozen=True, slots=True)
class SupervisorPlace:
    """Where the supervisors of runs run."""

    is_in_cluster: bool
    """Else on the machine that starts the run."""
    why: str
    lacking: tuple[str, ...] = ()
    """Resources on which the service account lacks a right, where that alone keeps a supervisor out of the cluster."""
    fix: str = ""
    """What brings supervisors into the cluster."""


def read_rights(client: Client, wanted: Iterable[Right]) -> Rights:
    """Reads which of these rights the login lacks, and which the supervisors' service account has.

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
    """Where supervisors run that use the rights `wanted`. Pure."""
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
    """Whether there is a service account for supervisors, None where it may not be read; and its rights, if known."""
    try:
        account = client.get_if_exists("v1", "ServiceAccount", SUPERVISOR_ACCOUNT)
    except Refused as error:
        if error.status != 403:
            raise
        return None, None
    return account is not None, granted(account or {})


def granted(account: Mapping[str, Any]) -> frozenset[str] | None:
    """The rights of supervisors, as their set-up has noted them on the service account; None where it has not, or the
    account is empty. Pure.

    Users may read the account, and mostly neither the Role nor what another account may do.
    """
    text = account.get("metadata", {}).get("annotations", {}).get(RIGHTS_ANNOTATION, "")
    with contextlib.suppress(ValueError, AttributeError, TypeError):  # what others have written there
        return frozenset(f"{verb} {on}" for on, verbs in json.loads(text).items() for verb in verbs)
    return None


def missing(client: Client, wanted: Iterable[Right]) -> tuple[Right, ...]:
    """Of these rights, what the login does not have in the namespace. Raises Refused, Unreachable.

    Rights that the cluster does not list for the login, though it may have them, are each asked for by a request.
    """
    rules = _rules(client)
    unlisted = [right for right in wanted if not any(_grants(rule, right) for rule in rules)]
    if not unlisted:
        return ()
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        answers = list(pool.map(lambda right: _may(client, right), unlisted))
    return tuple(right for right, may in zip(unlisted, answers, strict=True) if not may)


def _rules(client: Client) -> list[Mapping[str, Any]]:
    """The rights that the cluster lists for the login in the namespace; empty where it lists none."""
    asked = {"apiVersion": REVIEWS, "kind": "SelfSubjectRulesReview", "spec": {"namespace": client.namespace}}
    try:
        review = client.call("POST", client.path(REVIEWS, "SelfSubjectRulesReview"), asked)
    except Refused as error:
        if error.status == 401:
            raise
        return []
    return list(review.get("status", {}).get("resourceRules") or ())


def _grants(rule: Mapping[str, Any], right: Right) -> bool:
    """Whether a rule allows something of every object, and not only of some that it names."""
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
