"""Client of the API server of one kubeconfig context.

Objects are plain JSON, so that what differs between versions is data and no class of ours.
"""

from __future__ import annotations

import contextlib
import copy
import http.client
import importlib.util
import json
import time
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal
from urllib.parse import quote, urlencode

from windlass.engines.kubernetes.access.background import Health
from windlass.engines.kubernetes.access.dial import CONNECT_SECONDS, Address, DialError, Route
from windlass.engines.kubernetes.access.errors import (
    Broken,
    NotLoggedIn,
    Refused,
    Silent,
    Unreachable,
    refused,
    words_of,
)
from windlass.engines.kubernetes.access.kubeconfig import kubectl, read_context
from windlass.engines.kubernetes.access.login import Login, LoginError
from windlass.engines.kubernetes.access.transport import Pool, Response
from windlass.engines.kubernetes.objects.kinds import CLUSTER_WIDE, PLURALS
from windlass.errors import EngineError, MissingExtra, UsageError
from windlass.runs.clock import Clock

Json = Mapping[str, Any]
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]

READ_SECONDS: Final = 30.0
FOLLOW_SECONDS: Final = 300.0
"""How long a followed log may be silent until it is requested again: a connection may be dead without an error."""
DATE_SECONDS: Final = 5.0
"""Clocks that differ by less agree: dates of responses are whole seconds, and responses take time."""
BUSY_SECONDS: Final = 10.0
"""How long a request is sent again to a server that is too busy for it."""
MANAGER: Final = "windlass"
"""The field manager of our fields, as in `kubectl get --show-managed-fields`."""
JSON: Final = "application/json"
CHANNELS: Final = "v4.channel.k8s.io"
"""Protocol of commands in pods. By it the kubelet itself reports how a command has ended."""
ENDS_INPUT: Final = f"v5.channel.k8s.io,{CHANNELS}"
"""With the one that can end the input. The API server translates it, and reports success for a connection to the
kubelet that was lost."""
"""Versions of the protocol in which exec sends its streams."""
TABLE: Final = "application/json;as=Table;v=v1;g=meta.k8s.io"
"""A list as the rows that kubectl prints: a fraction of the objects, which a list of thousands would mostly be."""
PAGE: Final = "5000"
"""Rows of one answer: a server must hold a complete answer in memory."""
OBJECTS_PAGE: Final = "200"
"""The same of objects, of which each takes some 0.2 MB of our memory for a moment."""


def require_websockets() -> None:
    """Raises MissingExtra where the package for exec is not installed: the only one that a client may need."""
    if importlib.util.find_spec("websocket") is None:
        raise MissingExtra("websocket-client is needed", "pip install websocket-client")


class Client:
    """One context and namespace. May be used by several threads."""

    def __init__(self, context: str, namespace: str, kubeconfig: str, clock: Clock | None = None) -> None:
        """`kubeconfig` is as `$KUBECONFIG`. Raises UsageError where it has no such context."""
        clock = clock or Clock()
        self.context = context
        self.namespace = namespace
        self.kubectl = kubectl(context, kubeconfig)
        """With what it needs to reach this cluster, for hints."""
        self.health = Health(clock)
        """What threads that use this client report; shared with those `within` another namespace."""
        self.ahead = 0.0
        """Seconds by which the server's clock is ahead of this machine's, by its last response; 0 if they agree."""
        self._login = Login(lambda: read_context(context, kubeconfig), clock)
        self._generation = self._login.generation
        self._pool = self._made_pool()

    def _current_pool(self) -> Pool:
        """The connections to the server; new ones once the login or the kubeconfig requires others."""
        if (generation := self._login.generation) != self._generation:
            before, self._pool = self._pool, self._made_pool()
            self._generation = generation
            before.close()
        return self._pool

    def _made_pool(self) -> Pool:
        login, context = self._login, self._login.context
        hint = f"{self.kubectl} get pods"
        try:
            server, proxy = Address.of(context.server), context.proxy()
            by = Address.of(proxy) if proxy else None
        except ValueError as error:
            raise EngineError(f"context {self.context}: {error}", hint) from error
        try:
            tls = login.tls() if server.scheme == "https" else None
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise EngineError(
                f"context {self.context}: its certificates cannot be used: {words_of(error)}", hint
            ) from error
        return Pool(Route(server, by, tls, str(context.cluster.settings.get("tls-server-name") or "")))

    @property
    def server(self) -> str:
        """The address of the API server."""
        return self._login.context.server

    def within(self, namespace: str) -> Client:
        """The same client, with the same connections, in another namespace."""
        other = copy.copy(self)
        other.namespace = namespace
        return other

    def close(self) -> None:
        """Close the connections that are idle; those in use are closed after their response."""
        self._pool.close()

    # -- objects ------------------------------------------------------------------------------------------------------

    def get(self, api: str, kind: str, name: str) -> dict[str, Any]:
        """One object. Raises Refused (404 where it is not there), Unreachable."""
        found = self.call("GET", self.path(api, kind, name))
        if not isinstance(found.get("metadata"), dict):
            raise self._foreign("an object")
        return found

    def get_if_exists(self, api: str, kind: str, name: str) -> dict[str, Any] | None:
        """One object; None where the server itself reports it absent, as `Refused.is_absent`. Raises as `get`."""
        try:
            return self.get(api, kind, name)
        except Refused as error:
            if error.is_absent(name, kind):
                return None
            raise

    def require_namespace(self) -> None:
        """Raises UsageError where the namespace does not exist, Unreachable.

        A list of its objects does not show that: it is empty. A login that may not read the namespace passes.
        """
        try:
            found = self.get_if_exists("v1", "Namespace", self.namespace)
        except Refused:
            return
        if found is None:
            raise self.no_namespace()

    def no_namespace(self) -> UsageError:
        """The error that the namespace does not exist."""
        return UsageError(
            f"there is no namespace {self.namespace} in the cluster of context {self.context}",
            f"{self.kubectl} create namespace {self.namespace}; or set namespace: in targets.yaml",
        )

    def find(self, api: str, kind: str, selector: str = "", **query: str) -> dict[str, Any]:
        """The list with all objects of a kind that have these labels. Raises Refused, Unreachable.

        It is read in pages, and without `managedFields`, which are half of a pod. Refused with status 410 means that
        the list took so long that the server has forgotten how it began.
        """
        wanted = {"limit": OBJECTS_PAGE, **({"labelSelector": selector} if selector else {}), **query}
        items: list[Any] = []
        while True:
            found = self.call("GET", self.path(api, kind), query=wanted)
            if not isinstance(found.get("items"), list) or not isinstance(found.get("metadata"), dict):
                raise self._foreign("a list")
            for one in found["items"]:
                one.get("metadata", {}).pop("managedFields", None)
            items += found["items"]
            if "limit" in query or not found["metadata"].get("continue"):
                return {**found, "items": items}
            wanted["continue"] = found["metadata"]["continue"]

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

    def create_if_absent(self, manifest: Json) -> dict[str, Any] | None:
        """Make an object; None where one of its name exists, which is kept. Raises Refused, Unreachable.

        Another 409 is no such report: with one, a ResourceQuota that was changed meanwhile refuses an object.
        """
        try:
            return self.create(manifest)
        except Refused as error:
            if (error.status, error.reason) == (409, "AlreadyExists"):
                return None
            raise

    def update(self, api: str, kind: str, name: str, change: Callable[[Json], Json]) -> None:
        """Replace an object by what `change` makes of it, anew where it was changed meanwhile. Raises as `get`."""
        for is_last in (False, False, True):
            changed = change(self.get(api, kind, name))
            try:
                self.call("PUT", self.path(api, kind, name), changed)
            except Refused as error:
                if error.status != 409 or is_last:
                    raise
            else:
                return

    def delete(self, api: str, kind: str, name: str, *, grace: int | None = None, is_owned_first: bool = False) -> bool:
        """Delete an object and what it owns, after it or `is_owned_first`; gives whether it was there.

        Raises Refused, Unreachable.
        """
        policy = "Foreground" if is_owned_first else "Background"
        options = {"propagationPolicy": policy, **({} if grace is None else {"gracePeriodSeconds": grace})}
        try:
            self.call("DELETE", self.path(api, kind, name), options)
        except Refused as error:
            if error.status != 404:
                raise
            return False
        return True

    def watch(
        self, api: str, kind: str, selector: str, since: str, seconds: int, *, accept: str = JSON, **more: str
    ) -> Iterator[dict[str, Any]]:
        """Changes after resource version `since`, for at most so many seconds. Raises Refused (410), Unreachable."""
        query = {
            "watch": "1",
            "resourceVersion": since,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
            **({"labelSelector": selector} if selector else {}),
            **more,
        }
        for line in self.lines(self.path(api, kind), query, silence=seconds + CONNECT_SECONDS, accept=accept):
            event = _json_of(line)
            about = event.get("object")
            if not isinstance(event.get("type"), str) or not isinstance(about, dict):
                raise self._foreign("a change")
            if event["type"] == "ERROR":
                code = about.get("code")
                raise refused(code if isinstance(code, int) else 500, about, self.kubectl, self.namespace)
            if not isinstance(about.get("metadata"), dict):
                raise self._foreign("a change")
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
        query = {
            "container": container,
            "timestamps": "true",
            **({"follow": "true"} if follow else {}),
            **({"sinceTime": since} if since else {}),
            **({"previous": "true"} if previous else {}),
            **({"tailLines": str(tail)} if tail is not None else {}),
        }
        # A busy kubelet may accept a follow request and never send anything: then it is repeated.
        silence = FOLLOW_SECONDS if follow and since is not None else READ_SECONDS
        return self.lines(f"{self.path('v1', 'Pod', pod)}/log", query, silence=silence)

    def websocket(self, path: str, query: list[tuple[str, str]], *, channels: str = CHANNELS) -> Any:
        """A `websocket.WebSocket` to a URL with one of these channel protocols, such as exec.

        A connection that is silent is given up. Raises Refused, Unreachable, MissingExtra.
        """
        require_websockets()
        import websocket

        headers = [f"{name}: {value}" for name, value in self._headers().items()]
        made = websocket.WebSocket()
        made.settimeout(READ_SECONDS)
        connect: Any = made.connect
        try:
            connection = self._current_pool().route.dial(is_tunnel=True)
            connection.settimeout(READ_SECONDS)
            connect(
                f"ws{self.server.removeprefix('http')}{path}?{urlencode(query)}",
                socket=connection,
                header=[*headers, f"sec-websocket-protocol: {channels}"],
            )
        except websocket.WebSocketBadStatusException as error:
            raise refused(error.status_code, _json_of(error.resp_body or b""), self.kubectl, self.namespace) from error
        except (websocket.WebSocketException, http.client.HTTPException, OSError, ValueError) as error:
            raise Unreachable(f"{self.server} does not answer: {words_of(error)}", "it may be restarting") from error
        return made

    # -- requests -----------------------------------------------------------------------------------------------------

    def path(self, api: str, kind: str, name: str = "", *, everywhere: bool = False) -> str:
        """The address of an object or, without a name, of all of a kind in the namespace, or in all of them."""
        root = f"/api/{api}" if "/" not in api else f"/apis/{api}"
        place = "" if kind in CLUSTER_WIDE or everywhere else f"/namespaces/{quote(self.namespace)}"
        return f"{root}{place}/{PLURALS[kind]}" + (f"/{quote(name)}" if name else "")

    def call(
        self,
        method: Method,
        path: str,
        body: object = None,
        query: Mapping[str, str] | None = None,
        *,
        content: str = JSON,
        accept: str = JSON,
    ) -> dict[str, Any]:
        """One request, one JSON answer. Raises Refused, Unreachable.

        A GET whose connection breaks is sent once more, over a new one: an idle one may have been closed meanwhile.
        429 responses are retried after Retry-After.
        """
        give_up, is_new = time.monotonic() + BUSY_SECONDS, False
        while True:
            try:
                return self._call_once(method, path, body, query, content, accept, is_new=is_new)
            except Broken:
                if method != "GET" or is_new:
                    raise
                is_new = True
            except Refused as error:
                pause = error.retry_after
                if pause is None or time.monotonic() + pause > give_up:
                    raise
                time.sleep(pause)
                is_new = False

    def _call_once(
        self,
        method: Method,
        path: str,
        body: object,
        query: Mapping[str, str] | None,
        content: str,
        accept: str,
        *,
        is_new: bool,
    ) -> dict[str, Any]:
        response = self._request(method, path, body, query, content, READ_SECONDS, accept, is_new=is_new)
        with self._transport():
            data = response.read()
        if response.status >= 400:
            raise refused(response.status, _json_of(data), self.kubectl, self.namespace)
        answer = _parsed(data)
        if not isinstance(answer, dict):
            raise self._foreign("JSON")
        return answer

    def lines(
        self, path: str, query: Mapping[str, str], silence: float | None, *, accept: str = JSON
    ) -> Iterator[bytes]:
        """A streamed answer, line by line; `silence` is the most seconds without one. Raises as `call`.

        What is refused is refused at once; a connection that breaks later is raised by the iterator, as is Silent.
        """
        response = self._request("GET", path, None, query, JSON, silence, accept)
        if response.status >= 400:
            with self._transport():
                data = response.read()
            raise refused(response.status, _json_of(data), self.kubectl, self.namespace)
        return self._lines_of(response)

    def _lines_of(self, response: Response) -> Iterator[bytes]:
        rest = b""
        try:
            with self._transport():
                for piece in response.pieces():
                    *whole, rest = (rest + piece).split(b"\n")
                    yield from whole
        except Unreachable as error:
            if isinstance(error.__cause__, TimeoutError):
                raise Silent(error.message, error.hint) from error
            raise
        finally:
            response.close()
        if rest and not response.has_marked_end:
            # Nothing marks the end of such an answer: a connection that was cut ends it as well, in mid-line.
            raise Broken(f"{self.server} sent half a line, and no more", "it may be restarting")
        if rest:
            yield rest

    def _request(
        self,
        method: str,
        path: str,
        body: object,
        query: Mapping[str, str] | None,
        content: str,
        read: float | None,
        accept: str,
        *,
        is_new: bool = False,
    ) -> Response:
        target = path + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body).encode()
        headers = {**self._headers(), "Accept": accept, "Content-Type": content}
        pool = self._current_pool()
        with self._transport():
            response = pool.request(method, target, headers, data, read, is_new=is_new)
        if response.status == 401:
            self._login.expire()
        self.ahead = _ahead(response.date, time.time())
        return response

    @contextlib.contextmanager
    def _transport(self) -> Iterator[None]:
        """The only place where errors of the network, of TLS and of HTTP are mapped to ours. Raises Unreachable."""
        hint = f"is it the right cluster? {self.kubectl} cluster-info"
        try:
            yield
        except (TimeoutError, DialError) as error:
            raise Unreachable(f"{self.server} does not answer: {words_of(error)}", hint) from error
        except (http.client.HTTPException, OSError, ValueError) as error:
            raise Broken(f"{self.server} does not answer: {words_of(error)}", hint) from error

    def _foreign(self, wanted: str) -> Unreachable:
        """What was answered is not what an API server answers: a proxy's page, or half of an answer."""
        return Broken(
            f"{self.server} answered something that is not {wanted} of Kubernetes",
            f"is a proxy in front of it? {self.kubectl} get --raw /version",
        )

    def _headers(self) -> dict[str, str]:
        """Who we are; a login that has run out is renewed first. Raises NotLoggedIn."""
        try:
            return self._login.headers()
        except LoginError as error:
            raise NotLoggedIn(
                f"context {self.context} cannot be logged in to: {error}", f"{self.kubectl} get pods"
            ) from error


def _ahead(date: str, now: float) -> float:
    """Seconds from `now` to the date of a response; 0 where they agree, or it has none."""
    try:
        found = parsedate_to_datetime(date).timestamp() - now
    except (ValueError, OverflowError):
        return 0.0
    return found if abs(found) > DATE_SECONDS else 0.0


def _parsed(data: bytes) -> Any:
    """The JSON in an answer; None where it is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _json_of(data: bytes) -> dict[str, Any]:
    answer = _parsed(data)
    if answer is None:
        return {"message": data[:500].decode("utf-8", "replace").strip()}
    return answer if isinstance(answer, dict) else {"message": str(answer)[:500]}
