"""Logs in a browser: the end, any position and any line of a log of ten million lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.helpers.machine import machine_in
from tests.web.browser.browsing import Visitor, serving, visiting
from tests.web.records import large_run

from windlass.worker.protocol import INDEX_RECORD

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow
LINES = 10_000_000
BLOCK = 100_000


@pytest.fixture
def reader(tmp_path: Path, browser: Browser) -> Iterator[Visitor]:
    """A browser on the server of a home with one run, whose rank 0 has written ten million lines (100 MB)."""
    run_id = large_run(tmp_path, ranks=8)
    with machine_in(tmp_path) as machine:
        folder = machine.home / "runs" / run_id / "attempt-3"
        with open(folder / "rank-0.log", "wb") as log, open(folder / "rank-0.idx", "wb") as index:
            for first in range(0, LINES, BLOCK):
                log.write("".join(f"{number:08}\n" for number in range(first, first + BLOCK)).encode())
                index.write(INDEX_RECORD.pack((1_790_000_000 + first // BLOCK) * 10**9, log.tell()))
        with serving(machine) as server:
            yield visiting(browser, server)


def test_ten_million_lines_are_read_from_both_ends_and_searched(reader: Visitor) -> None:
    from playwright.sync_api import expect

    with reader.tab() as tab:
        page = tab.go("/runs/bert-large-big01/logs?rank=0")
        lines = page.locator("#log .lines")
        expect(lines.locator("li").last).to_contain_text("09999999")
        lines.press("Home")
        expect(lines.locator("li").first).to_contain_text("00000000")
        lines.press("End")
        expect(lines.locator("li").last).to_contain_text("09999999")
        page.locator("[name=find]").fill("07654321")
        page.locator("[name=find]").press("Enter")
        page.locator(".hits button").click()
        expect(lines.locator(".hit")).to_contain_text("07654321")
        expect(lines.locator("li").first).not_to_contain_text("0999")
        assert lines.locator("li").count() <= 600
