"""A real `windlass ui`, and tabs of a real browser that record everything that goes wrong in them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from tests.helpers.machine import Machine

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page, StorageState

RULES: Final = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
GRAVE: Final = ("serious", "critical")
MAX_BYTES: Final = 200_000
"""Maximum size of a page, and of each part that a page loads."""
WAIT_MS: Final = 60_000
"""Milliseconds until an expectation fails. A busy machine is slow, not wrong."""
WIDE: Final = (1280, 900)
PHONE: Final = (390, 844)


@dataclass(frozen=True)
class Server:
    """A running `windlass ui`."""

    machine: Machine
    address: str
    link: str
    """One-time link that the server has printed."""

    @property
    def port(self) -> int:
        return urlsplit(self.address).port or 0

    def new_link(self, *words: str) -> str:
        """Another one-time link, by `windlass open`."""
        done = self.machine.windlass("open", "--no-open", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@contextlib.contextmanager
def serving(machine: Machine, *options: str) -> Iterator[Server]:
    """A server of the machine's home, ended as by Ctrl-C."""
    process = machine.start("ui", "--no-open", "--port", "0", *options)
    assert process.stdout is not None
    try:
        link = process.stdout.readline().strip()
        parts = urlsplit(link)
        assert parts.query.startswith("token="), f"no link: {link} {process.poll()}"
        yield Server(machine, f"{parts.scheme}://{parts.netloc}", link)
    finally:
        os.kill(process.pid, signal.SIGINT)
        process.communicate()


@dataclass
class Tab:
    """A page of the browser, with what went wrong in it."""

    page: Page
    server: Server
    troubles: list[str] = field(default_factory=list)
    """Console errors (as of the content policy), exceptions, dialogs, failed requests, error statuses, large pages."""

    def __post_init__(self) -> None:
        self.page.set_default_timeout(WAIT_MS)
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self._add(True, f"exception: {error}"))
        self.page.on("dialog", self._asked)
        # A request that ends because its page is left has not failed.
        self.page.on(
            "requestfailed",
            lambda request: self._add(
                request.failure != "net::ERR_ABORTED", f"failed: {request.url} {request.failure}"
            ),
        )
        self.page.on("response", self._responded)

    def _add(self, is_wrong: bool, text: str) -> None:
        if is_wrong:
            self.troubles.append(text)

    def _said(self, message: Any) -> None:
        # htmx reports a request that a newer one replaces
        is_replaced = message.text.startswith(("htmx:sendAbort", "htmx:afterRequest"))
        self._add(message.type in ("error", "warning") and not is_replaced, f"console: {message.text}")

    def _asked(self, dialog: Any) -> None:
        self._add(True, f"dialog: {dialog.message}")
        dialog.dismiss()

    def _responded(self, response: Any) -> None:
        size = int(response.headers.get("content-length", "0"))
        self._add(response.status >= 400, f"status {response.status}: {response.url}")
        self._add(size > MAX_BYTES, f"{size:,} bytes: {response.url}")

    def go(self, path: str) -> Page:
        """Loads a page of the server."""
        self.page.goto(f"{self.server.address}{path}")
        return self.page

    def require_no_trouble(self) -> None:
        assert self.troubles == []


@dataclass(frozen=True)
class Visitor:
    """A browser with a session on a server."""

    browser: Browser
    server: Server
    state: StorageState

    @contextlib.contextmanager
    def tab(self, size: tuple[int, int] = WIDE, **options: Any) -> Iterator[Tab]:
        """A tab of its own, in which nothing may go wrong."""
        with stranger(self.browser, size, storage_state=self.state, **options) as context:
            tab = Tab(context.new_page(), self.server)
            yield tab
            tab.require_no_trouble()


@contextlib.contextmanager
def stranger(browser: Browser, size: tuple[int, int] = WIDE, **options: Any) -> Iterator[BrowserContext]:
    """A browser context without a session."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, **options)
    try:
        yield context
    finally:
        context.close()


def visiting(browser: Browser, server: Server) -> Visitor:
    """Opens the server's link."""
    with stranger(browser) as context:
        page = context.new_page()
        page.goto(server.link)
        page.wait_for_url(lambda url: "/start" not in url)
        return Visitor(browser, server, context.storage_state())


def findings(page: Page) -> list[str]:
    """The serious and critical findings of axe-core 4 on a page."""
    import axe_playwright_python  # a package with the script; an environment without it can collect the tests

    page.evaluate(Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text())
    found = page.evaluate("rules => axe.run(document, {runOnly: rules, resultTypes: ['violations']})", list(RULES))
    return [
        f"{one['id']} ({one['impact']}): {node['html'][:200]} {node.get('failureSummary', '')[:300]}"
        for one in found["violations"]
        if one["impact"] in GRAVE
        for node in one["nodes"]
    ]
