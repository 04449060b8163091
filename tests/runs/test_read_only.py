"""A record in a read-only folder can be read, including the content of its WAL."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.helpers.disk import make_read_only, small_disk
from tests.helpers.stores import store_on
from tests.helpers.users import as_other_user, open_folder
from tests.runs.test_store import begin, files

from windlass.actions import runs, why
from windlass.engines.base import Engine
from windlass.errors import StoreError, StoreFull, UsageError
from windlass.plan.plan import NO_PLAN
from windlass.plan.steps import ClusterStep
from windlass.runs.events import entry_of
from windlass.runs.phase import Phase
from windlass.runs.store import Store

NOW = 1_700_000_100.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 4096) as folder:
        yield folder


@pytest.mark.parametrize("on_network", [False, True])
def test_the_record_of_a_read_only_file_system_is_read_and_nothing_is_written(disk: Path, on_network: bool) -> None:
    with store_on(disk / "home", is_network=on_network) as store, contextlib.closing(begin(store, "a-1")) as writer:
        writer.append(entry_of("end", {"phase": "failed", "exit_code": 3}))
        recorded = writer.status
    make_read_only(disk)
    before = files(disk)
    with store_on(disk / "home", is_network=on_network) as store:
        assert store.status(store.find()) == recorded
        assert [event.kind for event in store.events("a-1")] == ["created", "end"]
        with pytest.raises(StoreError, match=f"{disk}/home cannot be") as caught:
            begin(store, "a-2")
        assert not isinstance(caught.value, StoreFull)
        with pytest.raises(StoreError, match=f"{disk}/home cannot be"):
            store.write_note("a-1", "a note")
    assert files(disk) == before


def copy_with_wal(disk: Path, tmp_path: Path) -> None:
    """Copies a home while a process writes, so that the run is only in the WAL."""
    with Store(tmp_path / "live") as store:
        begin(store, "a-1").close()
        assert (store.home / "record.db-wal").stat().st_size
        shutil.copytree(store.home, disk / "home")


def test_content_of_wal_is_read(disk: Path, tmp_path: Path) -> None:
    copy_with_wal(disk, tmp_path)
    make_read_only(disk)
    with Store(disk / "home") as store:
        assert [status.id for status in store.statuses()] == ["a-1"]


@pytest.mark.parametrize("journal", ["record.db-wal", "record.db-journal"])
def test_wal_that_cannot_be_read_without_writing_is_named(disk: Path, tmp_path: Path, journal: str) -> None:
    if journal == "record.db-wal":
        copy_with_wal(disk, tmp_path)
        (disk / "home" / "record.db-shm").unlink()
    else:
        store_on(disk / "home", is_network=True).close()
        (disk / "home" / journal).write_bytes(bytes.fromhex("d9d505f920a163d7") + bytes(504))
    make_read_only(disk)
    with pytest.raises(
        StoreError, match=rf"{disk}/home cannot be written, and .* in {journal} cannot be read"
    ) as caught:
        Store(disk / "home")
    assert "WINDLASS_HOME" in caught.value.hint


def test_a_read_only_folder_without_a_record_is_named(disk: Path) -> None:
    make_read_only(disk)
    with pytest.raises(StoreError, match=f"the record in {disk} cannot be used"):
        Store(disk)


@pytest.mark.parametrize("readable", [True, False])
def test_the_record_of_another_user_is_read_where_it_is_readable(readable: bool) -> None:
    with open_folder() as folder:
        home = folder / "home"
        with Store(home) as store:
            begin(store, "a-1").close()
        for path in (home, home / "record.db") if readable else (home,):
            path.chmod(0o755)

        def look() -> None:
            with Store(home) as store:
                assert store.status("a-1").phase is Phase.QUEUED

        raised = as_other_user(look)
        assert raised == "" if readable else f"{home} cannot be used (Permission denied)" in raised


@contextlib.contextmanager
def unfinished(disk: Path, engine: str) -> Iterator[tuple[Engine, str]]:
    with Store(disk / "home") as store:
        cluster = ClusterStep("", "team", "job", context="lab")
        plan = replace(NO_PLAN, engine=engine, steps=(cluster,) if engine == "kubernetes" else ()).to_text()
        store.create("a-1", name="a", target="lab", output_dir="/o", plan=plan, time=NOW - 100).close()
    make_read_only(disk)
    with Store(disk / "home") as store:
        yield runs.engine_for("a-1", store), "a-1"


@pytest.mark.parametrize("engine", ["local", "fake", "kubernetes", "sagemaker"])
def test_an_unfinished_run_is_shown_as_recorded_and_no_target_is_asked(disk: Path, engine: str) -> None:
    with unfinished(disk, engine) as (its, run_id):
        assert its.status(run_id) == its.store.status(run_id)
        [state] = runs.states(runs.statuses(its.store), its.store, NOW)
        assert (state.status.phase, state.as_of) == (Phase.QUEUED, NOW - 100)
        assert f"{disk}/home cannot be written" in state.stale
        assert [event.kind for event in its.events(run_id)] == ["created"]
        assert why.report(run_id, its).status.phase is Phase.QUEUED


def test_commands_that_need_the_target_are_refused(disk: Path) -> None:
    with unfinished(disk, "kubernetes") as (its, run_id):
        for ask in (its.stop, its.list_checkpoints, its.results):
            with pytest.raises(UsageError, match="needs a record that this process can write"):
                ask(run_id)
