"""Reads, in parallel, everything about a cluster that matters to runs in one namespace; refusals are results too."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused, Unreachable
from windlass.engines.kubernetes.access.optional import groups_of, version_of
from windlass.engines.kubernetes.objects import node_pools, pod_template
from windlass.engines.kubernetes.reading import admission, karpenter
from windlass.engines.kubernetes.reading.preflight import rbac
from windlass.engines.kubernetes.reading.preflight.rbac import Right
from windlass.engines.kubernetes.reading.preflight.rights import NO_RIGHTS_MISSING, Rights, read_rights
from windlass.errors import EngineError

T = TypeVar("T")

Json = Mapping[str, Any]
TIMED: Final = 3
"""Number of timed requests over an open connection; the check reports the fastest."""
KUBEFLOW: Final = ("kubeflow.org/v1", "kubeflow.org/v2beta1")
"""API versions with several kinds, some of which may not be installed."""


@dataclass(frozen=True, slots=True)
class Survey:
    """Results of the requests to a cluster."""

    server: str
    context: str
    namespace: str
    answers: Mapping[str, Json | EngineError] = field(default_factory=dict)
    """Result or error by name: `version`, `user`, `groups`, `namespace`, `quotas`, `classes`, `nodes`, `pods`,
    `queues`, `pools`, `autoscaler`."""
    rights: Rights | EngineError = NO_RIGHTS_MISSING
    """Rights of the user, or the error of reading these rights."""
    latency_seconds: float = 0.0
    kubectl: str = "kubectl"
    """kubectl command with its connection options, for suggested fixes."""

    def get(self, name: str) -> Json | None:
        """Returns the result of a request; None if the request failed."""
        found = self.answers.get(name)
        return None if isinstance(found, EngineError) else found

    def error(self, name: str) -> EngineError | None:
        """Returns the error of a request; None if the request succeeded."""
        found = self.answers.get(name)
        return found if isinstance(found, EngineError) else None

    def refusal(self, name: str) -> int:
        """Returns the HTTP status with which the cluster refused a request; 0 if the request was not refused."""
        found = self.answers.get(name)
        return found.status if isinstance(found, Refused) else 0

    @property
    def groups(self) -> frozenset[str]:
        """API groups and versions that the cluster serves."""
        return groups_of(self.get("groups") or {"groups": ()})

    @property
    def user(self) -> str | None:
        """Name of the authenticated user, if the cluster reports it."""
        found = self.get("user") or {}
        name = found.get("status", {}).get("userInfo", {}).get("username")
        return str(name) if name else None

    @property
    def missing(self) -> tuple[Right, ...]:
        """Rights that are useful in this cluster but that the user lacks; empty if the rights could not be read."""
        return self.rights.missing if isinstance(self.rights, Rights) else ()


def survey(client: Client) -> Survey:
    """Makes all requests to a cluster. Raises only errors of a login plugin."""
    with ThreadPoolExecutor(16) as pool:
        asked = {name: pool.submit(_answer, question) for name, question in _questions(client).items()}
        answers = {name: future.result() for name, future in asked.items()}
    found = Survey(client.server, client.context, client.namespace, answers, kubectl=client.kubectl)
    if isinstance(answers["version"], EngineError):
        return found
    with ThreadPoolExecutor(8) as pool:
        more = {name: pool.submit(_answer, question) for name, question in _more(client, found).items()}
        rights = pool.submit(_answer, lambda: read_rights(client, rbac.useful(found.groups)))
        latency = pool.submit(_latency, client)
        answers |= {name: future.result() for name, future in more.items()}
        return replace(found, answers=answers, rights=rights.result(), latency_seconds=latency.result())


def _questions(client: Client) -> dict[str, Callable[[], Json]]:
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    return {
        "version": lambda: client.call("GET", "/version"),
        "groups": lambda: client.call("GET", "/apis"),
        "user": lambda: client.call("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", review),
        "namespace": lambda: client.get("v1", "Namespace", client.namespace),
        "quotas": lambda: client.find("v1", "ResourceQuota"),
        "classes": lambda: client.find("storage.k8s.io/v1", "StorageClass"),
        "nodes": lambda: client.find("v1", "Node"),
        **{api: lambda api=api: client.call("GET", f"/apis/{api}") for api in KUBEFLOW},  # type: ignore[misc]
    }


def _more(client: Client, found: Survey) -> dict[str, Callable[[], Json]]:
    """Returns the requests that depend on earlier results: objects of installed operators, and pods if a node has
    GPUs.
    """
    more: dict[str, Callable[[], Json]] = {"autoscaler": lambda: {"status": karpenter.autoscaler_status(client)}}
    if api := version_of(admission.GROUP, found.groups):
        more["queues"] = lambda: client.find(api, "LocalQueue")
    if pools := version_of(node_pools.GROUP, found.groups):
        more["pools"] = lambda: client.find(pools, "NodePool")
    nodes = (found.get("nodes") or {}).get("items", ())
    if any(pod_template.GPU in node.get("status", {}).get("allocatable", {}) for node in nodes):
        alive = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
        more["pods"] = lambda: client.call("GET", "/api/v1/pods", query=alive)
    return more


def _answer(question: Callable[[], T]) -> T | EngineError:
    try:
        return question()
    except EngineError as error:
        return error


def _latency(client: Client) -> float:
    quickest = float("inf")
    for _ in range(TIMED):
        begun = time.perf_counter()
        try:
            client.call("GET", "/version")
        except (Refused, Unreachable):
            continue
        quickest = min(quickest, time.perf_counter() - begun)
    return quickest
