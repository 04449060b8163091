"""Permissions of a user in a namespace, and the wait until the API server applies new ones."""

from __future__ import annotations

import itertools
import json

from tests.cluster.bed.cluster import Cluster
from tests.helpers.until import until

from windlass.engines.kubernetes.reading.preflight import rbac
from windlass.engines.kubernetes.reading.preflight.rbac import Right
from windlass.engines.kubernetes.reading.preflight.rights import REVIEWS

OF_EVERY_LOGIN = {"authentication.k8s.io", "authorization.k8s.io"}
"""API groups in which every login may request information about itself."""
LIMITED = "limited"
"""User of the test cluster with the permissions that a test grants."""


def rights_of(cluster: Cluster, namespace: str, user: str) -> set[Right]:
    """Returns a user's permissions in the namespace, as listed by the API server, without those of every login."""
    review = {"apiVersion": REVIEWS, "kind": "SelfSubjectRulesReview", "spec": {"namespace": namespace}}
    said = cluster.kubectl(
        "create", f"--as={user}", "--validate=false", "-f", "-", "-o", "json", stdin=json.dumps(review)
    )
    found = set()
    for rule in json.loads(said)["status"]["resourceRules"]:
        if set(rule["apiGroups"]) <= OF_EVERY_LOGIN:
            continue
        assert not rule.get("resourceNames")
        found |= {Right(*one) for one in itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"])}
    return found


def until_granted(cluster: Cluster, namespace: str, user: str, wanted: set[Right]) -> None:
    """Waits until a user has exactly these permissions: the API server applies roles with a delay."""
    until(
        lambda: rights_of(cluster, namespace, user) == wanted,
        lambda: f"{user} has {rights_of(cluster, namespace, user)}, and not {wanted}",
    )


def until_role_is_granted(cluster: Cluster, namespace: str) -> None:
    """Waits until the limited user has all permissions of the role that `windlass check --role` prints."""
    wanted = set(rbac.useful(set(cluster.kubectl("api-versions").split())))
    until(
        lambda: wanted <= rights_of(cluster, namespace, LIMITED),
        lambda: f"{LIMITED} lacks {wanted - rights_of(cluster, namespace, LIMITED)}",
    )
