"""What a user of a cluster may do in a namespace, and the wait until that is what has just been granted."""

from __future__ import annotations

import itertools
import json

from tests.cluster.bed.cluster import Cluster
from tests.helpers.until import until

from windlass.engines.kubernetes.reading.preflight import rbac
from windlass.engines.kubernetes.reading.preflight.rbac import Right
from windlass.engines.kubernetes.reading.preflight.rights import REVIEWS

OF_EVERY_LOGIN = {"authentication.k8s.io", "authorization.k8s.io"}
"""Groups in which every login may ask about itself."""
LIMITED = "limited"
"""The user of the bed who has the rights that a test grants."""


def rights_of(cluster: Cluster, namespace: str, user: str) -> set[Right]:
    """What a user may do in the namespace, as the API server lists it, beyond what every login may."""
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
    """Wait until a user has exactly these rights: the API server learns of roles a moment after they were created."""
    until(
        lambda: rights_of(cluster, namespace, user) == wanted,
        lambda: f"{user} has {rights_of(cluster, namespace, user)}, and not {wanted}",
    )


def until_role_is_granted(cluster: Cluster, namespace: str) -> None:
    """Wait until the limited user has all rights of the role that `windlass check --role` prints."""
    wanted = set(rbac.useful(set(cluster.kubectl("api-versions").split())))
    until(
        lambda: wanted <= rights_of(cluster, namespace, LIMITED),
        lambda: f"{LIMITED} lacks {wanted - rights_of(cluster, namespace, LIMITED)}",
    )
