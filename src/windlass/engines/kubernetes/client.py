"""Speaks with the API server of one kubeconfig context.

Objects are plain JSON, so that what differs between versions is data and no class of ours. Who a user is, and how a
login is renewed (EKS and other exec plugins), is the business of the `kubernetes` package.
"""

from __future__ import annotations

import copy
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlencode

from windlass.engines.kubernetes.login import Login, LoginError
from windlass.errors import EngineError, MissingPart, UsageError

Json = Mapping[str, Any]
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]

CONNECT_SECONDS: Final = 5.0
READ_SECONDS: Final = 30.0
FOLLOW_SECONDS: Final = 300.0
"""How long a log that is followed may be silent until it is asked for anew: a connection may be dead and not say so."""
ABSENT_SECONDS: Final = 3.0
"""Between the first and the last report that an object does not exist, before it counts as removed."""
MANAGER: Final = "windlass"
"""Who our fields belong to, as `kubectl get --show-managed-fields` tells."""
APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"
JSON: Final = "application/json"
TABLE: Final = "application/json;as=Table;v=v1;g=meta.k8s.io"
"""A list as the rows that kubectl prints: a fraction of the objects, which a list of thousands would mostly be."""
PAGE: Final = "5000"
"""Rows of one answer: a server that is asked for all at once has to hold all at once."""
PLURALS: Final = {
    "ConfigMap": "configmaps", "Service": "services", "Pod": "pods", "Event": "events", "Node": "nodes",
    "PersistentVolumeClaim": "persistentvolumeclaims", "Secret": "secrets", "Job": "jobs", "JobSet": "jobsets",
    "CustomResourceDefinition": "customresourcedefinitions", "SelfSubjectAccessReview": "selfsubjectaccessreviews",
    "SelfSubjectRulesReview": "selfsubjectrulesreviews", "ResourceQuota": "resourcequotas",
    "TrainJob": "trainjobs", "TrainingRuntime": "trainingruntimes", "PyTorchJob": "pytorchjobs", "MPIJob": "mpijobs",
    "ClusterTrainingRuntime": "clustertrainingruntimes",
    "Workload": "workloads", "LocalQueue": "localqueues", "ClusterQueue": "clusterqueues",
    "StorageClass": "storageclasses", "ServiceAccount": "serviceaccounts", "Namespace": "namespaces",
    "NodePool": "nodepools", "NodeClaim": "nodeclaims", "Lease": "leases",
}  # fmt: skip
"""What the kinds that we speak of are called in addresses."""
CLUSTER_WIDE: Final = frozenset({"Node", "CustomResourceDefinition", "StorageClass", "Namespace", "ClusterQueue",
                                 "NodePool", "NodeClaim", "ClusterTrainingRuntime", "SelfSubjectAccessReview",
                                 "SelfSubjectRulesReview"})  # fmt: skip


class Refused(EngineError):
    """The API server said no; `status` and `reason` are its own words."""

    def __init__(self, message: str, hint: str, *, status: int, reason: str = "", details: Json | None = None) -> None:
        super().__init__(message, hint)
        self.status = status
        self.reason = reason
        self.details = details or {}

    def is_absent(self, name: str) -> bool:
        """Whether the API server itself reports that the object `name` does not exist.

        A 404 alone does not: a proxy or a load balancer in front of the server answers 404 too, and so does the server
        for a resource type that it does not serve.
        """
        return self.status == 404 and self.reason == "NotFound" and self.details.get("name") == name


class Unreachable(EngineError):
    """The API server did not answer: it may by the next time."""


class Absence:
    """Whether an object was removed: the API server has reported it absent twice, `ABSENT_SECONDS` apart or more.

    A server that is being restored from a backup, or reads from a stale cache, reports an object absent for a moment.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        """When the object was first reported absent; None after an answer that contains it."""

    def is_confirmed(self, *, is_absent: bool) -> bool:
        """Whether it is removed by now, given one more answer of the server: `is_absent`, or there."""
        if not is_absent:
            self._since = None
            return False
        if self._since is None:
            self._since = self._clock()
        return self._clock() - self._since >= ABSENT_SECONDS


class NotLoggedIn(Unreachable):
    """There is no login now: its plugin fails, or the server no longer takes it. It may by the next time."""


class Client:
    """One context and namespace. May be used by several threads."""

    def __init__(
        self, context: str, namespace: str, kubeconfig: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`kubeconfig` is as `$KUBECONFIG`, and `clock` says when a login that failed is tried again.

        Raises UsageError where there is no such context.
        """
        self.context = context
        self.namespace = namespace
        self._login = Login(lambda: _configuration(context, kubeconfig), clock)
        self._configuration = self._login.configuration
        self._connect()

    def _connect(self) -> None:
        from kubernetes.client.rest import RESTClientObject

        self._certificates = self._login.certificates
        self._rest = RESTClientObject(self._configuration)

    @property
    def server(self) -> str:
        """The address of the API server."""
        return str(self._configuration.host)

    def within(self, namespace: str) -> Client:
        """The same client, with the same connections, in another namespace."""
        other = copy.copy(self)
        other.namespace = namespace
        return other

    def close(self) -> None:
        """Give the connections back."""
        self._rest.close()

    # -- objects ------------------------------------------------------------------------------------------------------

    def get(self, api: str, kind: str, name: str) -> dict[str, Any]:
        """One object. Raises Refused (404 where it is not there), Unreachable."""
        return self.call("GET", self.path(api, kind, name))

    def find(self, api: str, kind: str, selector: str = "", **query: str) -> dict[str, Any]:
        """The list with all objects of a kind that have these labels. Raises Refused, Unreachable."""
        wanted = {**({"labelSelector": selector} if selector else {}), **query}
        return self.call("GET", self.path(api, kind), query=wanted)

    def pages(
        self, api: str, kind: str, selector: str, *, everywhere: bool = False, **query: str
    ) -> Iterator[dict[str, Any]]:
        """The same list as tables, one for each page; `everywhere` is in all namespaces. Raises as `find`.

        Refused with status 410 means that the list took so long that the server has forgotten how it began.
        """
        wanted = {"limit": PAGE, "labelSelector": selector, **query}
        while True:
            page = self.call("GET", self.path(api, kind, everywhere=everywhere), query=wanted, accept=TABLE)
            yield page
            if not page["metadata"].get("continue"):
                return
            wanted["continue"] = page["metadata"]["continue"]

    def create(self, manifest: Json, *, dry_run: bool = False) -> dict[str, Any]:
        """Make an object. Raises Refused (409 where it is there already), Unreachable."""
        query = {"fieldManager": MANAGER, "fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        return self.call("POST", self.path(manifest["apiVersion"], manifest["kind"]), manifest, query)

    def merge(self, api: str, kind: str, name: str, change: Json) -> dict[str, Any]:
        """Change some fields of an object. Raises Refused, Unreachable."""
        return self.call("PATCH", self.path(api, kind, name), change, {"fieldManager": MANAGER}, content=MERGE)

    def delete(
        self, api: str, kind: str, name: str, *, propagation: str = "Background", grace: int | None = None
    ) -> bool:
        """Delete an object and what it owns; gives whether it was there. Raises Refused, Unreachable."""
        options: dict[str, Any] = {"propagationPolicy": propagation}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        try:
            self.call("DELETE", self.path(api, kind, name), options)
        except Refused as error:
            if error.status != 404:
                raise
            return False
        return True

    def watch(
        self, api: str, kind: str, selector: str, since: str, seconds: int, *, accept: str = JSON,
        everywhere: bool = False, **more: str,
    ) -> Iterator[dict[str, Any]]:  # fmt: skip
        """Changes after resource version `since`, for at most so many seconds. Raises Refused (410), Unreachable."""
        query = {"watch": "1", "resourceVersion": since, "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds),
                 **({"labelSelector": selector} if selector else {}), **more}  # fmt: skip
        path = self.path(api, kind, everywhere=everywhere)
        for line in self.lines(path, query, silence=seconds + CONNECT_SECONDS, accept=accept):
            event = json.loads(line)
            if event["type"] == "ERROR":
                raise _refused(int(event["object"].get("code", 500)), event["object"], self)
            yield event

    def logs(
        self,
        pod: str,
        *,
        container: str,
        follow: bool,
        since: str | None = None,
        tail: int | None = None,
        previous: bool = False,
    ) -> Iterator[bytes]:
        """The lines of a container, or the last of them, each with its time in front. Raises Refused, Unreachable.

        `previous` are those that it said before it was last started again.
        """
        query = {"container": container, "timestamps": "true", **({"follow": "true"} if follow else {}),
                 **({"sinceTime": since} if since else {}), **({"previous": "true"} if previous else {}),
                 **({"tailLines": str(tail)} if tail is not None else {})}  # fmt: skip
        # A kubelet that is busy may begin to follow and never send anything: then it is asked again.
        silence = FOLLOW_SECONDS if follow and since is not None else READ_SECONDS
        return self.lines(f"{self.path('v1', 'Pod', pod)}/log", query, silence=silence)

    def execute(self, pod: str, container: str, command: list[str], *, seconds: float = 10.0) -> str:
        """What a command printed that was run in a container. Raises EngineError."""
        from kubernetes.client.exceptions import ApiException
        from kubernetes.stream import ws_client

        query = [("command", command), ("container", container), ("stdout", "true"), ("stderr", "true")]
        url = f"{self.server}{self.path('v1', 'Pod', pod)}/exec"
        try:
            call: Any = ws_client.websocket_call
            answer = call(
                self._configuration, "GET", url, query_params=query, headers=self._headers(), _request_timeout=seconds
            )
        except ApiException as error:
            said = str(error.reason).strip().splitlines()
            raise EngineError(f"no command can be run in {pod}: {said[-1] if said else error}",
                              f"windlass check --on {self.context}") from error  # fmt: skip
        return str(answer.data)

    def websocket(self, path: str, query: list[tuple[str, str]]) -> Any:
        """A `websocket.WebSocket` to an address that speaks in channels, as exec does. Raises Refused, Unreachable."""
        import websocket
        from kubernetes.stream import ws_client

        make: Any = ws_client.create_websocket
        url: Any = ws_client.get_websocket_url
        try:
            return make(self._configuration, url(f"{self.server}{path}", query), self._headers())
        except websocket.WebSocketBadStatusException as error:
            raise _refused(error.status_code, _json_of(error.resp_body or b""), self) from error
        except (websocket.WebSocketException, OSError) as error:
            raise Unreachable(f"{self.server} does not answer: {_words_of(error)}", "it may be restarting") from error

    # -- requests -----------------------------------------------------------------------------------------------------

    def path(self, api: str, kind: str, name: str = "", *, everywhere: bool = False) -> str:
        """The address of an object or, without a name, of all of a kind in the namespace, or in all of them."""
        root = f"/api/{api}" if "/" not in api else f"/apis/{api}"
        place = "" if kind in CLUSTER_WIDE or everywhere else f"/namespaces/{self.namespace}"
        return f"{root}{place}/{PLURALS[kind]}" + (f"/{name}" if name else "")

    def call(
        self, method: Method, path: str, body: object = None, query: Mapping[str, str] | None = None,
        *, content: str = JSON, accept: str = JSON,
    ) -> dict[str, Any]:  # fmt: skip
        """One request, one JSON answer. Raises Refused, Unreachable."""
        response = self._request(method, path, body, query, content, READ_SECONDS, accept)
        data = response.data
        answer = _json_of(data)
        if response.status >= 400:
            raise _refused(response.status, answer, self)
        return answer

    def lines(
        self, path: str, query: Mapping[str, str], silence: float | None, *, accept: str = JSON
    ) -> Iterator[bytes]:
        """An answer that goes on, line by line; `silence` is the most seconds without one. Raises as `call`."""
        import urllib3

        response = self._request("GET", path, None, query, JSON, silence, accept)
        if response.status >= 400:
            raise _refused(response.status, _json_of(response.data), self)
        rest = b""
        try:
            for piece in response.stream(1 << 16, decode_content=True):
                *whole, rest = (rest + piece).split(b"\n")
                yield from whole
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unreachable(f"{self.server} went silent: {error}", "it may be restarting") from error
        finally:
            response.release_conn()
            response.close()
        if rest:
            yield rest

    def _request(
        self, method: str, path: str, body: object, query: Mapping[str, str] | None, content: str, read: float | None,
        accept: str = JSON,
    ) -> Any:  # fmt: skip
        import urllib3
        from kubernetes.client.exceptions import ApiException

        url = f"{self.server}{path}" + (f"?{urlencode(query)}" if query else "")
        timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=read)
        data = None if body is None else json.dumps(body)
        headers = {**self._headers(), "Accept": accept, "Content-Type": content}
        if self._certificates != self._login.certificates:
            self._connect()
        try:
            response = self._rest.pool_manager.request(
                method, url, body=data, headers=headers, timeout=timeout, retries=False, preload_content=False
            )
            if response.status == 401:
                self._login.expire()
            return response
        except (urllib3.exceptions.HTTPError, OSError, ApiException) as error:
            hint = f"is it the right cluster? kubectl --context {self.context} cluster-info"
            raise Unreachable(f"{self.server} does not answer: {_words_of(error)}", hint) from error

    def _headers(self) -> dict[str, str]:
        """Who we are; a login that has run out is renewed first. Raises NotLoggedIn."""
        try:
            return self._login.headers()
        except LoginError as error:
            raise NotLoggedIn(f"context {self.context} cannot be logged in to: {error}",
                              f"kubectl --context {self.context} get pods") from error  # fmt: skip


def _configuration(context: str, where: str) -> Any:
    try:
        from kubernetes.client.configuration import Configuration
        from kubernetes.config import kube_config
        from kubernetes.config.config_exception import ConfigException
    except ImportError as error:
        raise MissingPart("the kubernetes package is needed", "pip install 'windlass[kubernetes]'") from error
    configuration = Configuration()
    load: Any = kube_config.load_kube_config
    try:
        load(config_file=where, context=context, client_configuration=configuration, persist_config=False)
    except ConfigException as error:
        known = _contexts(where)
        if known is None:
            raise UsageError(
                f"context {context}: there is no kubeconfig at {where}", "aws eks update-kubeconfig --name CLUSTER"
            ) from error
        if context not in known:
            raise UsageError(f"the kubeconfig {where} has no context '{context}'",
                             f"known are: {', '.join(known) or 'none'}") from error  # fmt: skip
        raise EngineError(f"context {context} cannot be logged in to: {_words_of(error)}",
                          f"kubectl --context {context} get pods") from error  # fmt: skip
    configuration.retries = False
    configuration.connection_pool_maxsize = 64
    return configuration


def _contexts(where: str) -> list[str] | None:
    """Names of the contexts of a kubeconfig; None where it cannot be read."""
    from kubernetes.config import kube_config
    from kubernetes.config.config_exception import ConfigException

    contexts: Any = kube_config.list_kube_config_contexts
    if not any(Path(path).expanduser().is_file() for path in where.split(os.pathsep)):
        return None
    try:
        return sorted(str(found["name"]) for found in contexts(where)[0])
    except ConfigException:
        return []


def _json_of(data: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(data)
    except ValueError:
        return {"message": data[:500].decode("utf-8", "replace").strip()}
    return answer if isinstance(answer, dict) else {"message": str(answer)}


def _refused(status: int, answer: Json, client: Client) -> Refused:
    """The API server's own sentence, and what to try."""
    hints = {
        401: f"the login has run out or was never valid: kubectl --context {client.context} get pods",
        403: f"ask for the right: windlass check --on TARGET lists what is needed in namespace {client.namespace}",
        404: f"see: kubectl --context {client.context} -n {client.namespace} get all",
    }
    message = str(answer.get("message") or f"HTTP {status}")
    details = found if isinstance(found := answer.get("details"), dict) else None
    return Refused(f"the cluster refused: {message}", hints.get(status, ""), status=status,
                   reason=str(answer.get("reason", "")), details=details)  # fmt: skip


def _words_of(error: BaseException) -> str:
    """The innermost reason of an error of the network, in a line."""
    reason = getattr(error, "reason", None)
    while isinstance(reason, BaseException):
        error, reason = reason, getattr(reason, "reason", None)
    text = str(reason or error).strip().splitlines()
    return text[-1].split(": ", 1)[-1] if text else type(error).__name__
