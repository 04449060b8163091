"""On a full disk, the end of a run is written into the reserve, and events that can wait do not use it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers.disk import fill, small_disk
from tests.helpers.until import until

from windlass.errors import StoreFull
from windlass.runs.events import entry_of
from windlass.runs.phase import Phase
from windlass.runs.record import Dropped, Status, fold
from windlass.runs.stop_request import StopRequest, clear_stop_request, read_stop_request, write_stop_request
from windlass.runs.store import MAX_EARLY, RunWriter, Store
from windlass.worker.logfile import LogFile
from windlass.worker.reserve import MARGIN_BYTES, Reserve


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 3072) as folder:
        yield folder


def begin(store: Store, run_id: str = "a-1") -> RunWriter:
    return store.create(run_id, name="a", target="local", output_dir="/o", plan="{}", time=1000.0)


def recorded(store: Store, run_id: str = "a-1") -> tuple[Status, list[str]]:
    assert store.status(run_id) == fold(store.events(run_id))
    return store.status(run_id), [event.kind for event in store.events(run_id)]


def test_the_end_is_written_on_a_full_disk_with_all_that_was_delayed_before_it(disk: Path) -> None:
    with Store(disk / "home") as store, contextlib.closing(begin(store)) as writer:
        fill(disk)
        for number in range(200):
            writer.note(entry_of("warning", {"message": f"{number} {'x' * 500}"}))
            writer.note(entry_of("progress", {"step": number}))
            writer.set_progress({"step": number})
        assert len(recorded(store)[1]) < 100  # the events wait, because the reserve is not for them
        assert (store.home / "reserve").exists()
        writer.note(entry_of("end", {"phase": "succeeded", "exit_code": 0}))
        assert recorded(store) == (writer.status, ["created", *["warning"] * 200, "end"])  # progress is discarded
        assert not (store.home / "reserve").exists()


def test_events_that_can_wait_do_not_use_released_reserve(disk: Path) -> None:
    with contextlib.ExitStack() as stack:
        store, other = (stack.enter_context(Store(disk / "home")) for _ in range(2))
        ending = stack.enter_context(contextlib.closing(begin(store)))
        training = stack.enter_context(contextlib.closing(begin(other, "b-1")))
        fill(disk)
        while (store.home / "reserve").exists():
            ending.note(entry_of("stop", {}))
        ending.note(entry_of("end", {"phase": "stopped"}))
        before = recorded(other, "b-1")
        for number in range(300):
            training.note(entry_of("checkpoint", {"action": "saved", "step": number, "name": "x" * 100}))
            training.set_progress({"step": number})
        assert recorded(other, "b-1") == before
        training.note(entry_of("end", {"phase": "failed", "exit_code": 1}))
        assert recorded(other, "b-1")[0].phase is Phase.FAILED


def test_reserve_is_created_again_when_there_is_space(disk: Path) -> None:
    with Store(disk / "home") as store, contextlib.closing(begin(store)) as writer:
        filler = fill(disk)
        while (store.home / "reserve").exists():
            writer.note(entry_of("stop", {}))
        writer.note(entry_of("warning", {"message": "waits"}))
        filler.unlink()

        def caught_up() -> bool:
            with contextlib.suppress(StoreFull):
                writer.catch_up()
            return (store.home / "reserve").exists()

        until(caught_up, "no reserve")
        assert recorded(store)[1][-1] == "warning"
        assert (store.home / "reserve").stat().st_blocks * 512 >= store.reserve.size_bytes


def test_exit_codes_and_dropped_lines_are_recorded_early_but_not_without_bound(disk: Path) -> None:
    with Store(disk / "home") as store, contextlib.closing(begin(store)) as writer:
        writer.note(entry_of("attempt", {"number": 1, "world_size": 40, "nodes": [list(range(40))]}))
        fill(disk)
        for number in range(200):  # the free space in SQLite's files is used first
            writer.note(entry_of("warning", {"message": "x" * 500 + str(number)}))
        for rank in range(40):
            writer.note(entry_of("rank", {"rank": rank, "exit_code": 0}))
        known = [state for state in store.status("a-1").ranks if state.exit_code == 0]
        assert len(known) == MAX_EARLY


def test_a_run_is_refused_where_its_end_could_not_be_written(disk: Path) -> None:
    filler = fill(disk)
    with open(filler, "r+b") as file:
        file.truncate(filler.stat().st_size - (300 << 10))
    with Store(disk / "home") as store:
        with pytest.raises(StoreFull, match="no space left"):
            begin(store)
        assert store.count() == 0
        filler.unlink()
        begin(store).close()


def test_a_record_is_read_on_a_full_disk_though_no_process_has_it_open(disk: Path) -> None:
    with Store(disk / "home") as store:
        begin(store).close()
    fill(disk)
    with Store(disk / "home") as store:
        assert store.count() == 1


def test_without_a_reserve_a_full_disk_is_named_as_the_reason(disk: Path) -> None:
    with Store(disk / "home") as store:
        begin(store).close()
    (disk / "home" / "reserve").unlink()
    fill(disk)
    with pytest.raises(StoreFull, match="no space left for the record in"):
        Store(disk / "home")


@pytest.mark.parametrize("now", [False, True])
def test_stop_request_needs_no_space(disk: Path, now: bool) -> None:
    fill(disk)
    assert read_stop_request(disk) is None
    write_stop_request(disk, StopRequest(now=now))
    assert read_stop_request(disk) == StopRequest(now=now)
    clear_stop_request(disk)
    assert read_stop_request(disk) is None


def test_a_log_leaves_the_last_space_to_the_record_and_counts_what_it_lacks(disk: Path) -> None:
    reserve = Reserve(str(disk / "node-0.reserve"), 64 << 10, is_shared=False)
    assert reserve.make()
    log = LogFile(str(disk), 0, None, reserve)
    written = 0
    while log.dropped_lines < 50:  # the disk has space for 300 lines
        log.keep(b"x" * 9999 + b"\n", time.time_ns())
        written += 10_000
    assert 490_000 < log.dropped_bytes <= 500_000  # a part of the line that reached the end of the disk was kept
    assert log.length + log.dropped_bytes == written
    filler = fill(disk)
    assert reserve.release()
    dropped = log.dropped_bytes
    log.keep(b"y\n", time.time_ns())
    assert (log.dropped_bytes, log.dropped_lines) == (dropped + 2, 51)
    filler.unlink()
    (disk / "rank-0.log").write_bytes(b"")

    def kept() -> bool:
        log.keep(b"z\n", time.time_ns())
        return (disk / "rank-0.log").stat().st_size > 0

    until(kept, "the log is not written again")
    log.close()


def test_a_reserve_is_made_only_with_room_besides(disk: Path) -> None:
    filler = fill(disk)
    reserve = Reserve(str(disk / "reserve"), 256 << 10, is_shared=True)
    assert not reserve.make()
    assert not reserve.make(margin_bytes=0)
    with open(filler, "r+b") as file:
        file.truncate(filler.stat().st_size - (512 << 10))
    assert not reserve.make()  # the required free margin is missing
    assert reserve.make(margin_bytes=0)
    assert sorted(path.name for path in disk.iterdir()) == ["filler", "reserve"]
    filler.unlink()
    assert reserve.release()
    assert not reserve.release()
    assert reserve.make(MARGIN_BYTES)


def test_missing_log_lines_are_counted_by_attempt_and_rank(tmp_path: Path) -> None:
    with Store(tmp_path) as store, contextlib.closing(begin(store)) as writer:
        for attempt in (1, 2):
            writer.note(entry_of("attempt", {"number": attempt, "world_size": 1, "nodes": [[0]]}))
            for lines in (1, 5):
                data = {"message": "rank 0: …", "dropped": {"rank": 0, "bytes": 10 * lines, "lines": lines}}
                writer.note(entry_of("warning", data))
        assert store.status("a-1").dropped == (Dropped(1, 0, 50, 5), Dropped(2, 0, 50, 5))
