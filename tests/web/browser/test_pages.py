"""Every page in a browser: without errors, accessible, on a phone; lists, charts and comparison work."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from tests.web.browser.browsing import PHONE, WIDE, Tab, Visitor, findings
from tests.web.browser.conftest import HOSTILE, LARGE, Home

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow


def paths(home: Home) -> list[str]:
    """Every kind of page, over real runs and the largest generated ones."""
    many = "&".join(f"run=digits-{number:05}" for number in range(0, 300, 5))
    runs = [f"/runs/{run}" for run in (home.failed, home.wide, LARGE, HOSTILE)]
    logs = [f"/runs/{home.wide}/logs", f"/runs/{LARGE}/logs?rank=0"]
    compared = [f"/compare?run={home.good}&run={home.failed}&run={home.wide}", f"/compare?{many}"]
    return ["/", "/targets", "/disk", *runs, *logs, *compared]


def opened(tab: Tab, path: str) -> Page:
    """A page of which every part was opened and has arrived."""
    from playwright.sync_api import expect

    page = tab.go(path)
    for summary in page.locator("main > details > summary").all():
        summary.click()
    page.locator("#main").evaluate("main => main.scrollIntoView(false)")
    expect(page.locator(".htmx-request")).to_have_count(0)
    return page


@pytest.mark.parametrize(("scheme", "size"), [pytest.param("dark", WIDE, marks=pytest.mark.nightly), ("light", PHONE)])
def test_every_page_is_accessible_without_errors_and_not_too_wide(
    visitor: Visitor, home: Home, scheme: str, size: tuple[int, int]
) -> None:
    found = {}
    with visitor.tab(size, color_scheme=scheme) as tab:
        for path in paths(home):
            page = opened(tab, path)
            found[path] = findings(page)
            if page.evaluate("document.documentElement.scrollWidth") > size[0]:
                found[path].append("the page scrolls sideways")
    assert {path: some for path, some in found.items() if some} == {}


def test_list_is_filtered_sorted_and_paged(visitor: Visitor) -> None:
    from playwright.sync_api import expect

    with visitor.tab() as tab:
        page = tab.go("/")
        rows = page.locator("#runs tbody tr")
        expect(rows).to_have_count(50)
        page.get_by_role("link", name="Older").click()
        expect(page.locator("#runs")).to_contain_text("51–100 of")
        page.locator("#filter").fill("resnet50-0000")
        expect(rows).to_have_count(2)
        page.locator("[name=label]").fill("team=nobody")
        expect(page.locator("#runs")).to_contain_text("No run matches")
        page.locator("[name=label]").fill("")
        page.locator("#filter").fill("")
        page.locator("[name=phase]").select_option("lost")
        expect(page.locator("#runs")).to_contain_text("of 2,000 runs")
        page.get_by_role("link", name="Run", exact=True).click()
        expect(rows.first).to_contain_text("whisper-small-09999")
        page.get_by_role("link", name=re.compile("^Started")).click()
        expect(rows.first).to_contain_text("whisper-small-09999")
        page.get_by_role("link", name=re.compile("^Started")).click()
        expect(rows.first).to_contain_text("whisper-small-00004")


def test_live_refresh_does_not_undo_a_filter(visitor: Visitor) -> None:
    from playwright.sync_api import expect

    with visitor.tab() as tab:
        with tab.page.expect_response(lambda response: response.url.endswith("/?")):  # at the begin of the stream
            page = tab.go("/")
        held: list[Any] = []
        page.route(lambda url: url.endswith("/?"), lambda route: held.append(route))
        with page.expect_request(lambda request: request.url.endswith("/?")):
            page.locator("#runs").evaluate("one => htmx.trigger(one, 'changed')")
        with page.expect_event("requestfailed", lambda request: request.url.endswith("/?")):
            page.locator("#filter").fill("resnet50-0000")
        expect(page.locator("#runs tbody tr")).to_have_count(2)


def test_selected_runs_are_compared_by_curves_and_settings(visitor: Visitor, home: Home) -> None:
    from playwright.sync_api import expect

    with visitor.tab() as tab:
        page = tab.go("/")
        for run in (home.good, home.wide):
            page.locator("#filter").fill(run)
            page.locator(f"tr[data-run='{run}'] input").check()
        page.locator("#compare-button").click()
        expect(page.locator("h1")).to_have_text("2 runs compared")
        expect(page.locator("main")).to_contain_text(home.good)
        expect(page.locator(".u-wrap canvas").first).to_be_visible()
        expect(page.locator("main")).to_contain_text("nodes")


def test_run_page_shows_verdict_curves_ranks_and_artifacts(visitor: Visitor, home: Home) -> None:
    from playwright.sync_api import expect

    with visitor.tab() as tab:
        page = tab.go(f"/runs/{home.failed}")
        expect(page.locator("#why")).to_contain_text("the loss of rank 1 is not a number")
        page = tab.go(f"/runs/{LARGE}")
        page.locator("#ranks").scroll_into_view_if_needed()
        expect(page.locator("#metrics .u-wrap canvas").first).to_be_visible()
        expect(page.locator("#ranks")).to_contain_text("17")
        page = tab.go(f"/runs/{home.good}")
        page.locator("#artifacts > summary").click()
        with page.expect_download() as download:
            page.get_by_role("link", name="model-0.txt").click()
        assert download.value.path().read_text() == "weights"


def test_keyboard_reaches_everything(visitor: Visitor) -> None:
    from playwright.sync_api import expect

    with visitor.tab() as tab:
        page = tab.go("/")
        page.keyboard.press("Tab")
        expect(page.locator(":focus")).to_have_text("Skip to content")
        assert page.locator(":focus").evaluate("one => one.getBoundingClientRect().top >= 0")
        seen = []
        for _ in range(12):
            page.keyboard.press("Tab")
            seen.append(
                page.locator(":focus").evaluate(
                    "one => [one.id || one.name || one.textContent.trim(), getComputedStyle(one).outlineStyle]"
                )
            )
        assert [name for name, outline in seen if outline == "none"] == []
        assert [name for name, _ in seen][:4] == ["Windlass", "Runs", "Targets", "Disk"]
        page.keyboard.press("?")
        expect(page.locator("#keys")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("#keys")).to_be_hidden()
        page.keyboard.press("/")
        page.keyboard.type("bert-large-0001")
        expect(page.locator("#runs tbody tr")).to_have_count(2)
        page.keyboard.press("Escape")
        page.keyboard.press("j")
        page.keyboard.press("j")
        page.keyboard.press("k")
        page.keyboard.press("x")
        expect(page.locator("#compare-count")).to_have_text(" 1")
        page.keyboard.press("Enter")
        page.wait_for_url("**/runs/bert-large-0001*")


def test_curve_has_the_colour_of_its_run_where_others_lack_the_metric(visitor: Visitor) -> None:
    from playwright.sync_api import expect

    with visitor.tab() as tab:
        page = tab.go(f"/compare?run={HOSTILE}&run={LARGE}")
        page.get_by_label("Metric", exact=True).select_option("lr")
        keys = page.locator(".compare-chart .keys .line")
        expect(keys).to_have_count(1)
        expect(keys).to_have_class("line c1 dash0")


def test_divergence_is_shown_as_the_last_value(visitor: Visitor) -> None:
    from playwright.sync_api import expect

    def diverged(route: Any) -> None:
        found = route.fetch().json()
        for curve in found["curves"]:
            curve |= {"values": [*curve["values"][:-1], "nan"], "not_finite": 10_000}
        route.fulfill(json=found)

    with visitor.tab() as tab:
        tab.page.route("**/compare/metrics.json?*", diverged)
        page = tab.go(f"/compare?run={LARGE}")
        expect(page.locator(".compare-chart figcaption")).to_contain_text("last nan")
        expect(page.locator(".compare-chart figcaption")).to_contain_text("10,000 values are not finite")


def test_lines_of_each_rank_are_shown_once_and_whole(visitor: Visitor, home: Home) -> None:
    from playwright.sync_api import expect

    with visitor.tab() as tab:
        page = tab.go(f"/runs/{home.wide}/logs")
        view = "document.querySelector('#log').view"
        one = {"offset": -1, "rank": 1, "time": 2e9, "text": "of rank 1"}
        late = {"offset": -1, "rank": 0, "time": 1.9e9, "text": "late line of rank 0"}
        page.evaluate(f"lines => {view}.add(lines)", [one])
        page.evaluate(f"lines => {view}.add(lines)", [late, one])
        expect(page.locator("#log .lines li").last).to_contain_text("late line of rank 0")
        page.goto(f"{visitor.server.address}/runs/{home.wide}/logs?rank=0")
        last = page.locator("#log .lines li").last
        for text in ("half", "half and whole"):
            page.evaluate(f"lines => {view}.append(lines)", [{"offset": 1 << 40, "rank": 0, "time": 2e9, "text": text}])
            expect(last.locator(".text")).to_have_text(text)
        expect(page.locator("#log .lines li", has_text="half")).to_have_count(1)
