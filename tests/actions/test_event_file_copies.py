"""Event files of runs and object stores are kept in step for TensorBoard: only what is new is read and written."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import windlass
from windlass.actions.event_file_copies import EventFileCopies, copy_event_files
from windlass.runs.context import Context
from windlass.runs.metrics import MetricsFile
from windlass.stores.folder import FolderStore
from windlass.worker.event_file import EventFile

REPORTS = "from windlass.train import report\nfor step in range(3): report(step=step, loss=1 / (step + 1))\n"


class CountingStore(FolderStore):
    """A folder as an object store that counts the bytes that are read."""

    read = 0

    def read_once(self, one: object, start: int, length: int) -> bytes:
        found = super().read_once(one, start, length)  # type: ignore[arg-type]
        self.read += len(found)
        return found


def test_objects_that_have_grown_are_read_from_the_end_of_the_copy(tmp_path: Path) -> None:
    bucket, folder = tmp_path / "bucket", tmp_path / "copies"
    (bucket / "runs" / "a").mkdir(parents=True)
    (bucket / "runs" / "model.pt").write_bytes(b"x" * 1000)
    events = bucket / "runs" / "a" / "events.out.tfevents.1"
    events.write_bytes(b"12345")
    store = CountingStore(str(bucket))
    assert copy_event_files(store, "runs", folder)
    assert copy_event_files(store, "runs", folder)
    assert store.read == 5
    events.write_bytes(b"123456789")
    assert copy_event_files(store, "runs", folder)
    assert (folder / "a" / events.name).read_bytes() == b"123456789"
    assert store.read == 9
    events.write_bytes(b"new")
    assert copy_event_files(store, "runs", folder)
    assert (folder / "a" / events.name).read_bytes() == b"new"
    assert [path.name for path in folder.rglob("*") if path.is_file()] == [events.name]
    (bucket / "other").mkdir()
    assert not copy_event_files(store, "other", folder)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context({**os.environ, "WINDLASS_HOME": str(tmp_path / "home")}, tmp_path)


def test_metrics_of_a_run_are_written_once(context: Context, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(REPORTS)
    run = windlass.run({"name": "reports", "run": "train.py", "start": "cold"}, context=context)
    run.wait()
    folder = tmp_path / "logs"
    copies = EventFileCopies(folder, [run.id])
    copies.update(context)
    [written] = (folder / run.id).glob("*tfevents*")
    assert b"loss" in written.read_bytes()
    copies.update(context)
    before = written.read_bytes()
    columns = {"steps": [None, None], "times": [time.time()] * 2, "values": [0.5, 0.25]}
    with context.store() as store:
        file = MetricsFile(store.run_dir(run.id))
        for seq in (1, 2):  # points without steps are counted
            file.append(2, 0, seq, [{"rank": 0, "source": "csv", "name": "acc", **columns}])
            columns["times"] = [time.time() + 1] * 2
            copies.update(context)
    assert list((folder / run.id).glob("*tfevents*")) == [written]
    assert written.read_bytes().startswith(before)
    with open(written, "rb") as opened:
        points = [point for batch in EventFile().read(opened) for point in batch if point.name == "acc"]
    assert [(point.step, point.value) for point in points] == [(0, 0.5), (1, 0.25), (2, 0.5), (3, 0.25)]


def test_a_record_that_cannot_be_opened_now_is_opened_again_later(
    context: Context, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    context.home.write_text("no folder")
    EventFileCopies(tmp_path / "logs", ["digits-7f3k2"]).update(context)
    assert capsys.readouterr().err.startswith("digits-7f3k2: ")


def test_event_files_in_the_outputs_of_a_run_are_linked(context: Context, tmp_path: Path) -> None:
    write = "import os; open(os.environ['WINDLASS_OUTPUT_DIR'] + '/events.out.tfevents.1', 'w').write('x')\n"
    (tmp_path / "train.py").write_text(write)
    run = windlass.run({"name": "writes", "run": "train.py", "start": "cold"}, context=context)
    output = Path(run.wait().output_dir)
    EventFileCopies(tmp_path / "logs", [run.id, str(tmp_path)]).update(context)
    assert (tmp_path / "logs" / run.id).resolve() == output
    assert (tmp_path / "logs" / tmp_path.name).resolve() == tmp_path


def test_sources_of_the_same_name_are_shown_apart(context: Context, tmp_path: Path) -> None:
    sources = [tmp_path / "a" / "logs", tmp_path / "b" / "logs"]
    for one in sources:
        one.mkdir(parents=True)
        (one / "events.out.tfevents.1").write_text(one.parent.name)
    (tmp_path / "c").mkdir()
    named = [*map(str, sources), str(tmp_path / "c")]
    EventFileCopies(tmp_path / "shown", named).update(context)
    assert sorted(one.name for one in (tmp_path / "shown").iterdir()) == ["0-logs", "1-logs", "2-c"]
    assert (tmp_path / "shown" / "0-logs" / "events.out.tfevents.1").read_text() == "a"
    assert (tmp_path / "shown" / "1-logs" / "events.out.tfevents.1").read_text() == "b"
