"""Targets are asked in the background: one that does not answer is shown as outdated, and delays no page."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.until import until
from tests.web.page import Page, page_over
from tests.web.records import small_record

from windlass.engines.values import Placement, RunState
from windlass.errors import EngineError
from windlass.plan.plan import NO_PLAN
from windlass.runs import events
from windlass.runs.phase import Phase
from windlass.runs.record import created
from windlass.runs.store import Store
from windlass.web import targets
from windlass.web.live import change_stream


class Cluster:
    """A target whose answer the test decides."""

    def __init__(self) -> None:
        self.asked, self.may_answer = threading.Event(), threading.Event()
        self.error: EngineError | None = None
        self.runs: list[RunState] = []

    def list(self) -> list[RunState]:
        """Answers once the test allows it."""
        self.asked.set()
        self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return self.runs


def elsewhere(run_id: str) -> RunState:
    """A run that another machine has started."""
    status = created(events.Created(run_id, "other", "lab", "/o", user="bob").event(1, 1_790_000_000.0))
    return RunState(status, 1_790_000_000.0, is_recorded=False, placement=Placement("team", 1, 2, 2))


@contextmanager
def page_with(folder: Path, cluster: Cluster) -> Iterator[Page]:
    """A page with a target `lab` that is `cluster`."""
    (folder / "targets.yaml").write_text("lab: {kind: kubernetes, context: lab, namespace: team}\n")
    run_id = small_record(folder)
    with page_over(folder, run_id, connect=lambda name, store, context: cluster) as page:
        try:
            yield page
        finally:
            cluster.may_answer.set()


def state_of(page: Page) -> Any:
    """The state of the target in the list of runs."""
    return next(one for one in page.client.get("/runs.json").json()["targets"] if one["name"] == "lab")


def test_target_that_never_answers_delays_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    with page_with(tmp_path, cluster) as page:
        monkeypatch.setattr(targets, "LATE_SECONDS", -1.0)
        for path in ("/", "/targets", f"/runs/{page.run_id}"):
            assert page.client.get(path).status_code == 200
        assert cluster.asked.wait(30)
        state = state_of(page)
        assert state["as_of"] is None
        assert state["trouble"].startswith("no response for ")
        assert "no response for " in page.client.get("/").text


def test_failed_target_shows_its_last_runs_as_outdated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    cluster.runs = [elsewhere("other-1")]
    cluster.may_answer.set()
    monkeypatch.setattr(targets, "REMOTE_SECONDS", 0.01)
    with page_with(tmp_path, cluster) as page:
        page.client.get("/")
        until(lambda: state_of(page)["as_of"] is not None)
        rows = {run["id"]: run for run in page.client.get("/runs.json").json()["runs"]}
        assert (rows["other-1"]["is_recorded"], rows["other-1"]["stale"]) == (False, "")
        cluster.error = EngineError("lab cannot be reached <b>")
        until(lambda: state_of(page)["trouble"] == "lab cannot be reached <b>")
        rows = {run["id"]: run for run in page.client.get("/runs.json").json()["runs"]}
        assert rows["other-1"]["stale"] == "lab cannot be reached <b>"
        assert "reached <b>" not in page.client.get("/").text
        [lab] = [one for one in page.client.get("/targets.json").json()["targets"] if one["state"]["name"] == "lab"]
        assert (lab["num_active"], lab["state"]["place"]) == (1, "lab team")


def test_targets_are_not_asked_without_a_page(tmp_path: Path) -> None:
    cluster = Cluster()
    with page_with(tmp_path, cluster):
        assert not cluster.asked.is_set()


def test_unfinished_run_of_a_target_without_a_file_is_outdated(tmp_path: Path) -> None:
    with page_over(tmp_path, small_record(tmp_path)) as page:
        assert page.site.targets.stale("local") == ("", None)
        assert page.site.targets.stale("gone") == ("gone is in no targets file here, and is not asked", None)


def test_damaged_targets_file_leaves_the_runs_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "targets.yaml").write_text("lab: {kind: [\n")
    with page_over(tmp_path, small_record(tmp_path)) as page:
        found = page.client.get("/runs.json").json()
        assert [one["name"] for one in found["targets"]] == ["local"]
        assert [run["id"] for run in found["runs"]] == [page.run_id]


def test_targets_are_asked_as_long_as_a_page_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An open page makes no request until something changes; its stream of changes is its only sign of life."""
    cluster = Cluster()
    cluster.may_answer.set()
    monkeypatch.setattr(targets, "REMOTE_SECONDS", 0.01)
    with page_with(tmp_path, cluster) as page:
        monkeypatch.setattr(targets, "UNUSED_SECONDS", 0.0)
        page.client.get("/")
        until(lambda: not page.site.targets._has_use.is_set())
        monkeypatch.undo()
        cluster.asked.clear()

        async def follow() -> None:
            stream = change_stream(page.site, page.changes).body_iterator  # type: ignore[attr-defined]
            await anext(stream)
            turn = asyncio.ensure_future(anext(stream))
            await asyncio.to_thread(until, cluster.asked.is_set)
            turn.cancel()

        asyncio.run(follow())


def ended_in_the_cluster(page: Page) -> str:
    """The id of an ended run of the target `lab`, whose metrics were not copied."""
    plan = replace(NO_PLAN, run_id="lab-1", engine="local", target="lab").to_text()
    with Store(page.home) as store:
        writer = store.create("lab-1", name="lab", target="lab", output_dir="/o", plan=plan, time=1.0)
        writer.append(events.RunEnded(Phase.SUCCEEDED, 0))
        writer.close()
    return "lab-1"


def test_metrics_that_were_not_copied_yet_are_unknown_rather_than_none(tmp_path: Path) -> None:
    cluster = Cluster()
    with page_with(tmp_path, cluster) as page:
        run_id = ended_in_the_cluster(page)

        def notes() -> list[str]:
            paths = (f"/runs/{run_id}/metrics.json", f"/compare.json?run={run_id}")
            return [page.client.get(path).json()["note"] for path in paths]

        why = "not on this machine: lab has not answered yet."
        assert notes() == [f"The metrics are {why}", f"The metrics of 1 of 1 runs are {why}"]
        cluster.may_answer.set()
        until(lambda: notes()[0] == "")
        assert notes()[1] == "None of these runs has metrics."


@pytest.mark.parametrize("path", ["/runs/lab-1/metrics.json", "/compare?run=lab-1"])
def test_copied_metrics_reach_an_open_page(tmp_path: Path, path: str) -> None:
    cluster = Cluster()
    with page_with(tmp_path, cluster) as page:
        ended_in_the_cluster(page)

        async def follow() -> None:
            stream = change_stream(page.site, page.changes).body_iterator  # type: ignore[attr-defined]
            await anext(stream)
            assert '"runs": []' in await anext(stream)
            await asyncio.to_thread(page.client.get, path)
            cluster.may_answer.set()
            while '"runs": ["lab-1"]' not in await anext(stream):
                pass

        asyncio.run(follow())


def test_open_page_learns_that_a_target_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    monkeypatch.setattr(targets, "LATE_SECONDS", -1.0)
    with page_with(tmp_path, cluster) as page:

        async def follow() -> None:
            stream = change_stream(page.site, page.changes).body_iterator  # type: ignore[attr-defined]
            await anext(stream)
            assert '"runs": []' in await anext(stream)
            await asyncio.to_thread(page.client.get, "/")
            async with asyncio.timeout(30):
                assert '"runs": []' in await anext(stream)

        asyncio.run(follow())
