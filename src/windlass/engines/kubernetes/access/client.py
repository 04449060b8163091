"""Client of the API server of one kubeconfig context.

Objects are plain JSON, so that differences between API versions affect only data and no classes.
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
"""Seconds without data after which a followed log is requested again: its connection may be dead without an error."""
DATE_SECONDS: Final = 5.0
"""Largest clock difference, in seconds, that is ignored, since dates of responses are whole seconds and responses take
time."""
BUSY_SECONDS: Final = 10.0
"""Seconds for which a request is retried while the server is too busy for it."""
MANAGER: Final = "windlass"
"""Name of Windlass as field manager, as in `kubectl get --show-managed-fields`."""
JSON: Final = "application/json"
CHANNELS: Final = "v4.channel.k8s.io"
"""WebSocket subprotocol of exec in which the kubelet itself reports the exit status of a command."""
ENDS_INPUT: Final = f"v5.channel.k8s.io,{CHANNELS}"
"""WebSocket subprotocols of exec with v5, which can end the input. The API server translates v5, and reports success
when it has lost the connection to the kubelet."""
TABLE: Final = "application/json;as=Table;v=v1;g=meta.k8s.io"
"""Media type of a list as a table with kubectl's rows, which is much smaller than thousands of objects."""
PAGE: Final = "5000"
"""Rows per page: the API server holds a complete page in memory."""
OBJECTS_PAGE: Final = "200"
"""Objects per page: each takes about 0.2 MB of memory while it is parsed."""


def require_websockets() -> None:
    """Raises MissingExtra if the package for exec, the only optional dependency of a client, is not installed."""
    if importlib.util.find_spec("websocket") is None:
        raise MissingExtra("websocket-client is needed", "pip install websocket-client")


class Client:
    """Client for one context and namespace. Thread-safe."""

    def __init__(self, context: str, namespace: str, kubeconfig: str, clock: Clock | None = None) -> None:
        """`kubeconfig` has the format of `$KUBECONFIG`. Raises UsageError if it does not contain the context."""
        clock = clock or Clock()
        self.context = context
        self.namespace = namespace
        self.kubectl = kubectl(context, kubeconfig)
        """kubectl with the options to access this cluster, for hints in messages."""
        self.health = Health(clock)
        """Health of the threads that use this client; shared with its clients for other namespaces."""
        self.ahead = 0.0
        """Seconds by which the server's clock is ahead of this machine's, as of the last response; 0 if they agree."""
        self._login = Login(lambda: read_context(context, kubeconfig), clock)
        self._generation = self._login.generation
        self._pool = self._made_pool()

    def _current_pool(self) -> Pool:
        """Returns the connection pool of the server, a new one if the login or the kubeconfig has changed."""
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
        except (OSError, ValueError) as error:  # ssl.SSLError is a subclass of OSError.
            raise EngineError(
                f"context {self.context}: its certificates cannot be used: {words_of(error)}", hint
            ) from error
        return Pool(Route(server, by, tls, str(context.cluster.settings.get("tls-server-name") or "")))

    @property
    def server(self) -> str:
        """Address of the API server."""
        return self._login.context.server

    def within(self, namespace: str) -> Client:
        """Returns a client for another namespace that shares the connections of this client."""
        other = copy.copy(self)
        other.namespace = namespace
        return other

    def close(self) -> None:
        """Closes idle connections now, and connections in use after their response."""
        self._pool.close()

    # -- objects ------------------------------------------------------------------------------------------------------

    def get(self, api: str, kind: str, name: str) -> dict[str, Any]:
        """Returns one object. Raises Refused (404 if the object does not exist), Unreachable."""
        found = self.call("GET", self.path(api, kind, name))
        if not isinstance(found.get("metadata"), dict):
            raise self._foreign("an object")
        return found

    def get_if_exists(self, api: str, kind: str, name: str) -> dict[str, Any] | None:
        """Returns one object, or None if the server itself reports that it does not exist (`Refused.is_absent`). Raises
        like `get`.
        """
        try:
            return self.get(api, kind, name)
        except Refused as error:
            if error.is_absent(name, kind):
                return None
            raise

    def require_namespace(self) -> None:
        """Raises UsageError if the namespace does not exist, or Unreachable.

        Listing the objects of a missing namespace gives an empty list and no error. The check passes if the user may
        not read the namespace.
        """
        try:
            found = self.get_if_exists("v1", "Namespace", self.namespace)
        except Refused:
            return
        if found is None:
            raise self.no_namespace()

    def no_namespace(self) -> UsageError:
        """Returns the error for a namespace that does not exist."""
        return UsageError(
            f"there is no namespace {self.namespace} in the cluster of context {self.context}",
            f"{self.kubectl} create namespace {self.namespace}; or set namespace: in targets.yaml",
        )

    def find(self, api: str, kind: str, selector: str = "", **query: str) -> dict[str, Any]:
        """Returns a list of all objects of a kind with these labels. Raises Refused, Unreachable.

        The list is read in pages. `managedFields`, half of a pod's JSON, are removed. Refused with status 410 means
        that reading took too long: the server no longer has the version of the first page.
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
        """Yields the list of all objects of a kind with these labels as tables, one per page; `everywhere` includes all
        namespaces.

        Raises like `find`.
        """
        wanted = {"limit": PAGE, "labelSelector": selector, **query}
        while True:
            page = self.call("GET", self.path(api, kind, everywhere=everywhere), query=wanted, accept=TABLE)
            if "rows" not in page:
                answer = f"a list of {kind}s, and not with the table that was asked for"
                raise Unreachable(f"{self.context} has answered with {answer}", "does a proxy change its responses?")
            yield page
            if not page["metadata"].get("continue"):
                return
            wanted["continue"] = page["metadata"]["continue"]

    def create(self, manifest: Json, *, dry_run: bool = False) -> dict[str, Any]:
        """Creates an object. Raises Refused (409 if it exists), Unreachable."""
        query = {"fieldManager": MANAGER, "fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        return self.call("POST", self.path(manifest["apiVersion"], manifest["kind"]), manifest, query)

    def create_if_absent(self, manifest: Json) -> dict[str, Any] | None:
        """Creates an object; returns None, and keeps the existing object, if one with this name exists. Raises Refused,
        Unreachable.

        Other 409 responses are raised as Refused, such as the one for a ResourceQuota that was changed at the same
        time.
        """
        try:
            return self.create(manifest)
        except Refused as error:
            if (error.status, error.reason) == (409, "AlreadyExists"):
                return None
            raise

    def update(self, api: str, kind: str, name: str, change: Callable[[Json], Json]) -> None:
        """Replaces an object by the result of `change`; reads it again and retries if it was changed meanwhile. Raises
        like `get`.
        """
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
        """Deletes an object and the objects that it owns, which are deleted first if `is_owned_first`; returns whether
        it existed.

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
        """Yields changes after the resource version `since`, for at most `seconds`. Raises Unreachable, and Refused
        (410 if the version is too old).
        """
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
        """Yields the log lines of a container, or its last `tail` lines, each with a timestamp. Raises Refused,
        Unreachable.

        `previous` selects the log of the container's previous start.
        """
        query = {
            "container": container,
            "timestamps": "true",
            **({"follow": "true"} if follow else {}),
            **({"sinceTime": since} if since else {}),
            **({"previous": "true"} if previous else {}),
            **({"tailLines": str(tail)} if tail is not None else {}),
        }
        # A busy kubelet may accept a follow request and never send data; the request is then repeated.
        silence = FOLLOW_SECONDS if follow and since is not None else READ_SECONDS
        return self.lines(f"{self.path('v1', 'Pod', pod)}/log", query, silence=silence)

    def websocket(self, path: str, query: list[tuple[str, str]], *, channels: str = CHANNELS) -> Any:
        """Returns a `websocket.WebSocket` to a path such as exec, with one of these channel protocols.

        Reading from it times out after READ_SECONDS without data. Raises Refused, Unreachable, MissingExtra.
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
        """Returns the URL path of an object, or of all objects of its kind if `name` is empty, in the namespace or
        `everywhere`.
        """
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
        """Sends one request and returns its JSON response. Raises Refused, Unreachable.

        A GET whose connection breaks is sent once more over a new connection, since the server may have closed an idle
        one. 429 responses are retried after Retry-After.
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
        """Yields a streamed response line by line; `silence` is the largest number of seconds without data. Raises like
        `call`.

        A refusal is raised at once. The iterator raises Silent, and errors of a connection that breaks later.
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
            # Without a marked end, only an incomplete last line shows that the connection was cut.
            raise Broken(f"{self.server} sent an incomplete line", "it may be restarting")
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
        """Converts errors of network, TLS and HTTP to Unreachable."""
        hint = f"is it the right cluster? {self.kubectl} cluster-info"
        try:
            yield
        except (TimeoutError, DialError) as error:
            raise Unreachable(f"{self.server} does not answer: {words_of(error)}", hint) from error
        except (http.client.HTTPException, OSError, ValueError) as error:
            raise Broken(f"{self.server} does not answer: {words_of(error)}", hint) from error

    def _foreign(self, wanted: str) -> Unreachable:
        """Returns the error for a response that is incomplete or not from an API server, such as an HTML page."""
        return Broken(
            f"{self.server} returned something that is not {wanted} of Kubernetes",
            f"is a proxy in front of it? {self.kubectl} get --raw /version",
        )

    def _headers(self) -> dict[str, str]:
        """Returns the headers with the credentials of the user; an expired login is renewed first. Raises
        NotLoggedIn.
        """
        try:
            return self._login.headers()
        except LoginError as error:
            raise NotLoggedIn(
                f"context {self.context} cannot be logged in to: {error}", f"{self.kubectl} get pods"
            ) from error


def _ahead(date: str, now: float) -> float:
    """Returns the seconds by which the date of a response is ahead of `now`; 0 if they agree or the response has no
    date.
    """
    try:
        found = parsedate_to_datetime(date).timestamp() - now
    except (ValueError, OverflowError):
        return 0.0
    return found if abs(found) > DATE_SECONDS else 0.0


def _parsed(data: bytes) -> Any:
    """Returns the parsed JSON of a response, or None if it is no JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _json_of(data: bytes) -> dict[str, Any]:
    answer = _parsed(data)
    if answer is None:
        return {"message": data[:500].decode("utf-8", "replace").strip()}
    return answer if isinstance(answer, dict) else {"message": str(answer)[:500]}
