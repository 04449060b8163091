"""The application of the page over a store, with a client that has a session."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from starlette.testclient import TestClient

from windlass.actions.runs import connect
from windlass.runs.context import Context
from windlass.runs.store import Store
from windlass.services.browser_access import Sessions, cookie_name
from windlass.web.app import make_app
from windlass.web.live import ChangeFeed
from windlass.web.security import csrf_token
from windlass.web.site import Records, Site
from windlass.web.targets import TargetPoller

PORT = 8421
BASE = f"http://127.0.0.1:{PORT}"


@dataclass
class Page:
    """A page, and a client whose browser has a session."""

    app: Any
    site: Site
    client: TestClient
    csrf: str
    run_id: str
    home: Path
    changes: ChangeFeed

    def stranger(self) -> TestClient:
        """A client without a session."""
        return TestClient(self.app, BASE, follow_redirects=False)

    def post(self, action: str, form: Mapping[str, str]) -> httpx2.Response:
        """Sends a form as a browser sends that of this page."""
        path = f"/runs/{self.run_id}/actions/{action}"
        return self.client.post(path, data=dict(form), headers={"origin": BASE, "sec-fetch-site": "same-origin"})

    def note(self) -> str:
        """The note on the run."""
        with Store(self.home) as store:
            return store.status(self.run_id).about.note


@contextlib.contextmanager
def page_over(
    folder: Path, run_id: str, *, may_act: bool = False, connect: Callable[..., Any] = connect
) -> Iterator[Page]:
    """Yields the page of the home `folder / "home"`; `connect` returns the engine of a target."""
    home = folder / "home"
    context = Context({"WINDLASS_HOME": str(home), "HOME": str(folder)}, folder)
    records = Records(context)
    changes = ChangeFeed(records)
    targets = TargetPoller(context, records, changes.notify, connect)
    site = Site(context, records, Sessions(), targets, may_act, "secret-of-open")
    app = make_app(site, "127.0.0.1", PORT, changes)
    found = site.sessions.exchange(site.sessions.new_token())
    assert found is not None
    client = TestClient(app, BASE, cookies={cookie_name(PORT): found[0]}, follow_redirects=False)
    try:
        yield Page(app, site, client, csrf_token(found[0]), run_id, home, changes)
    finally:
        targets.close()
        site.disk.wait(300)
        records.close()
