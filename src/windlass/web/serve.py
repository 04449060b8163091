"""Runs the server of the web page, and hands one-time links to browsers without putting a token on a command line."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import secrets
import time
import webbrowser
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from windlass.errors import UsageError
from windlass.services.browser_access import Sessions, address_of, listen, redirect_page
from windlass.web.security import START

if TYPE_CHECKING:
    from windlass.runs.context import Context

FOLDER: Final = "ui"
"""Folder in the home with a file for each running server."""
PORT: Final = 8421
"""Default port. If it is in use, a free one is chosen."""
ASK_SECONDS: Final = 5.0
REDIRECT_SECONDS: Final = 30.0
"""Age in seconds at which a redirect file may be deleted: its browser has read it by then."""
SHUTDOWN_SECONDS: Final = 2


@dataclass(frozen=True, slots=True)
class Running:
    """A running server, as its file describes it."""

    host: str
    port: int
    pid: int
    secret: str
    """Secret by which `windlass open` requests a one-time link."""
    may_act: bool


def link_of(host: str, port: int, token: str) -> str:
    """Returns the one-time link that starts a session."""
    return address_of(host, port, f"{START}?token={token}")


# -- the server -------------------------------------------------------------------------------------------------------


def serve(
    context: Context,
    host: str,
    port: int | None,
    *,
    may_act: bool,
    first_path: str,
    on_ready: Callable[[str, str], None],
) -> None:
    """Serves the page until SIGINT or SIGTERM. `on_ready` is called with the address and a one-time link to
    `first_path`. Without a `port`, the default one or any free one is used.

    Raises UsageError if the host or port cannot be used, StoreError.
    """
    import uvicorn

    from windlass.web.app import make_app
    from windlass.web.live import ChangeFeed
    from windlass.web.site import Records, Site
    from windlass.web.targets import TargetPoller

    records, sessions = Records(context), Sessions()
    with records.open() as store:
        home = None if store.is_read_only else store.home
    listener = listen(host, (PORT, 0) if port is None else (port,))
    port = listener.getsockname()[1]
    changes = ChangeFeed(records)
    targets = TargetPoller(context, records, changes.notify)
    server: uvicorn.Server | None = None
    secret = secrets.token_urlsafe(32)
    site = Site(
        context,
        records,
        sessions,
        targets,
        may_act,
        secret,
        lambda: server is not None and server.should_exit,
    )
    config = uvicorn.Config(
        make_app(site, host, port, changes),
        log_config=None,
        access_log=False,  # its lines would contain tokens
        server_header=False,
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    server = uvicorn.Server(config)
    with contextlib.ExitStack() as stack:
        stack.callback(records.close)
        stack.callback(targets.close)
        if home is not None:
            stack.callback(clean_redirects, home)
            stack.enter_context(registered(home, Running(host, port, os.getpid(), secret, may_act)))
        on_ready(address_of(host, port), link_of(host, port, sessions.new_token(first_path)))
        server.run(sockets=[listener])


# -- files of running servers -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def registered(home: Path, running: Running) -> Iterator[None]:
    """Writes the file of a running server, and deletes it at the end of the block. Only this user can read it. The
    process holds a lock on it, which ends with the process.
    """
    folder = home / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{running.port}.json"
    part = path.with_suffix(".part")  # without a lock, the file would count as that of a killed server
    part.unlink(missing_ok=True)
    opened = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        os.write(opened, json.dumps(asdict(running)).encode())
        part.replace(path)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(opened)


def find_running(home: Path) -> Running | None:
    """Returns the server of this home that was started last; None without one. Deletes files of servers that were
    killed: their locks ended with the process.
    """
    found: list[tuple[float, Running]] = []
    for path in sorted((home / FOLDER).glob("*.json")):
        try:
            with open(path, "rb") as file:
                if _is_unlocked(file.fileno()):
                    path.unlink(missing_ok=True)
                    continue
                found.append((path.stat().st_mtime, Running(**json.load(file))))
        except (OSError, ValueError, TypeError):
            continue  # the server ends, or has not written its file yet
    return max(found, key=lambda one: one[0])[1] if found else None


def _is_unlocked(opened: int) -> bool:
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def ask_link(running: Running, path: str) -> str:
    """Returns a one-time link to a page of a running server. Raises UsageError if the server does not answer."""
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(running.host, running.host)
    connection = http.client.HTTPConnection(name, running.port, timeout=ASK_SECONDS)
    try:
        headers = {"Authorization": f"Bearer {running.secret}"}
        connection.request("POST", f"/link?path={quote(path, safe='')}", headers=headers)
        response = connection.getresponse()
        token = json.loads(response.read(4096))["token"]
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        hint = f"end process {running.pid}, and start it again: windlass ui"
        raise UsageError(f"windlass ui on port {running.port} does not answer ({error})", hint) from error
    finally:
        connection.close()
    return link_of(running.host, running.port, token)


# -- browsers ---------------------------------------------------------------------------------------------------------


def open_browser(home: Path, link: str) -> bool:
    """Opens a link in the user's browser; returns False if there is none, or if `home` cannot be written to.

    The browser is started with the path of a private file that redirects to the link: a link on its command line would
    be visible to all users of this machine. Later calls, and the end of a server, delete the file.
    """
    path = home / FOLDER / f"open-{secrets.token_hex(8)}.html"
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        clean_redirects(home, REDIRECT_SECONDS)
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(opened, "w", encoding="utf-8") as file:
            file.write(redirect_page(link))
    except OSError:
        return False
    return webbrowser.open(path.as_uri())


def clean_redirects(home: Path, age_seconds: float = 0.0) -> None:
    """Deletes redirect files that are at least this old."""
    for path in (home / FOLDER).glob("open-*.html"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime >= age_seconds:
                path.unlink()
