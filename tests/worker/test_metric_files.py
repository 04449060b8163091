"""Files with metrics: found by name and content, each value once, and nothing of other runs, attempts or data sets."""

from __future__ import annotations

import json
import os
import selectors
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.runs.event_files import write_event_file
from windlass.runs.metrics import Series
from windlass.worker.event_file import Damaged
from windlass.worker.metric_files import FilePoint, MetricFiles, folders_of
from windlass.worker.metric_scans import MetricScans
from windlass.worker.metric_tables import CsvFile, cells_of, columns_of
from windlass.worker.output_events import OutputEvents
from windlass.worker.protocol import NodeSpec, RankSpec

Row = tuple[str, str, float | None, float]
KERAS = "epoch,accuracy,loss\r\n0,0.5,1.5\r\n1,0.75,1.0\r\n"
ULTRALYTICS = "                  epoch,         train/box_loss\n                  1,                 2.5\n"
LIGHTNING = "epoch,step,train_loss\n0,9,0.5\n0,19,0.25\n"


class Run:
    """Folders of a run, and the scans of an attempt in them."""

    def __init__(self, folder: Path) -> None:
        self.code, self.output = folder / "code", folder / "output"
        self.code.mkdir()
        self.output.mkdir()
        self.begin()

    def begin(self, **env: str) -> None:
        """Begins an attempt."""
        folders = folders_of({"WINDLASS_OUTPUT_DIR": str(self.output), **env}, str(self.code))
        self.files = MetricFiles(*folders, since=self.code.stat().st_mtime)
        self.files.skip_existing(60.0)

    def write(self, name: str, text: str | bytes, mode: str = "w") -> Path:
        path = self.code / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, mode.rstrip("b") + "b") as file:
            file.write(text.encode() if isinstance(text, str) else text)
        return path

    def write_events(self, name: str, *values: float, tag: str = "loss", pid: int = 1, host: str = "h") -> Path:
        count = len(values)
        path = self.write(f"{name}/events.out.tfevents.1790000000.{host}.{pid}.0", "")
        one = Series(tag, "", 0, (1,) * count, tuple(map(float, range(count))), (1e9,) * count, values)
        write_event_file(path, [one])
        return path

    def scan(self) -> list[Row]:
        return [row_of(one) for one in self.files.scan(60.0)]

    def names(self) -> list[str]:
        return sorted({f"{source}: {name}" for source, name, _, _ in self.scan()})


def row_of(found: FilePoint) -> Row:
    return found.source, found.point.name, found.point.step, found.point.value


def state(*entries: dict[str, Any]) -> str:
    return json.dumps({"best_metric": None, "log_history": entries})


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


# -- kinds of files ---------------------------------------------------------------------------------------------------


def test_csv_of_keras_has_epochs_as_steps(run: Run) -> None:
    run.write("training.log", KERAS)
    assert run.scan() == [
        ("csv", "accuracy", 0, 0.5), ("csv", "loss", 0, 1.5), ("csv", "accuracy", 1, 0.75), ("csv", "loss", 1, 1.0)
    ]  # fmt: skip
    assert run.scan() == []


def test_names_in_a_header_with_spaces_are_stripped(run: Run) -> None:
    run.write("runs/detect/train/results.csv", ULTRALYTICS)
    assert run.scan() == [("csv", "train/box_loss", 1, 2.5)]


def test_csv_that_lightning_writes_anew_with_more_columns_gives_each_row_once(run: Run) -> None:
    run.write("lightning_logs/version_0/metrics.csv", LIGHTNING)
    assert run.scan() == [("lightning", "train_loss", 9, 0.5), ("lightning", "train_loss", 19, 0.25)]
    run.write("lightning_logs/version_0/metrics.csv", "epoch,step,train_loss,val_loss\n0,9,0.5,\n")
    assert run.scan() == []  # is being written
    run.write("lightning_logs/version_0/metrics.csv", "0,19,0.25,\n0,19,,0.75\n", "a")
    assert run.scan() == [("lightning", "val_loss", 19, 0.75)]
    run.write("lightning_logs/version_0/metrics.csv", "1,29,0.125,\n", "a")
    assert run.scan() == [("lightning", "train_loss", 29, 0.125)]


def test_rows_of_a_second_training_in_the_same_file_are_new(run: Run) -> None:
    run.write("training.log", KERAS)
    run.scan()
    run.write("training.log", "epoch,accuracy,loss\r\n0,0.25,2.0\r\n")
    assert run.scan() == []  # may be the beginning of the same rows
    assert run.scan() == [("csv", "accuracy", 0, 0.25), ("csv", "loss", 0, 2.0)]


def test_history_of_a_trainer_gives_each_entry_once(run: Run) -> None:
    first = {"epoch": 0.5, "loss": 2.5, "step": 10, "note": "x", "flag": True}
    second = {"epoch": 1.0, "eval_loss": float("nan"), "step": 20}
    run.write("out/checkpoint-10/trainer_state.json", state(first))
    assert run.scan() == [("trainer", "loss", 10, 2.5)]
    run.write("out/checkpoint-20/trainer_state.json", state(first, second))
    [(source, name, step, value)] = run.scan()
    assert (source, name, step, str(value)) == ("trainer", "eval_loss", 20, "nan")
    run.write("out/trainer_state.json", state(first, second, {"step": 20, "train_runtime": 3}))
    assert run.scan() == [("trainer", "train_runtime", 20, 3)]


def test_event_files_of_one_training_have_names_of_their_own(run: Run) -> None:
    run.write_events("logs/train", 1.0, tag="epoch_loss")
    run.write_events("logs/validation", 2.0, tag="epoch_loss")
    run.write_events("runs/Nov29", 3.0)
    run.scan()
    run.write_events("runs/Nov29/loss_train", 4.0)
    run.write_events("other", 5.0)
    assert run.names() == ["tensorboard: loss_train/loss", "tensorboard: other/loss"]


# -- what is not read -------------------------------------------------------------------------------------------------


def test_values_of_earlier_runs_and_attempts_are_not_read_again(run: Run) -> None:
    first, second = {"loss": 2.5, "step": 10}, {"loss": 1.5, "step": 20}
    run.write("training.log", KERAS + "2,0.8")  # the writer was killed
    run.write("out/checkpoint-10/trainer_state.json", state(first))
    run.write_events("runs/a", 1.0)
    run.begin()
    assert run.scan() == []
    run.write("training.log", "\r\n2,0.8,0.5\r\n", "a")
    run.write("out/checkpoint-20/trainer_state.json", state(first, second))
    assert sorted(run.scan()) == [
        ("csv", "accuracy", 2, 0.8), ("csv", "loss", 2, 0.5), ("trainer", "loss", 20, 1.5)
    ]  # fmt: skip


def test_an_old_csv_that_is_replaced_is_read_from_the_start(run: Run) -> None:
    run.write("training.log", KERAS)
    run.begin()
    run.write("training.log", KERAS.replace("0.5", "0.6"))
    assert len(run.scan()) == 4


def test_copies_of_old_files_are_not_read(run: Run) -> None:
    os.utime(run.write("metrics.csv", LIGHTNING), (1e9, 1e9))
    assert run.scan() == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("data.csv", KERAS),
        ("train.csv", KERAS),
        ("results.csv", "x,y\n1,2\n"),
        ("results.csv", "step,label\n1,cat\n2,dog\n"),
        ("results.csv", "1,2\n3,4\n"),
        ("results.csv", "step\n1\n"),
        ("results.csv", "step,a,a\n1,2,3\n"),
        ("results.csv", "step,loss\n1,1_0\n"),
        ("train.log", "epoch 1, loss 0.5\n"),
        (".cache/metrics.csv", LIGHTNING),
        ("set/metrics.csv", LIGHTNING),
    ],
)
def test_data_and_other_tables_have_no_metrics(run: Run, name: str, text: str) -> None:
    run.begin(WINDLASS_DATA_SET=str(run.code / "set"))
    run.write(name, text)
    assert run.scan() == []
    assert run.files.notes == []


def test_links_and_pipes_are_not_opened(run: Run, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "metrics.csv").write_text(LIGHTNING)
    (run.code / "link").symlink_to(outside)
    (run.code / "metrics.csv").symlink_to(outside / "metrics.csv")
    os.mkfifo(run.code / "results.csv")
    (run.code / "progress.csv").mkdir()
    assert run.scan() == []


def test_event_files_of_a_live_program_that_is_not_of_the_run_are_not_read(run: Run) -> None:
    host = os.uname().nodename
    run.write_events("runs/other", 1.0, pid=os.getppid(), host=host)
    run.write_events("runs/own", 2.0, pid=os.getpid(), host=host)
    run.write_events("runs/ended", 3.0, pid=999_999_999, host=host, tag="end")
    assert sorted(run.scan()) == [("tensorboard", "end", 0, 3.0), ("tensorboard", "loss", 0, 2.0)]


# -- damaged and hostile files ----------------------------------------------------------------------------------------


def test_damaged_files_are_named_once_and_the_others_are_read(run: Run) -> None:
    path = run.write_events("runs", 1.0, 2.0)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    run.write("out\n\x1b/trainer_state.json", '{"log_history": ' + "[" * 100_000)
    run.write("results.csv", "step,loss\n1,2\n2,\xff\n".encode("latin-1"))
    run.write("metrics.csv", LIGHTNING)
    found = [row for _ in range(4) for row in run.scan()]
    assert sorted(found) == [
        ("csv", "loss", 1, 2),
        ("lightning", "train_loss", 9, 0.5), ("lightning", "train_loss", 19, 0.25),
        ("tensorboard", "loss", 0, 1.0),
    ]  # fmt: skip
    notes = sorted(note.replace(str(run.code), "") for note in run.files.notes)
    assert [note.split(" are ")[0] for note in notes] == [
        "metrics in /out\\n\\x1b/trainer_state.json",
        "metrics in /results.csv",
        f"metrics in /runs/{path.name}",
    ]


def test_a_state_that_is_being_written_is_not_damaged(run: Run) -> None:
    text = state({"loss": 2.5, "step": 10})
    run.write("trainer_state.json", text[:20])
    assert run.scan() == []
    run.write("trainer_state.json", text)
    assert run.scan() == [("trainer", "loss", 10, 2.5)]
    assert run.files.notes == []


@pytest.mark.parametrize(
    "text",
    [
        b"\x00" * 5000,
        b"step,loss\n1,\x00\n",
        b"step," + b"x" * 100_000,
        b"step,loss\n1,2\n" + b"9" * 3_000_000,
        b"step,nan\n1,2\n",
        b'step,"lo\nss"\n1,2\n',
        b"step," + b",".join(b"%d" % n for n in range(3000)) + b"\n",
        b"step,\xff\n1,2\n",
        b"step,\x1b[31m\n1,2\n",
        b"step,loss\n1," + b"9" * 5000 + b"\n",
    ],
)
def test_hostile_tables_raise_nothing(run: Run, text: bytes) -> None:
    run.write("metrics.csv", text)
    run.write("a/trainer_state.json", text)
    run.write("b/events.out.tfevents.1.h.1.0", text)
    found = [row for _ in range(3) for row in run.scan()]
    assert {name for _, name, _, _ in found} <= {"loss"}


@pytest.mark.parametrize(
    "text",
    ["[]", "{}", '{"log_history": 1}', '{"log_history": ["x"]}', '{"log_history": [{"loss": 1e999999}]}', "9" * 9999],
)
def test_states_without_a_history_raise_nothing(run: Run, text: str) -> None:
    run.write("trainer_state.json", text)
    assert [row for _ in range(3) for row in run.scan() if row[3] != float("inf")] == []


def test_depth_and_number_of_files_are_bounded(run: Run) -> None:
    run.write("1/2/3/4/5/6/metrics.csv", "step,deepest\n1,2\n")
    run.write("1/2/3/4/5/6/7/metrics.csv", "step,too_deep\n1,2\n")
    assert run.names() == ["csv: deepest"]
    for number in range(1010):
        run.write(f"many/log.{number}.csv", "epoch,loss\n0,1\n")
    assert len(run.scan()) == 999


def test_folders_of_windlass_are_not_searched(run: Run) -> None:
    folders = folders_of({"WINDLASS_OUTPUT_DIR": str(run.code / "home" / "out")}, str(run.code), ["home"])
    run.write("home/other/metrics.csv", LIGHTNING)
    run.write("home/out/results.csv", ULTRALYTICS)
    found = MetricFiles(*folders, since=0.0).scan(60.0)
    assert [one.point.name for one in found] == ["train/box_loss"]


def test_the_number_of_curves_is_bounded(run: Run) -> None:
    columns = ",".join(f"m{number}" for number in range(700))
    run.write("metrics.csv", f"step,{columns}\n1{',2' * 700}\n")
    assert len(run.scan()) == 500


@given(st.lists(st.integers(0, len(KERAS)), max_size=6))
def test_any_growth_of_a_csv_gives_the_same_rows(tmp_path_factory: pytest.TempPathFactory, sizes: list[int]) -> None:
    path, reader = tmp_path_factory.mktemp("csv") / "log.csv", CsvFile("log.csv")
    found = []
    for size in [*sorted(sizes), len(KERAS)]:
        path.write_text(KERAS[:size], newline="")
        with open(path, "rb") as file:
            found += [point[:2] + point[3:] for points in reader.read(file) for point in points]
    assert found == [("accuracy", 0, 0.5), ("loss", 0, 1.5), ("accuracy", 1, 0.75), ("loss", 1, 1.0)]


@given(st.binary(max_size=200))
def test_any_line_is_a_row_or_none(line: bytes) -> None:
    columns_of(line)
    cells_of(line, ["step", "loss"])


def test_a_csv_that_is_too_large_is_damaged(tmp_path: Path) -> None:
    with open(tmp_path / "metrics.csv", "w+b") as file:
        file.truncate(1 << 40)
        with pytest.raises(Damaged, match="at most"):
            list(CsvFile("metrics.csv").read(file))


def test_a_file_with_a_backlog_does_not_keep_the_others_from_being_read(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.worker.metric_files.MAX_POINTS", 2)
    first, second = run.write("training.log", KERAS), "log.csv"
    names = run.names()
    run.write(second, KERAS.replace("loss", "wer"))
    for epoch in range(2, 5):  # each scan reads as many values of the first file as a scan may
        run.write(first.name, f"{epoch},0.5,1.5\r\n", "a")
        names += run.names()
    assert {"csv: loss", "csv: wer"} <= {*names}
    assert names.count("csv: loss") == 3


# -- scans in a thread ------------------------------------------------------------------------------------------------


def test_scans_hand_over_points_and_notes_in_the_thread_of_the_node(run: Run) -> None:
    selector = selectors.DefaultSelector()
    found: list[FilePoint] = []
    notes: list[str] = []
    scans = MetricScans(
        {"WINDLASS_OUTPUT_DIR": str(run.output)}, str(run.code), (), selector, found.extend, notes.append
    )
    assert scans.due() <= 0
    scans.begin()
    assert scans.due() == float("inf")
    for key, _ in selector.select():
        key.data()
    assert 4 < scans.due() <= 5
    run.write("training.log", KERAS)
    run.write("trainer_state.json", "{")
    scans.finish()
    assert len(found) == 4
    assert len(notes) == 1
    assert not selector.get_map()
    assert scans.due() == float("inf")
    scans.finish()  # another rank of the node has ended


def test_values_that_were_not_read_by_the_end_are_noted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.worker.metric_files.MAX_POINTS", 2)
    notes: list[str] = []
    for num_rows, num_notes in ((1, 0), (3, 1)):  # two scans at the end read one row each
        selector = selectors.DefaultSelector()
        scans = MetricScans({}, str(run.code), (), selector, lambda _: None, notes.append)
        scans.begin()
        for key, _ in selector.select():
            key.data()
        run.write(f"{num_rows}/training.log", "epoch,loss,lr\n" + "1,0.5,0.1\n" * num_rows)
        scans.finish()
        assert len(notes) == num_notes
    assert "faster than they are read" in notes[0]


def test_scans_that_never_began_end_without_a_thread(run: Run) -> None:
    selector = selectors.DefaultSelector()
    scans = MetricScans({}, str(run.code), (), selector, lambda _: None, lambda _: None)
    run.write("training.log", KERAS)
    scans.finish()
    assert not selector.get_map()


@pytest.mark.parametrize(("rank", "is_reader"), [(0, True), (1, False)])
def test_only_the_node_of_rank_0_reads_and_not_before_its_ranks_have_started(
    run: Run, rank: int, is_reader: bool
) -> None:
    env = {"WINDLASS_OUTPUT_DIR": str(run.output)}
    spec = NodeSpec(0, "train.py", "python", str(run.code), env, (RankSpec(rank, 0, ("x",), {}),), 1.0)
    ranks: list[Any] = []
    events = SimpleNamespace(is_blocked=False)
    output = OutputEvents(spec, events, ranks, are_logs_read=True)  # type: ignore[arg-type]
    output.read_files(selectors.DefaultSelector())
    assert output.metrics_due() == float("inf")
    ranks.append("rank")
    assert (output.metrics_due() <= 0) == is_reader
