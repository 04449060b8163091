"""Records are accessible to their user only, whatever existed before and whatever the umask is."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.helpers.users import OTHER, as_other_user, open_folder
from tests.runs.test_full_disk import begin

from windlass.actions import data
from windlass.engines.local.engine import LocalEngine
from windlass.errors import StoreError
from windlass.runs.context import Context
from windlass.runs.events import entry_of
from windlass.runs.private import CACHE, FOLDERS
from windlass.runs.store import Store


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def others_may(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode) & 0o077


def exposed(home: Path) -> list[Path]:
    """Returns the paths that another user can reach below an accessible folder."""
    found = []
    for path in home.iterdir():
        if others_may(path):
            found.append(path)
            found += exposed(path) if path.is_dir() else []
    return found


def test_a_new_home_and_all_in_it_is_closed_to_others(tmp_path: Path) -> None:
    with Store(tmp_path / "home") as store, contextlib.closing(begin(store)) as writer:
        writer.note(entry_of("end", {"phase": "succeeded", "exit_code": 0}))
        assert not others_may(store.home)
        assert {"record.db", "record.db-wal", "record.db-shm", "runs", "reserve"} <= {
            path.name for path in store.home.iterdir()
        }
        assert exposed(store.home) == []


@pytest.mark.parametrize("filled", [False, True])
def test_a_folder_of_ours_that_was_open_to_others_is_closed(tmp_path: Path, filled: bool) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o775)
    if filled:  # created by an earlier version
        Store(home).close()
        (home / "record.db").chmod(0o644)
        (home / "runs").chmod(0o755)
        home.chmod(0o755)
    Store(home).close()
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert exposed(home) == []


@pytest.mark.parametrize("had_record", [False, True])
def test_a_folder_of_a_project_keeps_its_mode_and_the_records_in_it_are_closed(
    tmp_path: Path, had_record: bool
) -> None:
    home = tmp_path / "project"
    home.mkdir(mode=0o775)
    (home / "data.csv").write_text("1,2\n")
    if had_record:
        Store(home).close()
        (home / "record.db").chmod(0o664)
        (home / "runs").chmod(0o777)
    with Store(home) as store:
        begin(store).close()
        assert stat.S_IMODE(home.stat().st_mode) == 0o775
        assert exposed(home) == [home / "data.csv"]


@pytest.mark.parametrize("theirs", ["", "record.db", "runs"])
def test_files_of_another_user_are_refused_and_unchanged(tmp_path: Path, theirs: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may give a folder away")
    home = tmp_path / "home"
    Store(home).close()
    (home / theirs).chmod(0o770)
    os.chown(home / theirs, 12345, 12345)
    with pytest.raises(StoreError, match=rf"{(home / theirs)} belongs to user 12345, and this process runs as root"):
        Store(home)
    assert stat.S_IMODE((home / theirs).stat().st_mode) == 0o770


@pytest.mark.parametrize("name", [*FOLDERS, CACHE])
def test_a_link_that_another_user_put_into_a_folder_for_all_is_refused(name: str) -> None:
    with open_folder() as home, open_folder() as theirs:
        assert as_other_user(lambda: (home / name).symlink_to(theirs)) == ""
        with pytest.raises(StoreError, match=f"{home / name} belongs to user {OTHER}, and this process runs as root"):
            Store(home)
        assert list(theirs.iterdir()) == []


def test_a_link_to_another_disk_that_the_user_or_root_made_is_followed() -> None:
    with open_folder() as home, open_folder() as disk:
        (home / "data").symlink_to(disk)  # a link created by root
        assert as_other_user(lambda: (home / "runs").symlink_to(disk)) == ""
        assert as_other_user(lambda: Store(home).close()) == ""


def test_a_folder_with_data_of_the_user_in_it_keeps_its_mode_and_so_does_the_data(tmp_path: Path) -> None:
    home = tmp_path / "project"
    (home / "data").mkdir(parents=True)
    for folder in (home, home / "data"):
        folder.chmod(0o755)
    Store(home).close()
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (home, home / "data")] == [0o755, 0o755]


def test_home_created_by_sudo_is_reported_with_chown_command() -> None:
    with open_folder() as folder:
        home = folder / "a home"
        Store(home).close()
        error = as_other_user(lambda: open_with_hint(home))
        assert f"{home} belongs to user root, and this process runs as {OTHER}" in error
        assert f"sudo chown -R {OTHER} '{home}'" in error


def open_with_hint(home: Path) -> None:
    """Opens a home and raises its error with its hint."""
    try:
        Store(home)
    except StoreError as error:
        raise StoreError(f"{error.message}; {error.hint}") from error


def test_warm_processes_and_fetched_data_of_another_users_home_are_refused() -> None:
    with open_folder() as folder:
        home = folder / "home"
        assert as_other_user(lambda: Store(home).close()) == ""
        context = Context({"WINDLASS_HOME": str(home)}, folder)
        calls: list[Callable[[], object]] = [
            lambda: LocalEngine.list_warm(home),
            lambda: LocalEngine.stop_warm(home),
            lambda: LocalEngine.switch_warm(home, on=False),
            lambda: data.list_cache(context),
            lambda: data.copy(str(home / "runs"), str(folder / "to"), context),
        ]
        for call in calls:
            with pytest.raises(StoreError, match=f"{home} belongs to user {OTHER}"):
                call()
        assert not (folder / "to").exists()


def test_a_user_may_keep_records_in_a_folder_that_root_made_for_all() -> None:
    with open_folder() as home:
        assert as_other_user(lambda: Store(home).close()) == ""
        assert (home / "record.db").stat().st_uid == OTHER
        assert stat.S_IMODE(home.stat().st_mode) == 0o777
        assert exposed(home) == []
