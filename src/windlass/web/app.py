"""Routes of the web page. Each page and its JSON are rendered from the same view."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from windlass.errors import NoSuchRun, UnsupportedVersion, UsageError, WindlassError
from windlass.services.browser_access import cookie_name
from windlass.web import acting, charts, compare, logs, pages, parts
from windlass.web.files import open_below
from windlass.web.live import ChangeFeed, change_stream, log_stream
from windlass.web.render import Renderer, json_response
from windlass.web.security import LINK, START, Guard
from windlass.web.site import Site

if TYPE_CHECKING:
    from starlette.types import ASGIApp


STATIC_FILES: Final = Path(__file__).parent / "static"
MEDIA_TYPES: Final = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
"""Media types of the static files; no other file of the folder is served."""
CHUNK_BYTES: Final = 256 << 10
RUN: Final = "/runs/{run_id:str}"
_LOCAL_PATH: Final = re.compile(r"/(?!/)[\w./?=&%+-]*", re.ASCII)
NEW_LINK: Final = "windlass open --no-open prints a new link"
NEEDS_LINK: Final = f"open the link that `windlass ui` has printed; each link works once: {NEW_LINK}"


class Page(NamedTuple):
    """A page of the site, whose JSON has the same path with `.json`."""

    path: str
    template: str
    view: Callable[..., Any]
    """Builds the data of the page. Arguments: the site, the run id (only for pages of one run), and the query."""


PAGES: Final = (
    Page("/", "runs.html", pages.runs_page),
    Page("/targets", "targets.html", pages.targets_page),
    Page("/disk", "disk.html", pages.disk_page),
    Page("/disk/use", "disk_use.html", pages.disk_part),
    Page("/compare", "compare.html", compare.compare_page),
)
RUN_PAGES: Final = (
    Page(RUN, "run.html", lambda site, run_id, _query: pages.run_page(site, run_id)),
    Page(f"{RUN}/head", "run_head.html", lambda site, run_id, _query: pages.run_page(site, run_id)),
    Page(f"{RUN}/why", "run_why.html", parts.why_part),
    Page(f"{RUN}/time", "run_time.html", parts.time_part),
    Page(f"{RUN}/events", "run_events.html", parts.events_part),
    Page(f"{RUN}/plan", "run_plan.html", parts.plan_part),
    Page(f"{RUN}/environment", "run_environment.html", parts.environment_part),
    Page(f"{RUN}/checkpoints", "run_checkpoints.html", parts.checkpoints_part),
    Page(f"{RUN}/artifacts", "run_artifacts.html", parts.artifacts_part),
    Page(f"{RUN}/logs", "logs.html", logs.logs_page),
)
DATA: Final[Mapping[str, Callable[..., Any]]] = {
    "/compare/metrics.json": compare.compare_data,
    f"{RUN}/metrics.json": charts.metrics_data,
    f"{RUN}/heatmap.json": charts.heat_map,
    f"{RUN}/logs/lines.json": logs.log_window,
    f"{RUN}/logs/search.json": logs.search_log,
}
"""Views that have no page: JSON that the JavaScript of the pages requests."""


def make_app(site: Site, host: str, port: int, changes: ChangeFeed) -> ASGIApp:
    """Returns the ASGI application of a server that listens on `host` and `port`."""
    renderer = Renderer(site)
    handlers = Handlers(site, renderer, port, changes)
    routes = [Route(path, handlers.data(view)) for path, view in DATA.items()]
    for page in (*PAGES, *RUN_PAGES):
        name = "/runs" if page.path == "/" else page.path
        routes += [Route(f"{name}.json", handlers.data(page.view)), Route(page.path, handlers.html(page))]
    routes += [
        Route("/events", handlers.events),
        Route(f"{RUN}/logs/live", handlers.live_log),
        Route(f"{RUN}/artifacts/files/{{path:path}}", handlers.download),
        Route(f"{RUN}/actions/{{action}}", handlers.action, methods=["GET", "POST"]),
        Route(START, handlers.start),
        Route(LINK, handlers.link, methods=["POST"]),
        Route("/static/{name}", handlers.static),
    ]
    errors: dict[Any, Any] = {
        WindlassError: handlers.failed,
        HTTPException: handlers.refused,
        OSError: handlers.unreadable,
    }
    app = Starlette(routes=routes, exception_handlers=errors)
    app.router.redirect_slashes = False
    return Guard(app, site.sessions, host, port, handlers.refusal)


class Handlers:
    """Request handlers. Those that are not coroutines run in threads, so that they do not block the event loop."""

    def __init__(self, site: Site, renderer: Renderer, port: int, changes: ChangeFeed) -> None:
        self._site = site
        self._renderer = renderer
        self._port = port
        self._changes = changes

    # -- views --------------------------------------------------------------------------------------------------------

    def html(self, page: Page) -> Callable[[Request], Response]:
        """Returns the handler of a page."""

        def handler(request: Request) -> Response:
            return self._renderer.page(page.template, self._view(page.view, request), request.scope)

        return handler

    def data(self, view: Callable[..., Any]) -> Callable[[Request], Response]:
        """Returns the handler of a view that is sent as JSON."""
        return lambda request: json_response(self._view(view, request))

    def _view(self, view: Callable[..., Any], request: Request) -> Any:
        names = [request.path_params["run_id"]] if "run_id" in request.path_params else []
        return view(self._site, *names, request.query_params)

    # -- streams and files --------------------------------------------------------------------------------------------

    async def events(self, request: Request) -> Response:
        """Returns the stream of changed runs."""
        return change_stream(self._site, self._changes)

    async def live_log(self, request: Request) -> Response:
        """Returns the stream of new log lines of a run."""
        given = (request.path_params["run_id"], request.query_params, self._changes)
        return await run_in_threadpool(log_stream, self._site, *given)

    def download(self, request: Request) -> Response:
        """Returns a result file of a run as an attachment, which browsers save and do not display."""
        path = request.path_params["path"]
        folder = parts.results_folder(self._site, request.path_params["run_id"])
        try:
            if folder is None:
                raise FileNotFoundError
            opened = open_below(folder, path)
        except (OSError, ValueError) as error:
            raise HTTPException(404, "there is no such file among the results on this machine") from error
        name = path.rpartition("/")[2].encode(errors="replace").decode()
        num_bytes = os.fstat(opened).st_size
        disposition = f"attachment; filename*=UTF-8''{quote(name, safe='')}"
        headers = {"content-disposition": disposition, "content-length": str(num_bytes)}
        if request.method == "HEAD":
            os.close(opened)
            return Response(headers=headers, media_type="application/octet-stream")
        return StreamingResponse(_chunks(opened, num_bytes), headers=headers, media_type="application/octet-stream")

    def static(self, request: Request) -> Response:
        """Returns a static file of this package."""
        path = STATIC_FILES / request.path_params["name"]
        media_type = MEDIA_TYPES.get(path.suffix)
        if media_type is None or path.parent != STATIC_FILES or not path.is_file():
            raise HTTPException(404, "there is no such file")
        data = path.read_bytes()
        headers = {"etag": f'"{hashlib.sha256(data).hexdigest()[:32]}"', "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return Response(data, media_type=media_type, headers=headers)

    # -- sessions -----------------------------------------------------------------------------------------------------

    def start(self, request: Request) -> Response:
        """Exchanges a one-time token for a session cookie.

        The response is an HTML page that loads the next page, not a redirect: after a redirect, browsers would not send
        the `SameSite=Strict` cookie, because another program started the navigation.
        """
        if request.method == "HEAD":  # link previews must not use up the token
            raise HTTPException(405, "a link is opened by GET")
        found = self._site.sessions.exchange(request.query_params.get("token", ""))
        if found is None:
            message = "this link is wrong or was used already"
            return self._renderer.refusal(403, message, NEW_LINK, request.scope, is_json=False)
        session, path = found
        response = self._renderer.page("start.html", path, request.scope)
        response.set_cookie(cookie_name(self._port), session, path="/", httponly=True, samesite="strict")
        response.headers["referrer-policy"] = "no-referrer"
        return response

    async def link(self, request: Request) -> Response:
        """Returns a one-time token to `windlass open`, which knows the secret of this server."""
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        is_known = hmac.compare_digest(given.encode(errors="replace"), self._site.secret.encode())
        if not (self._site.secret and is_known) or "origin" in request.headers:
            raise HTTPException(403, "only windlass open requests links")
        path = request.query_params.get("path", "/")
        if not _LOCAL_PATH.fullmatch(path):
            raise HTTPException(400, "the path is not one of this page")
        return JSONResponse({"token": self._site.sessions.new_token(path)})

    # -- actions and refusals -----------------------------------------------------------------------------------------

    async def action(self, request: Request) -> Response:
        """Returns the confirmation form of an action (GET), or performs the action (POST)."""
        return await acting.respond(self._site, self._renderer, request)

    def failed(self, request: Request, error: Exception) -> Response:
        """Returns the response for a WindlassError: 404, 400, 409 or 500."""
        assert isinstance(error, WindlassError)
        status = 404 if isinstance(error, NoSuchRun) else 400 if isinstance(error, UsageError) else 500
        if isinstance(error, UnsupportedVersion):
            status = 409
        return self._refused(request, status, error.message, error.hint or "")

    def refused(self, request: Request, error: Exception) -> Response:
        """Returns the response for an HTTP error, such as an unknown path."""
        assert isinstance(error, HTTPException)
        return self._refused(request, error.status_code, str(error.detail), "")

    def unreadable(self, request: Request, error: Exception) -> Response:
        """Returns the response where a file of the record cannot be read."""
        return self._refused(request, 500, f"a file cannot be read: {error}", "")

    def _refused(self, request: Request, status: int, message: str, hint: str) -> Response:
        is_json = request.url.path.endswith(".json")
        return self._renderer.refusal(status, message, hint, request.scope, is_json=is_json)

    def refusal(self, status: int, message: str) -> ASGIApp:
        """Returns the ASGI application that responds to a request refused by `Guard`."""

        async def refuse(scope: Any, receive: Any, send: Any) -> None:
            is_json = scope["path"].endswith(".json")
            hint = NEEDS_LINK if status == 401 else ""
            response = self._renderer.refusal(status, message, hint, scope, is_json=is_json)
            await response(scope, receive, send)

        return refuse


def _chunks(opened: int, num_bytes: int) -> Iterator[bytes]:
    """Yields the first `num_bytes` of a file, then closes it. The file may grow during the download."""
    with open(opened, "rb") as file:
        while num_bytes > 0 and (data := file.read(min(CHUNK_BYTES, num_bytes))):
            num_bytes -= len(data)
            yield data
