"""`metrics`, `compare` and `plot`: the metrics of runs as tables, exports and pictures."""

from __future__ import annotations

import csv
import io
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.cli.conftest import Call

from windlass.runs.metrics import MetricsFile
from windlass.spec.job import Job
from windlass.views.schema import schema_of
from windlass.worker.event_file import EventFile

Metered = Callable[..., str]


def batch(values: Sequence[Any], name: str = "loss", *, source: str = "report", rank: int = 0, start: int = 1) -> Any:
    steps = list(range(start, start + len(values)))
    times = [1e9 + step for step in steps]
    return {"rank": rank, "source": source, "name": name, "steps": steps, "times": times, "values": list(values)}


@pytest.fixture
def metered(home: Path, recorded: Callable[..., str]) -> Metered:
    """Provides a function that records an ended run with batches of metrics, one list for each attempt."""

    def record(*attempts: list[Any], name: str = "digits", run: str = "train.py --lr 0.1", **fields: Any) -> str:
        run_id = recorded(Job(name=name, run=run, **fields), 0)
        file = MetricsFile(home / "runs" / run_id)
        for number, batches in enumerate(attempts, 1):
            file.append(number, 0, 1, batches)
        return run_id

    return record


@pytest.fixture(autouse=True)
def script(home: Path) -> None:
    """Writes the script of the recorded jobs."""
    Path("train.py").write_text("print(1)\n")


def hold(what: str, data: Any) -> None:
    jsonschema.Draft202012Validator(schema_of(what)).validate(data)


def test_metrics_are_shown_with_their_last_lowest_and_highest_values(windlass: Call, metered: Metered) -> None:
    run = metered([batch([0.9, 0.25, "nan", 0.5]), batch([0.1], source="log"), batch([0.8], "acc")])
    shown = windlass("metrics", run)
    assert shown.code == 0
    assert "loss    0.5 @ 4  0.25 @ 2  0.9 @ 1  0.9    4 (1 not finite)  report" in shown.out
    assert "and 1 series of other sources and ranks" in shown.out
    assert "0.1 @ 1" in windlass("metrics", run, "loss", "--source", "log").out


def test_json_of_metrics_matches_its_schema_and_has_every_value(windlass: Call, metered: Metered) -> None:
    run = metered([batch([0.9, "inf"])], [batch([0.8], start=2)])
    found = windlass("metrics", run, "-o", "json")
    hold("metrics", found.json)
    (loss,) = found.json["metrics"]
    assert (loss["values"], loss["attempts"], loss["better"]) == ([0.9, "inf", 0.8], [1, 1, 2], "lowest")
    assert [one["attempt"] for one in found.json["restarts"]] == [2]
    assert "Infinity" not in found.out
    assert "attempt 2 began: from step 2 to 2" in windlass("metrics", run).out


def test_csv_has_a_row_with_the_exact_value_of_each_point(windlass: Call, metered: Metered) -> None:
    run = metered([batch([0.1 + 0.2]), batch([1.5], "=evil\x1b[2J", rank=1)])
    rows = list(csv.DictReader(io.StringIO(windlass("metrics", run, "-o", "csv").out)))
    assert rows[1] == {
        "metric": "loss", "source": "report", "rank": "0", "attempt": "1", "step": "1.0", "time": "1000000001.0",
        "value": "0.30000000000000004",
    }  # fmt: skip
    assert rows[0]["metric"] == "=evil�[2J"


def test_event_files_have_the_points_and_a_folder_for_each_further_rank(windlass: Call, metered: Metered) -> None:
    ranks = [batch([0.1], "step_seconds", source="node", rank=rank) for rank in range(2)]
    run = metered([batch([0.5, 0.25]), *ranks])
    written = windlass("metrics", run, "--to-tensorboard", "logs")
    assert f"wrote 3 event files in logs/{run}: tensorboard --logdir logs" in written.out
    found = {}
    for path in Path("logs").rglob("events.out.tfevents.*"):
        with path.open("rb") as file:
            points = [point for some in EventFile().read(file) for point in some]
        found[str(path.parent.relative_to(f"logs/{run}"))] = [(one.name, one.step, one.value) for one in points]
    assert found["."] == [("loss", 1, 0.5), ("loss", 2, 0.25)]
    assert set(found) == {".", "node-0", "node-1"}


def test_a_run_without_metrics_says_what_is_recorded(windlass: Call, metered: Metered) -> None:
    run = metered()
    shown = windlass("metrics", run)
    assert shown.code == 0
    assert f"{run} has no metrics. Windlass records values of windlass.train.report" in shown.out
    hold("metrics", windlass("metrics", run, "-o", "json").json)
    assert windlass("metrics", run, "-o", "csv").out == "metric,source,rank,attempt,step,time,value\n"


def test_unknown_metrics_sources_and_runs_are_refused(windlass: Call, metered: Metered) -> None:
    run = metered([batch([0.9]), batch([0.1], "acc")])
    refused = windlass("metrics", run, "los")
    assert refused.code == 2
    assert "has no metric 'los'" in refused.err
    assert "did you mean loss?; known are loss, acc" in refused.err
    assert "has no metric of rank 7" in windlass("metrics", run, "loss", "--rank", "7").err
    assert windlass("metrics", "nope").code == 102


def test_step_times_of_all_ranks_are_one_line_that_names_the_slowest(windlass: Call, metered: Metered) -> None:
    run = metered([batch([0.2 + rank / 10], "step_seconds", source="node", rank=rank) for rank in range(3)])
    assert "step_seconds of ranks 0–2: last from 0.2; the highest is 0.4 of rank 2" in windlass("metrics", run).out
    rows = list(csv.DictReader(io.StringIO(windlass("metrics", run, "step_seconds", "-o", "csv").out)))
    assert [row["rank"] for row in rows] == ["0", "1", "2"]


def test_compared_runs_show_what_differs_and_their_best_values(windlass: Call, metered: Metered) -> None:
    one = metered([batch([0.9, 0.3, 0.5])], env={"A": "1"}, timeout=60)
    other = metered([batch([0.9, 0.2])], run="train.py --lr 0.01 --amp", env={"A": "1"}, timeout=60)
    found = windlass("compare", one, other, "-o", "json").json
    hold("compare", found)
    assert [run["metrics"]["loss"]["lowest"]["value"] for run in found["runs"]] == [0.3, 0.2]
    different = {(item["kind"], item["name"]): item["values"] for item in found["differences"]}
    assert different == {("argument", "--amp"): [None, "yes"], ("argument", "--lr"): ["0.1", "0.01"]}
    shown = windlass("compare", one, other).out
    assert f"RUN        {one}  {other}" in shown
    assert "--lr       0.1           0.01" in shown
    assert "best loss  0.3           0.2" in shown
    assert "timeout" not in shown
    rows = list(csv.DictReader(io.StringIO(windlass("compare", one, other, "-o", "csv").out)))
    assert [(row["RUN"], row["--lr"], row["last loss"]) for row in rows] == [
        (one, "0.1", "0.5"),
        (other, "0.01", "0.2"),
    ]


def test_many_compared_runs_have_a_row_each(windlass: Call, metered: Metered) -> None:
    runs = [metered([batch([at / 10])], run=f"train.py --lr 0.{at}") for at in range(6)]
    shown = windlass("compare", *runs).out.splitlines()
    assert shown[0].split() == ["RUN", "PHASE", "TIME", "--lr", "last", "loss", "best", "loss"]
    assert len(shown) == 7
    assert windlass("compare", "digits").code == 2, "one run is not compared"


def test_a_plot_has_axes_a_legend_and_marks_restarts(windlass: Call, metered: Metered) -> None:
    one = metered([batch([1.0, 0.5, 0.2])], [batch([0.5, 0.1], start=2)])
    shown = windlass("plot", one, "loss")
    assert shown.code == 0, shown.err
    lines = shown.out.splitlines()
    assert lines[0] == "loss"
    assert any(line.startswith("0.2 ┤") for line in lines)
    assert "step   ┊ restart" in shown.out
    assert f"── {one}" in lines
    assert any("\u2800" < letter <= "\u28ff" for letter in shown.out)
    assert "\x1b" not in shown.out
    assert max(map(len, lines)) <= 80


def test_without_colours_each_run_of_a_plot_has_a_letter(
    windlass: Call, metered: Metered, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [metered([batch([at, at + 1])], name=f"lr-{at}") for at in (1, 2)]
    shown = windlass("plot", *runs, "loss").out
    assert f"b {runs[1]}" in shown
    assert not any("\u2800" < letter <= "\u28ff" for letter in shown)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[36m" in windlass("plot", *runs, "loss").out


def test_a_plot_skips_runs_without_the_metric_and_refuses_if_no_run_has_it(windlass: Call, metered: Metered) -> None:
    one, other = metered([batch([1.0, 2.0])]), metered([batch([1.0], "acc")])
    shown = windlass("plot", one, other, "loss")
    assert shown.code == 0
    assert f"without loss: {other}" in shown.err
    refused = windlass("plot", one, "lost")
    assert refused.code == 2
    assert "did you mean loss?" in refused.err
    assert (
        "a logarithmic axis has only values above 0" in windlass("plot", metered([batch([-1.0])]), "loss", "--log").err
    )


def test_an_svg_file_is_well_formed_and_escapes_names(windlass: Call, metered: Metered) -> None:
    run = metered([batch([1.0, 0.5], "<script>alert(1)</script>\x00&")])
    written = windlass("plot", run, "<script>*", "--svg", "curve.svg")
    assert written.code == 0, written.err
    text = Path("curve.svg").read_text()
    root = ET.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "<script" not in text
    assert "href" not in text
    assert run in text
    assert "prefers-color-scheme: dark" in text


def test_metrics_are_completed_for_the_named_run(windlass: Call, metered: Metered, monkeypatch: Any) -> None:
    run = metered([batch([1.0]), batch([1.0], "lr")])
    for words in (f"windlass metrics {run} lo", f"windlass plot {run} lo"):
        monkeypatch.setenv("_WINDLASS_COMPLETE", "fish_complete")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", "lo")
        assert "plain,loss" in windlass().out
