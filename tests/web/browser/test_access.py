"""What other pages, other names of this machine and hostile texts can do to the page in a browser: nothing."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.web.browser.browsing import Tab, Visitor, stranger
from tests.web.browser.conftest import HOSTILE, Home
from tests.web.records import HOSTILE as SCRIPT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow


@pytest.fixture
def attacker() -> Iterator[list[str]]:
    """A server of another site, which answers with the first text of the returned list; its address is the second."""
    answers = ["", ""]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(answers[0].encode())

        def log_message(self, *words: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        answers[1] = f"http://attacker.example:{server.server_address[1]}/"
        yield answers
        server.shutdown()
        thread.join()


def heading(page: Page) -> str:
    return page.locator("h1").inner_text()


def test_page_needs_a_link_and_each_link_works_once(browser: Browser, visitor: Visitor) -> None:
    with stranger(browser) as context:
        page = context.new_page()
        for path in ("/", "/runs.json", f"/runs/{HOSTILE}"):
            response = page.goto(f"{visitor.server.address}{path}")
            assert response is not None
            assert response.status == 401
        link = visitor.server.new_link(HOSTILE)
        page.goto(link)
        page.wait_for_url(f"**/runs/{HOSTILE}")
        assert HOSTILE in heading(page)
    with stranger(browser) as context:
        page = context.new_page()
        response = page.goto(link)
        assert response is not None
        assert response.status == 403
        assert "used already" in heading(page)


def test_other_name_of_this_machine_is_refused(visitor: Visitor) -> None:
    with stranger(visitor.browser, storage_state=visitor.state) as context:
        page = context.new_page()
        name = f"rebound.example:{visitor.server.port}"
        cookie = visitor.state["cookies"][0]
        context.add_cookies([{"name": cookie["name"], "value": cookie["value"], "url": f"http://{name}/"}])
        response = page.goto(f"http://{name}/runs.json")
        assert response is not None
        assert response.status == 403
        assert "Host" in response.text()


@pytest.mark.parametrize("host", ["127.0.0.1", "attacker.example"])
def test_form_of_another_site_changes_nothing(acting: Visitor, home: Home, attacker: list[str], host: str) -> None:
    action = f"{acting.server.address}/runs/{home.good}/actions/note"
    attacker[0] = f'<form method="post" action="{action}"><input name="text" value="stolen"></form>'
    with stranger(acting.browser, storage_state=acting.state) as context:
        page = context.new_page()
        page.goto(attacker[1].replace("attacker.example", host))
        with page.expect_navigation():
            page.locator("form").evaluate("form => form.submit()")
        assert page.url == action
        refusals = ("This browser has no session", "Another site has sent the request")
        assert heading(page) in refusals
        page.goto(f"{acting.server.address}/runs/{home.good}")
        assert "stolen" not in page.content()


def test_note_is_written_by_the_form_of_the_page(acting: Visitor, home: Home) -> None:
    from playwright.sync_api import expect

    with acting.tab() as tab:
        page = tab.go(f"/runs/{home.wide}")
        page.locator("#do-note").click()
        page.locator("textarea").fill(f"{SCRIPT} <b>bold</b>")
        page.get_by_role("button", name="Save").click()
        expect(page.locator("#head")).to_contain_text("<b>bold</b>")
        assert page.locator("#head b").count() == 0


def test_script_in_notes_logs_names_and_metrics_is_text(visitor: Visitor) -> None:
    """An executed script opens a dialog, which the tab reports."""
    from playwright.sync_api import expect

    with visitor.tab() as tab:
        page = tab.go("/?text=digits-7f3k2")
        expect(page.locator("#runs")).to_contain_text(SCRIPT)
        page = tab.go(f"/runs/{HOSTILE}")
        expect(page.locator("#why")).to_contain_text("<script>")
        expect(page.locator("#metrics")).to_contain_text(f"acc {SCRIPT}")
        page.locator("#artifacts > summary").click()
        expect(page.locator("#artifacts")).to_contain_text("<script>alert")
        page.locator("#logs").scroll_into_view_if_needed()
        expect(page.locator("#log .lines")).to_contain_text(SCRIPT)
        search(tab, "line 7 ")
        page = tab.go(f"/compare?run={HOSTILE}&run={SCRIPT}")
        expect(page.locator("main")).to_contain_text("is not recorded")
        page.goto(f"{visitor.server.address}/?text={SCRIPT}&label=a{SCRIPT}")
        expect(page.locator("#filter")).to_have_value(SCRIPT)


def search(tab: Tab, text: str) -> None:
    from playwright.sync_api import expect

    tab.page.locator("[name=find]").fill(text)
    tab.page.locator("[name=find]").press("Enter")
    expect(tab.page.locator(".hits")).to_contain_text(SCRIPT)
