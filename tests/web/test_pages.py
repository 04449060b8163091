"""Pages and their JSON have the same view; lists are filtered, ordered and bounded; hostile text is escaped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.web.page import Page, page_over
from tests.web.records import HOSTILE, large_run, many_runs, small_record

from windlass.engines.sagemaker.description import write_description
from windlass.runs.phase import Phase
from windlass.runs.store import RunAbout, Store
from windlass.runs.time_accounting import Spent
from windlass.views.schema import schema_of
from windlass.web.pages import _equal_parts, _run_rows
from windlass.web.site import Measurement

MAX_BYTES = 200_000
TWINS = {
    "/runs.json": "page-runs",
    "/targets.json": "page-targets",
    "/disk.json": "page-disk",
    "/disk/use.json": "page-disk-use",
    "/compare.json?run={0}&run=none-xxxxx": "page-compare",
    "/compare/metrics.json?run={0}&name=loss": "page-compare-metrics",
    "/runs/{0}.json": "page-run",
    "/runs/{0}/head.json": "page-run",
    "/runs/{0}/why.json": "page-run-why",
    "/runs/{0}/time.json": "page-run-time",
    "/runs/{0}/events.json": "page-run-events",
    "/runs/{0}/plan.json": "page-run-plan",
    "/runs/{0}/environment.json": "page-run-environment",
    "/runs/{0}/checkpoints.json": "page-run-checkpoints",
    "/runs/{0}/artifacts.json": "page-run-artifacts",
    "/runs/{0}/logs.json": "page-run-logs",
    "/runs/{0}/logs/lines.json?attempt=1&rank=0": "page-run-logs-lines",
    "/runs/{0}/logs/search.json?text=line&attempt=1&rank=0": "page-run-logs-search",
    "/runs/{0}/metrics.json?name=loss": "page-run-metrics",
    "/runs/{0}/heatmap.json": "page-run-heatmap",
}
PATHS = ("/", "/targets", "/disk", "/disk/use", "/compare?run={0}", "/runs/{0}", "/runs/{0}/head", "/runs/{0}/why",
         "/runs/{0}/time", "/runs/{0}/events", "/runs/{0}/plan", "/runs/{0}/environment", "/runs/{0}/checkpoints",
         "/runs/{0}/artifacts", "/runs/{0}/logs")  # fmt: skip


def json_of(page: Page, path: str) -> Any:
    found = page.client.get(path.format(page.run_id))
    assert found.status_code == 200, found.text
    return found.json()


@pytest.mark.parametrize("path", TWINS)
def test_json_of_each_page_has_the_published_schema(page: Page, path: str) -> None:
    jsonschema.validate(json_of(page, path), schema_of(TWINS[path]))


def test_json_of_errors_has_the_published_schema(page: Page) -> None:
    for path, status in (("/runs/none-xxxxx.json", 404), ("/runs.json?phase=odd", 400), ("/nothing.json", 404)):
        found = page.client.get(path)
        assert found.status_code == status
        jsonschema.validate(found.json(), schema_of("page-error"))


@pytest.mark.parametrize("path", PATHS)
def test_text_of_scripts_and_users_is_escaped_on_each_page(page: Page, path: str) -> None:
    found = page.client.get(path.format(page.run_id))
    assert found.status_code == 200
    assert HOSTILE not in found.text
    assert "<script>alert" not in found.text


def test_hostile_text_is_on_the_pages_that_show_it(page: Page) -> None:
    for path in ("/", "/runs/{0}", "/runs/{0}/events", "/runs/{0}/logs", "/runs/{0}/plan"):
        assert "alert(" in page.client.get(path.format(page.run_id)).text, path


def test_no_page_has_inline_script_or_style(page: Page) -> None:
    for path in PATHS:
        text = page.client.get(path.format(page.run_id)).text
        assert " style=" not in text
        assert "<style" not in text
        assert " onclick=" not in text
        assert "hx-on" not in text
        assert text.count("<script") == text.count('<script src="/static/')


def test_failed_run_begins_with_its_verdict(page: Page) -> None:
    found = json_of(page, "/runs/{0}.json")
    assert found["needs_attention"]
    assert found["ranks"] == {"running": 1, "succeeded": 0, "failed": 1, "failures": {"0": 1}}
    assert [piece["spent"] for piece in found["strip"]] == ["queued", "starting", "training"]
    assert f"/runs/{page.run_id}/why" in page.client.get(f"/runs/{page.run_id}").text


def test_unknown_run_is_not_found(page: Page) -> None:
    for path in ("", "/why", "/logs", "/artifacts", "/metrics.json", "/logs/live", "/artifacts/files/model.txt"):
        assert page.client.get(f"/runs/none-xxxxx{path}").status_code == 404


def test_time_that_the_target_bills_is_shown(tmp_path: Path) -> None:
    run_id = small_record(tmp_path, engine="sagemaker")
    with Store(tmp_path / "home") as store:
        seconds = {"TrainingTimeInSeconds": 100, "BillableTimeInSeconds": 30}
        write_description(store.run_dir(run_id) / "attempt-1", {"ResourceConfig": {"InstanceCount": 2}, **seconds})
    with page_over(tmp_path, run_id) as page:
        billed = json_of(page, "/runs/{0}/time.json")["billed"]
        assert billed == {"node_seconds": 60, "used_node_seconds": 200, "cost": None}
        assert "<dt>Billed</dt><dd>1m" in page.client.get(f"/runs/{run_id}/time").text


def test_run_that_is_removed_meanwhile_is_left_out_of_a_list(page: Page) -> None:
    with page.site.records.open() as store:
        [row] = store.rows(page.site.abouts)
        found = _run_rows(page.site, store, [row._replace(id="gone-1"), row], {}, 0.0)
    assert [one.id for one in found] == [page.run_id]


def test_disk_use_is_not_shown_before_it_is_measured(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page.site.disk, "get", lambda *given, **more: None)
    found = page.client.get("/disk/use")
    assert (found.status_code, "Measuring" in found.text, "0 B" in found.text) == (200, True, False)


def test_json_of_the_list_has_its_filters(page: Page) -> None:
    assert 'href="/runs.json?text=digits&amp;sort=name"' in page.client.get("/?text=digits&sort=name").text


def test_older_events_end_before_the_given_number(page: Page) -> None:
    newest = json_of(page, "/runs/{0}/events.json")["events"][0]["seq"]
    found = json_of(page, f"/runs/{{0}}/events.json?before={newest}")["events"]
    assert [row["seq"] for row in found] == list(range(newest - 1, 0, -1))


def test_part_of_a_long_run_has_the_purpose_of_most_of_its_time() -> None:
    pieces = [[float(at), at + 1.0, Spent.TRAINING if at % 10 else Spent.CHECKPOINTING] for at in range(1000)]
    assert _equal_parts(pieces, 100) == [[0.0, 1000.0, Spent.TRAINING]]


# -- ten thousand runs, a thousand ranks ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A page over 10,000 ended runs, and one active run of 1,000 ranks."""
    folder = tmp_path_factory.mktemp("crowd")
    many_runs(folder)
    with page_over(folder, large_run(folder)) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("path", [*PATHS, *TWINS])
def test_no_page_exceeds_200_kb(crowd: Page, path: str) -> None:
    ids = [f"digits-{at:05}" for at in range(0, 1000, 5)]
    several = "&".join(f"run={one}" for one in ids)
    path = path.replace("run={0}&run=none-xxxxx", several).replace("run={0}", several)
    found = crowd.client.get(path.format(crowd.run_id))
    assert found.status_code == 200
    assert len(found.content) < MAX_BYTES


@pytest.mark.slow
def test_list_of_ten_thousand_runs_is_filtered_ordered_and_paged(crowd: Page) -> None:
    def ids(query: str) -> list[str]:
        return [run["id"] for run in json_of(crowd, f"/runs.json?{query}")["runs"]]

    whole = json_of(crowd, "/runs.json")
    assert (whole["total"], whole["pages"], len(whole["runs"])) == (10_001, 201, 50)
    assert ids("")[0] == "whisper-small-09999"
    assert ids("page=201") == ["digits-00000"]
    assert ids("page=9999") == ["digits-00000"]
    assert ids("sort=created&reverse=1")[0] == "digits-00000"
    assert ids("sort=name")[0] == "bert-large-09996"
    # The large run has no supervisor: it is active until the page has noticed that, and failed then.
    assert json_of(crowd, "/runs.json?phase=failed&text=resnet50")["total"] == 2000
    assert json_of(crowd, "/runs.json?text=LLAMA")["total"] == 2000
    assert json_of(crowd, "/runs.json?text=digits-*5")["total"] == 1000
    assert json_of(crowd, "/runs.json?label=sweep=lr3&phase=failed")["total"] > 0
    assert {run["labels"]["sweep"] for run in json_of(crowd, "/runs.json?label=sweep=lr3")["runs"]} == {"lr3"}


# -- the record -------------------------------------------------------------------------------------------------------


def test_rows_follow_the_phase_of_a_run_whose_name_is_known(tmp_path: Path) -> None:
    from windlass.runs.events import PhaseEntered

    with Store(tmp_path / "home") as store:
        writer = store.create(
            "digits-1",
            name="digits",
            target="lab",
            output_dir="/o",
            plan='{"engine":"local"}',
            time=1.0,
            labels={"a": "b"},
        )
        known: dict[str, RunAbout] = {}
        [row] = store.rows(known)
        assert (row.phase, row.about) == (Phase.QUEUED, RunAbout("digits", "lab", {"a": "b"}))
        before, version = store.marks(), store.changes()
        with Store(tmp_path / "home") as other:
            writer.store = other
            writer.append(PhaseEntered(Phase.TRAINING))
        assert store.changes() != version
        assert store.marks() != before
        assert store.rows(known)[0].phase is Phase.TRAINING
        assert store.count_all() == 1
        writer.close()


def test_measurement_answers_with_the_last_value_while_the_next_is_made() -> None:
    import threading

    may_end = threading.Event()
    one: Measurement[int] = Measurement()
    assert one.get(lambda: 1, age_seconds=0, wait_seconds=10) == 1
    assert one.get(lambda: 2 if may_end.wait(10) else 0, age_seconds=0, wait_seconds=10) == 1
    may_end.set()
    one.wait(10)
    assert one.get(lambda: 3, age_seconds=60, wait_seconds=0) == 2
