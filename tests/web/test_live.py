"""Open pages are told which runs have changed, and streams end with their run and with the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.until import until
from tests.web.page import Page, page_over
from tests.web.records import small_record

from windlass.runs import events
from windlass.runs.phase import Phase
from windlass.runs.store import Store
from windlass.web import live
from windlass.web.live import change_stream, log_stream
from windlass.worker.protocol import INDEX_RECORD

SECONDS = 30.0
"""Time limit of a test, on a busy machine."""


def begin(page: Page) -> Any:
    """Starts the record of a run in another connection, as its supervisor does."""
    store = Store(page.home)
    return store.create(
        "live-1", name="live", target="local", output_dir="/o", plan='{"engine":"local"}', time=1_790_000_000.0
    )


async def next_event(stream: AsyncIterator[Any], name: str) -> Any:
    """The data of the next event of this name."""
    async with asyncio.timeout(SECONDS):
        async for text in stream:
            if text.startswith(f"event: {name}\n"):
                return json.loads(text.partition("data: ")[2])
    raise AssertionError(f"the stream ended without {name}")


def test_restart_of_a_rank_reaches_an_open_page(page: Page) -> None:
    async def follow() -> None:
        writer = begin(page)
        stream = change_stream(page.site, page.changes).body_iterator  # type: ignore[attr-defined]
        assert "retry" in await anext(stream)
        await subscribed(stream)
        writer.append(events.AttemptStarted(number=1, world_size=1))
        assert await next_event(stream, "changed") == {"runs": ["live-1"]}
        writer.append(events.AttemptEnded(Phase.FAILED, reason="failure"))
        assert await next_event(stream, "changed") == {"runs": ["live-1"]}
        writer.append(events.RunEnded(Phase.FAILED, 1))
        assert await next_event(stream, "changed") == {"runs": ["live-1"]}
        await stream.aclose()

    asyncio.run(follow())


async def subscribed(stream: AsyncIterator[Any]) -> None:
    """Waits until the thread of the feed has read the record for the first time."""
    assert await next_event(stream, "changed") == {"runs": []}


def test_page_is_refreshed_when_its_stream_begins(page: Page) -> None:
    """The run may have ended after the page was rendered, and before the feed has read the record."""

    async def follow() -> None:
        for _ in range(2):  # the thread of the feed is started, and runs already
            stream = change_stream(page.site, page.changes).body_iterator  # type: ignore[attr-defined]
            assert await next_event(stream, "changed") == {"runs": []}

    asyncio.run(follow())


def test_new_run_changes_the_list(page: Page) -> None:
    async def follow() -> None:
        stream = change_stream(page.site, page.changes).body_iterator  # type: ignore[attr-defined]
        await anext(stream)
        await subscribed(stream)
        writer = begin(page)
        assert await next_event(stream, "changed") == {"runs": ["live-1"]}
        await stream.aclose()
        found = page.client.get("/runs.json?phase=active").json()["runs"]
        assert [run["id"] for run in found] == ["live-1"]
        writer.close()

    asyncio.run(follow())


def test_thread_ends_with_the_last_page(page: Page) -> None:
    async def follow() -> None:
        stream = change_stream(page.site, page.changes).body_iterator  # type: ignore[attr-defined]
        await anext(stream)
        await subscribed(stream)
        await stream.aclose()

    asyncio.run(follow())
    until(lambda: page.changes._thread is None)


def test_stream_ends_when_the_server_shuts_down(tmp_path: Path) -> None:
    async def follow() -> None:
        with page_over(tmp_path, small_record(tmp_path)) as page:
            stream = change_stream(replace(page.site, is_ending=lambda: True), page.changes).body_iterator  # type: ignore[attr-defined]
            async with asyncio.timeout(SECONDS):
                assert ["retry" in text async for text in stream] == [True]

    asyncio.run(follow())


def test_number_of_streams_is_bounded(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_STREAMS", 1)

    async def follow() -> None:
        stream = change_stream(page.site, page.changes).body_iterator  # type: ignore[attr-defined]
        await anext(stream)
        assert change_stream(page.site, page.changes).status_code == 503
        await stream.aclose()
        assert change_stream(page.site, page.changes).status_code == 200

    asyncio.run(follow())


def test_new_lines_of_a_rank_reach_an_open_page_until_the_run_ends(page: Page) -> None:
    async def follow() -> None:
        writer = begin(page)
        writer.append(events.AttemptStarted(number=1, world_size=1))
        folder = writer.store.run_dir("live-1") / "attempt-1"
        folder.mkdir()
        (folder / "rank-0.log").write_bytes(b"")
        query = {"rank": "0", "since": "1790000000"}
        stream = log_stream(page.site, "live-1", query, page.changes).body_iterator  # type: ignore[attr-defined]
        await anext(stream)
        first = asyncio.ensure_future(next_event(stream, "lines"))
        await asyncio.sleep(0)
        (folder / "rank-0.log").write_bytes(b"hello <b>\n")
        (folder / "rank-0.idx").write_bytes(INDEX_RECORD.pack(1_790_000_001 * 10**9, 10))
        found = await first
        assert [line["text"] for line in found["lines"]] == ["hello <b>"]
        writer.append(events.RunEnded(Phase.SUCCEEDED, 0))
        assert await next_event(stream, "end") == {}
        await stream.aclose()

    asyncio.run(follow())
