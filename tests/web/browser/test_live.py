"""Pages follow a real run while they are open."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from tests.helpers.machine import Machine
from tests.helpers.until import until
from tests.web.browser.browsing import Visitor, serving, visiting

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow
TRAIN = """
import os, time
from windlass import train
step = 0
while not os.path.exists(f"end-{os.environ['RANK']}"):
    train.report(step=step, loss=1 / (step + 1))
    print(f"step {step}", flush=True)
    step += 1
    time.sleep(0.05)
raise SystemExit(int(open(f"end-{os.environ['RANK']}").read()))
"""
WATCH = """
([selector, text]) => new Promise(done => {
  const isShown = () => document.querySelector(selector)?.textContent.includes(text);
  const look = () => { if (isShown()) done(Date.now() / 1000); };
  new MutationObserver(look).observe(document.body, {childList: true, subtree: true, characterData: true});
  look();
})
"""
"""Resolves with the Unix time at which an element with a text is in the page."""


@pytest.fixture
def follower(machine: Machine, browser: Browser) -> Iterator[Visitor]:
    """A browser with a session on the server of a home that has no run yet."""
    with serving(machine) as server:
        yield visiting(browser, server)


def started(machine: Machine, *words: str) -> str:
    """The id of a run whose ranks have reported steps."""
    machine.write("train.py", TRAIN)
    done = machine.windlass("run", "--detach", "-q", "--procs-per-node", "2", *words, "train.py")
    assert done.returncode == 0, done.stderr
    run_id = done.stdout.strip()
    until(lambda: (machine.status(run_id).get("progress") or {}).get("step"))
    return run_id


def pid_of(machine: Machine, rank: int) -> int:
    return next(one.pid for one in machine.ranks() if one.rank == rank)


def event_of(machine: Machine, kind: str, **data: Any) -> float:
    """The time of the record's event of a kind with these data."""

    def found() -> list[float]:
        return [one["time"] for one in machine.events() if one["kind"] == kind and data.items() <= one.items()]

    return until(found)[0]


def watched(page: Page, selector: str, text: str) -> Any:
    """Begins to wait for a text in the page, and returns a handle with the time at which it was there."""
    return page.evaluate_handle(f"parts => {{ window.seen = ({WATCH})(parts); }}", [selector, text])


def test_restart_of_a_killed_rank_is_shown_within_a_second(machine: Machine, follower: Visitor) -> None:
    run_id = started(machine, "--restarts", "9")
    late = []
    with follower.tab() as tab:
        page = tab.go(f"/runs/{run_id}")
        for attempt in (2, 3, 4):
            watched(page, "#head .facts", f"Attempts{attempt}")
            os.kill(pid_of(machine, 1), signal.SIGKILL)
            late.append(page.evaluate("window.seen") - event_of(machine, "attempt", number=attempt))
    assert min(late) < 1.0, late  # of three, since this machine may be busy in any second


def test_new_run_its_steps_and_its_log_lines_appear(machine: Machine, follower: Visitor) -> None:
    from playwright.sync_api import expect

    with follower.tab() as tab:
        page = tab.go("/")
        expect(page.locator("#runs")).to_contain_text("There are no runs yet")
        run_id = started(machine)
        expect(page.locator(f"tr[data-run={run_id}]")).to_contain_text("training")
        page.get_by_role("link", name=run_id).click()
        page.locator("#logs").scroll_into_view_if_needed()
        lines = page.locator("#log .lines li")
        expect(lines.last).to_contain_text("step")
        before = lines.last.text_content()
        expect(lines.last).not_to_have_text(before or "")


def test_verdict_of_a_failure_appears_while_the_page_is_open(machine: Machine, follower: Visitor) -> None:
    from playwright.sync_api import expect

    run_id = started(machine)
    with follower.tab() as tab:
        page = tab.go(f"/runs/{run_id}")
        expect(page.locator("#live")).to_have_text("live")
        machine.write("end-1", "7")
        expect(page.locator("h1")).to_contain_text("failed")
        expect(page.locator("#why")).to_contain_text("Fix")
        expect(page.locator("#why")).to_contain_text("7")
