"""The store returns what was written, to any process, after any failure of the writer, the file or the disk."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.helpers.disk import fill, make_read_only, small_disk
from tests.helpers.until import until
from tests.runs.test_record import KINDS, times

from windlass.errors import NoSuchRun, StoreError, StoreFull, UnsupportedVersion
from windlass.plan.plan import NO_PLAN
from windlass.runs import events
from windlass.runs.events import RECORD_VERSION, Machine, PhaseEntered, entry_of
from windlass.runs.phase import Phase
from windlass.runs.record import About, Attempt, Dropped, Files, RankState, Status, Supervision, Times, fold
from windlass.runs.store import SCHEMA_VERSION, RunWriter, Store, default_home
from windlass.runs.warnings import RunWarning
from windlass.worker.values import Value

BIRTH = 1_700_000_000.0


def begin(store: Store, run_id: str, at: float = BIRTH, **more: Any) -> RunWriter:
    plan = '{"engine":"local"}'
    return store.create(run_id, name="digits", target="local", output_dir="/o", plan=plan, time=at, **more)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "home") as opened:
        yield opened


@contextlib.contextmanager
def python(code: str, *words: object) -> Iterator[subprocess.Popen[str]]:
    """Runs `code` in another process, which ends with the block."""
    preamble = (
        "import os, sys, time\nfrom pathlib import Path\n"
        "from windlass.runs.events import Warned\n"
        "from windlass.runs.store import Store\nfrom windlass.errors import *\n"
        "def begin(store, run_id):\n"
        "    return store.create(run_id, name='digits', target='local', output_dir='/o', plan='{}', time=time.time())\n"
    )
    command = [sys.executable, "-c", preamble + code, *map(str, words)]
    popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield popen
    finally:
        popen.kill()
        popen.communicate()


# -- round trip -------------------------------------------------------------------------------------------------------


def test_created_run_is_read(store: Store) -> None:
    with contextlib.closing(begin(store, "digits-aaaaa")) as writer:
        assert store.status("digits-aaaaa") == writer.status
    assert store.engine_of("digits-aaaaa") == "local"
    assert [(event.seq, event.kind) for event in store.events("digits-aaaaa")] == [(1, "created")]
    assert store.find() == store.find("digits-a") == "digits-aaaaa"
    assert store.count() == 1
    assert (store.home / "record.db").stat().st_mode & 0o077 == 0 or store.home.stat().st_mode & 0o077 == 0


appendable = st.sampled_from(sorted(set(KINDS) - {"created", "from-the-future"})).flatmap(
    lambda kind: st.tuples(st.just(kind), KINDS[kind], times)
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(appendable, max_size=20))
def test_the_stored_status_is_the_fold_of_the_stored_events(
    store: Store, events: list[tuple[str, dict[str, Any], float]]
) -> None:
    run_id = f"digits-{store.count()}"
    with contextlib.closing(begin(store, run_id)) as writer:
        for kind, data, at in events:
            writer.append(entry_of(kind, data), at=at)
        stored = store.events(run_id)
        assert [(event.kind, event.data, event.time) for event in stored[1:]] == events
        assert [event.seq for event in stored] == list(range(1, len(events) + 2))
        assert store.status(run_id) == writer.status == fold(stored)
    unfinished = [status.id for status in store.statuses(unfinished=True)]
    assert (run_id in unfinished) == (not writer.status.phase.is_terminal)


def test_events_are_read_from_where_the_reader_was(store: Store) -> None:
    with contextlib.closing(begin(store, "a-1")) as writer:
        for number in range(5):
            writer.append(entry_of("warning", {"message": str(number)}))
    assert [event.seq for event in store.events("a-1", after=4)] == [5, 6]
    assert store.events("a-1", after=6) == []


def test_the_newest_progress_is_read_with_the_status_and_costs_no_event(store: Store) -> None:
    with contextlib.closing(begin(store, "a-1")) as writer:
        writer.append(entry_of("progress", {"step": 1, "loss": 0.5}))
        store.set_progress("a-1", {"step": 7})
    assert store.status("a-1").progress.to_json() == {"step": 7}
    assert store.status("a-1", with_progress=False).progress.to_json() == {"step": 1, "loss": 0.5}
    assert len(store.events("a-1")) == 2


def test_nothing_of_the_progress_of_an_attempt_before_is_shown(store: Store) -> None:
    with contextlib.closing(begin(store, "a-1")) as writer:
        writer.append(entry_of("progress", {"step": 1, "loss": 0.5, "at": 10.0}))
        store.set_progress("a-1", {"step": 7, "loss": 0.4, "at": 11.0})
        writer.append(entry_of("progress", {"step": 5, "at": 20.0}))
    assert store.status("a-1").progress.to_json() == {"step": 5, "at": 20.0}


def test_progress_that_is_copied_late_does_not_replace_newer(store: Store) -> None:
    begin(store, "a-1").close()
    for at in (2.0, 3.0, 1.0):
        store.copy_progress("a-1", {"step": int(at), "at": at})
    assert store.status("a-1").progress.to_json() == {"step": 3, "at": 3.0}
    store.copy_progress("a-1", {"step": 4})
    assert store.status("a-1").progress.step == 3


def test_a_deleted_run_leaves_nothing(store: Store) -> None:
    for run_id in ("a-1", "a-2"):
        begin(store, run_id).close()
    store.delete("a-1")
    assert not store.run_dir("a-1").exists()
    assert store.find() == "a-2"
    assert store.events("a-1") == []
    for read in (store.status, store.plan, store.find):
        with pytest.raises(NoSuchRun, match="a-1"):
            read("a-1")


def test_an_id_is_taken_once(store: Store) -> None:
    with contextlib.closing(begin(store, "a-1")) as writer:
        writer.append(entry_of("warning", {"message": "the first"}))
        with pytest.raises(StoreError):
            begin(store, "a-1")
    assert [event.kind for event in store.events("a-1")] == ["created", "warning"]
    assert (store.run_dir("a-1") / "lock").exists()


# -- names ------------------------------------------------------------------------------------------------------------


def test_a_prefix_stands_for_the_one_run_that_begins_with_it(store: Store) -> None:
    for number, run_id in enumerate(["digits-aaaaa", "digits-ab", "digits-abbbb", "mnist-aaaaa"]):
        begin(store, run_id, BIRTH + number).close()
    assert store.find("m") == store.find() == "mnist-aaaaa"
    assert store.find("digits-aa") == "digits-aaaaa"
    assert store.find("digits-ab") == "digits-ab"  # a complete id takes precedence over longer ids with the same prefix
    with pytest.raises(NoSuchRun, match="several runs begin with 'digits-a': digits-abbbb, digits-ab, digits-aaaaa"):
        store.find("digits-a")


def test_the_name_of_a_job_stands_for_its_newest_run(store: Store) -> None:
    for number, run_id in enumerate(["digits-zzzzz", "digits-aaaaa", "digits-big-bbbbb", "digits-big-ccccc", "big-d"]):
        begin(store, run_id, BIRTH + number).close()
    assert store.find("digits") == "digits-aaaaa"
    assert store.find("digits-big") == "digits-big-ccccc"
    assert store.find("digits-z") == "digits-zzzzz"
    with pytest.raises(NoSuchRun, match="several runs begin with 'digits-big-': digits-big-ccccc, digits-big-bbbbb"):
        store.find("digits-big-")
    with pytest.raises(NoSuchRun, match="several runs begin with 'digit': digits-big-ccccc, "):
        store.find("digit")


def test_run_of_a_service_is_found_by_its_id_and_is_no_newest_run(store: Store) -> None:
    begin(store, "digits-aaaaa").close()
    begin(store, "notebook-ccccc", BIRTH + 1, labels={"windlass.dev/service": "notebook"}).close()
    begin(store, "digits-bbbbb", BIRTH + 2, labels={"windlass.dev/service": "deployment"}).close()
    assert store.find() == store.find("digits") == "digits-aaaaa"
    assert store.find("digits-bbbbb") == store.find("digits-b") == "digits-bbbbb"
    assert store.find("notebook") == "notebook-ccccc"


NEVER_IDS = [
    "x",
    "%",
    "_",
    "*",
    "DIGITS",
    "../runs",
    "digits-aaaaa/",
    "'; DROP TABLE runs; --",
    "\U0010ffff",
    "é",
    "\udcff",
]


@pytest.mark.parametrize("prefix", NEVER_IDS, ids=ascii)
def test_unknown_prefix_is_no_such_run(store: Store, prefix: str) -> None:
    begin(store, "digits-aaaaa").close()
    with pytest.raises(NoSuchRun):
        store.find(prefix)


def test_an_empty_record_has_no_newest_run(store: Store) -> None:
    with pytest.raises(NoSuchRun, match="no run yet"):
        store.find()
    assert store.statuses() == []


@pytest.mark.parametrize(
    ("environ", "home"),
    [
        ({"WINDLASS_HOME": "/w", "XDG_DATA_HOME": "/x", "HOME": "/h"}, "/w"),
        ({"WINDLASS_HOME": "", "XDG_DATA_HOME": "/x", "HOME": "/h"}, "/x/windlass"),
        ({"HOME": "/h"}, "/h/.local/share/windlass"),
    ],
)
def test_home_is_where_the_environment_says(environ: dict[str, str], home: str) -> None:
    assert default_home(environ) == Path(home)


def test_a_home_folder_that_no_user_has_is_named() -> None:
    with pytest.raises(StoreError, match="no home folder is known for ~no-such-user/w") as caught:
        default_home({"WINDLASS_HOME": "~no-such-user/w"})
    assert "WINDLASS_HOME" in caught.value.hint


# -- versions ---------------------------------------------------------------------------------------------------------


def empty_file(path: Path) -> None:
    path.touch()


def version_0(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("VACUUM")


def test_a_home_may_be_given_as_text(tmp_path: Path) -> None:
    with Store(str(tmp_path)) as store:
        begin(store, "a-1").close()
        assert store.run_dir("a-1") == tmp_path / "runs" / "a-1"


def test_a_home_is_found_after_a_change_of_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with Store("home") as store:
        begin(store, "a-1").close()
        monkeypatch.chdir("elsewhere")
        assert store.run_dir("a-1").is_dir()


@pytest.mark.parametrize("older", [empty_file, version_0])
def test_an_older_file_is_taken_to_this_version(tmp_path: Path, older: Callable[[Path], None]) -> None:
    older(tmp_path / "record.db")
    with Store(tmp_path) as store:
        begin(store, "a-1").close()
    with contextlib.closing(sqlite3.connect(tmp_path / "record.db")) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []


def test_a_plan_is_replaced_together_with_the_event_that_says_so(store: Store) -> None:
    writer = begin(store, "a-1")
    writer.append(entry_of("end", {"phase": "stopped", "exit_code": 0}))
    writer.append(entry_of("resume", {"reason": "asked", "nodes": 4}), plan=replace(NO_PLAN, num_nodes=4).to_text())
    writer.close()
    assert store.plan("a-1").num_nodes == 4
    assert store.status("a-1").times.ended_at is None
    assert [status.id for status in store.statuses(unfinished=True)] == ["a-1"]


@pytest.mark.parametrize("version", [SCHEMA_VERSION - 1, SCHEMA_VERSION + 1])
def test_a_file_with_tables_of_another_version_is_left_as_it_is(version: int, tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        begin(store, "a-1").close()
    with contextlib.closing(sqlite3.connect(tmp_path / "record.db")) as db:
        db.execute(f"PRAGMA user_version = {version}")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    message = rf"tables of version {version}, and this Windlass reads {SCHEMA_VERSION}\n  use the Windlass that"
    with pytest.raises(UnsupportedVersion, match=message):
        Store(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def recorded_by_another_version(store: Store, run_id: str, at: float = BIRTH) -> None:
    begin(store, run_id, at).close()
    with contextlib.closing(sqlite3.connect(store.home / "record.db")) as db, db:
        db.execute("UPDATE runs SET version = ?, status = '{}' WHERE id = ?", (RECORD_VERSION + 1, run_id))


def test_a_run_that_another_version_recorded_is_refused_and_hides_no_other(store: Store) -> None:
    begin(store, "b-2").close()
    news = store.events("b-2")
    recorded_by_another_version(store, "a-1")
    for read in (store.status, store.plan, store.events, store.writer, lambda run: store.copy(run, news)):
        message = rf"(?s)a-1 is unreadable.*version {RECORD_VERSION + 1}.*reads {RECORD_VERSION}.*windlass rm a-1"
        with pytest.raises(UnsupportedVersion, match=message):
            read("a-1")
    assert [one.id for one in store.statuses()] == [one.id for one in store.statuses(unfinished=True)] == ["b-2"]
    assert [(one.id, one.version) for one in store.unreadable()] == [("a-1", RECORD_VERSION + 1)]
    assert (store.count(), store.find("a-1")) == (1, "a-1")
    store.delete("a-1")
    assert store.unreadable() == []
    assert not store.run_dir("a-1").exists()


def test_runs_of_other_versions_are_listed_newest_first(store: Store) -> None:
    for run_id, age_seconds in (("a-1", 20), ("b-2", 10), ("c-3", 10), ("d-4", 30)):
        recorded_by_another_version(store, run_id, BIRTH - age_seconds)
    assert [one.id for one in store.unreadable()] == ["b-2", "c-3", "a-1", "d-4"]


def test_a_folder_that_cannot_be_read_is_not_one_without_leftovers(store: Store) -> None:
    assert not store.has_leftovers("never-created")
    with pytest.raises(OSError, match="name too long"):
        store.has_leftovers("x" * 300)


def test_a_change_of_a_recorded_field_needs_the_next_version_of_the_record() -> None:
    parts = [Status, Times, Supervision, Files, About, Attempt, RankState, Dropped]
    shape = [[part.__name__, *(field.name for field in dataclasses.fields(part))] for part in parts]
    values: list[type[Value]] = [Machine, RunWarning, *events.KINDS.values()]
    shape += [[kind.__name__, *kind.fields()] for kind in values]
    digest = hashlib.sha256(repr(shape).encode()).hexdigest()[:16]
    assert (RECORD_VERSION, digest) == (5, "4f1d026099a03a0b"), "raise RECORD_VERSION, and write both here"


def test_many_commands_may_make_the_record_at_once(tmp_path: Path) -> None:
    code = (
        "sys.stdin.readline()\n"
        "with Store(Path(sys.argv[1])) as store:\n    begin(store, sys.argv[2]).close()\n"
        "print('made')"
    )
    with contextlib.ExitStack() as stack:
        makers = [stack.enter_context(python(code, tmp_path / "home", f"a-{number}")) for number in range(6)]
        for maker in makers:
            assert maker.stdin is not None
            maker.stdin.write("go\n")
            maker.stdin.flush()
        assert [maker.communicate(timeout=200)[0] for maker in makers] == ["made\n"] * len(makers)
    with Store(tmp_path / "home") as store:
        assert sorted(status.id for status in store.statuses()) == [f"a-{number}" for number in range(6)]


# -- several processes ------------------------------------------------------------------------------------------------

APPEND = (
    "with Store(Path(sys.argv[1])) as store:\n"
    "    writer = begin(store, sys.argv[2])\n"
    "    for number in range(int(sys.argv[3])):\n"
    "        writer.append(Warned(str(number)))\n"
    "        store.set_progress(sys.argv[2], {'step': number})\n"
    "print('done')\n"
)


@pytest.mark.slow
def test_two_processes_write_two_runs_while_many_read(tmp_path: Path) -> None:
    num_events = 300
    Store(tmp_path).close()
    over = threading.Event()
    problems: list[str] = []

    def read() -> None:
        seen = {"a-1": 0, "a-2": 0}
        try:
            with Store(tmp_path) as mine:
                while not over.is_set():
                    for status in mine.statuses():
                        if status.last_seq < seen[status.id]:
                            problems.append(f"{status.id} went back from {seen[status.id]} to {status.last_seq}")
                        seen[status.id] = status.last_seq
                        events = mine.events(status.id)
                        if [event.seq for event in events] != list(range(1, len(events) + 1)):
                            problems.append(f"{status.id} has a hole")
                        if len(events) < status.last_seq:
                            problems.append(f"{status.id}: the status is ahead of the events")
        except Exception as error:
            problems.append(repr(error))

    readers = [threading.Thread(target=read) for _ in range(4)]
    with python(APPEND, tmp_path, "a-1", num_events) as one, python(APPEND, tmp_path, "a-2", num_events) as two:
        for reader in readers:
            reader.start()
        said = [one.communicate(timeout=200)[0], two.communicate(timeout=200)[0]]
        over.set()
        for reader in readers:
            reader.join()
    assert said == ["done\n", "done\n"]
    assert problems == []
    with Store(tmp_path) as store:
        for run_id in ("a-1", "a-2"):
            assert store.status(run_id, with_progress=False) == fold(store.events(run_id))
            assert store.status(run_id).last_seq == num_events + 1


def test_a_killed_writer_leaves_whole_events(tmp_path: Path) -> None:
    with python(APPEND, tmp_path, "a-1", 1_000_000) as writer, Store(tmp_path) as store:
        until(lambda: store.count() and store.status("a-1").last_seq >= 50)
        writer.kill()
        writer.wait()
        events = store.events("a-1")
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert store.status("a-1", with_progress=False) == fold(events)
        heir = store.writer("a-1")
        assert heir is not None
        with contextlib.closing(heir):
            heir.append(entry_of("adopted", {}))
            assert heir.status.last_seq == len(events) + 1


HOLD = "writer = begin(Store(Path(sys.argv[1])), 'a-1')\n"


def test_the_lock_goes_with_the_process(store: Store) -> None:
    with python(HOLD + "print('held', flush=True)\ntime.sleep(100)", store.home) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert store.is_held("a-1")
        assert store.writer("a-1") is None
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert not store.is_held("a-1")
        heir = store.writer("a-1")
        assert heir is not None
        heir.close()


def test_a_child_that_inherits_the_lock_keeps_the_run(store: Store) -> None:
    code = (
        HOLD + "import subprocess\n"
        "child = subprocess.Popen(['sleep', '100'], pass_fds=[writer.lock], stdout=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True)\ntime.sleep(100)"
    )
    with python(code, store.home) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        holder.kill()
        holder.wait()
        try:
            assert store.is_held("a-1")
        finally:
            os.kill(child, signal.SIGKILL)
        until(lambda: not store.is_held("a-1"))


def test_readers_do_not_block_a_writer(store: Store) -> None:
    begin(store, "a-1").close()
    over = threading.Event()
    seen: list[bool] = []

    def look() -> None:
        with Store(store.home) as mine:
            while not over.is_set():
                seen.append(mine.is_held("a-1"))
                time.sleep(0.001)

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    refused = 0
    for _ in range(200):
        seen_before = len(seen)
        writer = store.writer("a-1")
        refused += writer is None
        if writer is not None:
            writer.close()
        while len(seen) < seen_before + 2:
            time.sleep(0)
    over.set()
    for looker in lookers:
        looker.join()
    assert refused == 0


def test_concurrent_lock_tests_do_not_see_a_holder(store: Store) -> None:
    begin(store, "a-1").close()
    found: list[bool] = []

    def look() -> None:
        with Store(store.home) as mine:
            found.extend(mine.is_held("a-1") for _ in range(2000))

    lookers = [threading.Thread(target=look) for _ in range(3)]
    for looker in lookers:
        looker.start()
    for looker in lookers:
        looker.join()
    assert not any(found)


def test_a_folder_removed_by_hand_does_not_make_the_record_unreadable(store: Store) -> None:
    begin(store, "a-1").close()
    shutil.rmtree(store.run_dir("a-1"))
    assert not store.is_held("a-1")
    assert store.status("a-1").phase is Phase.QUEUED
    store.delete("a-1")
    assert store.count() == 0


# -- ten thousand runs ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Creates 10,000 runs, five of them unfinished, with 30 events in every hundredth."""
    with Store(tmp_path_factory.mktemp("large")) as store:
        begin(store, "template").close()
        (status,) = store._db.execute("SELECT status FROM runs").fetchone()
        store.delete("template")
        names = [f"{'digits' if number % 2 else 'mnist'}-{number:05d}" for number in range(10_000)]
        rows = [
            (
                name,
                BIRTH + number,
                None if number % 2000 == 0 else BIRTH + number + 1,
                "succeeded",
                status.replace("template", name),
                '{"engine":"local"}',
            )
            for number, name in enumerate(names)
        ]
        events = [(name, seq, BIRTH, "warning", "{}") for name in names[::100] for seq in range(1, 31)]
        store._db.execute("BEGIN")
        columns = ("id", "created_at", "ended_at", "phase", "status", "plan")
        insert = f"INSERT INTO runs (version, {', '.join(columns)}) VALUES ({RECORD_VERSION}, ?, ?, ?, ?, ?, ?)"
        store._db.executemany(insert, rows)
        store._db.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", events)
        store._db.execute("COMMIT")
        yield store


@contextlib.contextmanager
def plans_of_queries(store: Store) -> Iterator[list[str]]:
    """Yields SQLite's query plans of the queries in the block; filled when the block ends."""
    statements: list[str] = []
    plans: list[str] = []
    store._db.set_trace_callback(statements.append)
    try:
        yield plans
    finally:
        store._db.set_trace_callback(None)
    for statement in statements:
        plans += [row[3] for row in store._db.execute(f"EXPLAIN QUERY PLAN {statement}")]


READS: dict[str, Callable[[Store], object]] = {
    "status": lambda store: store.status("digits-00001"),
    "plan": lambda store: store.engine_of("digits-00001"),
    "find a whole id": lambda store: store.find("digits-00001"),
    "find a prefix": lambda store: several_begin_with("digits-0012", store),
    "find a name": lambda store: store.find("mnist"),
    "find the newest": lambda store: store.find(),
    "the last 20": lambda store: store.statuses(last=20),
    "unfinished": lambda store: store.statuses(unfinished=True),
    "events": lambda store: store.events("mnist-00100", after=10),
    "set_progress": lambda store: store.set_progress("digits-00001", {"step": 1}),
    "writer": lambda store: writer_of(store, "digits-00001"),
}


def several_begin_with(prefix: str, store: Store) -> None:
    with pytest.raises(NoSuchRun):
        store.find(prefix)


def writer_of(store: Store, run_id: str) -> None:
    writer = store.writer(run_id)
    assert writer is not None
    writer.append(entry_of("warning", {"message": "found by its key"}))
    writer.close()


@pytest.mark.parametrize("read", READS)
def test_among_ten_thousand_runs_rows_are_found_by_an_index(large: Store, read: str) -> None:
    with plans_of_queries(large) as plans:
        READS[read](large)
    assert plans
    for plan in plans:
        assert re.search(r"USING (COVERING )?INDEX|USING PRIMARY KEY", plan), plan
        assert "TEMP B-TREE" not in plan


def test_ten_thousand_runs_are_listed_newest_first(large: Store) -> None:
    # the previous test added an event to this run
    large._db.execute("UPDATE runs SET ended_at = 1 WHERE id = 'digits-00001'")
    last = large.statuses(last=20)
    assert [status.id for status in last] == [
        f"{'digits' if number % 2 else 'mnist'}-{number:05d}" for number in range(9999, 9979, -1)
    ]
    assert [status.id for status in large.statuses(unfinished=True)] == [
        f"mnist-{n:05d}" for n in range(8000, -1, -2000)
    ]
    assert large.count() == 10_000
    assert large.find() == "digits-09999"
    with pytest.raises(NoSuchRun, match="several runs begin with 'digits-'") as caught:
        large.find("digits-")
    assert len(caught.value.message) < 200  # a few names, not five thousand


# -- full disks, missing rights, broken files -------------------------------------------------------------------------


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 2048) as folder:
        yield folder


def test_a_full_disk_refuses_a_new_record_and_later_takes_it(disk: Path) -> None:
    filler = fill(disk)
    with pytest.raises(StoreFull, match="no space left"):
        Store(disk / "home")
    filler.unlink()
    with Store(disk / "home") as store:
        begin(store, "a-1").close()
        assert store.count() == 1


def test_a_full_disk_refuses_a_new_run_and_leaves_nothing_of_it(disk: Path) -> None:
    with Store(disk / "home") as store:
        begin(store, "a-1").close()
        filler = fill(disk)
        before = files(disk)
        with pytest.raises(StoreFull, match="no space left"):
            store.create("a-2", name="n", target="local", output_dir="/o", plan="x" * 100_000, time=BIRTH)
        assert files(disk) == before
        assert [status.id for status in store.statuses()] == ["a-1"]
        filler.unlink()
        begin(store, "a-2").close()
        assert store.count() == 2


def append_for_ever(writer: RunWriter) -> None:
    while True:
        writer.append(entry_of("warning", {"message": "x" * 10_000}))


def test_a_full_disk_refuses_an_event_whole_and_the_writer_goes_on_once_there_is_space(disk: Path) -> None:
    with Store(disk / "home") as store, contextlib.closing(begin(store, "a-1")) as writer:
        filler = fill(disk)
        with pytest.raises(StoreFull, match="no space left"):
            append_for_ever(writer)
        before = writer.status
        for _ in range(3):  # refused every time, for the same reason
            with pytest.raises(StoreFull):
                writer.append(entry_of("warning", {"message": "y" * 10_000}))
        assert writer.status == before == store.status("a-1") == fold(store.events("a-1"))
        filler.unlink()
        writer.append(entry_of("end", {"phase": "succeeded", "exit_code": 0}))
        assert store.status("a-1") == fold(store.events("a-1"))
        assert store.status("a-1").phase is Phase.SUCCEEDED


def test_a_limit_on_file_sizes_is_a_store_error_and_nothing_is_half_written(tmp_path: Path) -> None:
    code = (
        "import resource\n"
        "store = Store(Path(sys.argv[1]))\n"
        "writer = begin(store, 'a-1')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
        "try:\n"
        "    while True:\n"
        "        writer.append(Warned('x' * 5000))\n"
        "except StoreError as error:\n"
        "    print(type(error).__name__, error.message)\n"
    )
    with python(code, tmp_path) as limited:
        said = limited.communicate(timeout=200)[0]
    assert said.startswith("Store")
    with Store(tmp_path) as store:
        events = store.events("a-1")
        assert len(events) > 1
        assert store.status("a-1") == fold(events)


def a_file(path: Path) -> Path:
    path.write_text("a file, not a folder")
    return path


@pytest.mark.parametrize(
    "home",
    [a_file, lambda path: a_file(path) / "below", lambda path: Path("/proc/windlass")],
    ids=["a file", "below a file", "where no user may"],
)
def test_a_home_that_cannot_be_made_is_a_store_error_that_names_it(
    tmp_path: Path, home: Callable[[Path], Path]
) -> None:
    place = home(tmp_path / "home")
    with pytest.raises(StoreError, match=re.escape(str(place))) as caught:
        Store(place)
    assert "WINDLASS_HOME" in caught.value.hint


def test_a_record_that_may_only_be_read_is_a_store_error(disk: Path) -> None:
    with Store(disk / "home") as store:
        begin(store, "a-1").close()
    make_read_only(disk)
    with pytest.raises(StoreError, match="cannot be") as caught, Store(disk / "home") as store:
        begin(store, "a-2")
    assert not isinstance(caught.value, StoreFull)
    assert "WINDLASS_HOME" in caught.value.hint


def not_sqlite(path: Path) -> None:
    path.write_bytes(b"this is no database, and long enough to be asked what it is instead " * 100)


def truncated_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:50])


def truncated_pages(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def noise(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:] = bytes(byte ^ 0xA5 for byte in data[4096:])
    path.write_bytes(data)


def read_and_write(home: Path) -> None:
    with Store(home) as store:
        store.statuses()
        begin(store, "b-1").close()


@pytest.mark.parametrize("damage", [not_sqlite, truncated_header, truncated_pages, a_folder, noise])
def test_a_damaged_record_is_a_store_error_that_names_it(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    with Store(tmp_path) as store:
        for number in range(20):
            begin(store, f"a-{number:02d}").close()
    damage(tmp_path / "record.db")
    with pytest.raises(StoreError, match=re.escape(str(tmp_path))) as caught:
        read_and_write(tmp_path)
    assert caught.value.hint


def test_a_status_that_was_stored_reads_back_equal(store: Store) -> None:
    with contextlib.closing(begin(store, "a-1")) as writer:
        writer.append(entry_of("attempt", {"number": 1, "world_size": 2, "nodes": [[0], [1]]}), at=BIRTH + 1)
        writer.append(
            entry_of("cause", {"rank": 1, "summary": "x", "traceback": "é\n\udcff", "victims": [0]}), at=BIRTH + 2
        )
        writer.append(entry_of("end", {"phase": "failed", "exit_code": 1}), at=BIRTH + 3)
        again = store.status("a-1")
        assert again == writer.status == replace(again)
        assert again.cause is not None
        assert writer.status.cause is not None
        assert json.loads(json.dumps(again.cause.to_json())) == writer.status.cause.to_json()


NOTES = """
import sys
from windlass.runs.store import Store
store = Store(sys.argv[1])
print(ascii(store.status("digits-aaaaa").about.note))
store.write_note("digits-aaaaa", sys.argv[2])
"""


def test_a_note_is_the_same_in_every_locale(tmp_path: Path) -> None:
    begin(Store(tmp_path), "digits-aaaaa").close()
    Store(tmp_path).write_note("digits-aaaaa", "größe")
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    read = subprocess.check_output([sys.executable, "-c", NOTES, str(tmp_path), "grün"], env=ascii_only, text=True)
    assert read.strip() == ascii("größe")
    assert Store(tmp_path).status("digits-aaaaa").about.note == "grün"


def test_a_note_that_was_removed_does_not_come_back_with_the_next_event(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.create("a-1", name="a", target="local", output_dir="", plan="{}", time=1.0).close()
        store.write_note("a-1", "a note")
        writer = store.writer("a-1")
        assert writer is not None
        writer.append(PhaseEntered(Phase.TRAINING))
        store.write_note("a-1", "")
        writer.append(PhaseEntered(Phase.CHECKPOINTING))
        writer.close()
        assert store.status("a-1").about.note == ""
