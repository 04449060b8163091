"""This machine remembers the deployments that it has begun to create, until their target reports that they are gone."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from windlass.errors import UsageError
from windlass.services.known import (
    FOLDER,
    STAGING,
    KnownDeployment,
    _all_locked,
    creating,
    folder_of,
    forget,
    known_deployments,
    read_known,
    remember,
)

DIGITS = KnownDeployment("digits", "lab", 100.0, 200.0, "digits-7f3k2", ("zero", "one"))


def test_deployment_is_remembered_until_it_is_forgotten(tmp_path: Path) -> None:
    remember(tmp_path, DIGITS)
    remember(tmp_path, KnownDeployment("digits", "aws", 100.0, None))
    assert [(one.target, one.name) for one in known_deployments(tmp_path)] == [("aws", "digits"), ("lab", "digits")]
    assert read_known(tmp_path, "lab", "digits") == DIGITS
    forget(tmp_path, "lab", "digits")
    assert read_known(tmp_path, "lab", "digits") is None
    assert [one.target for one in known_deployments(tmp_path)] == ["aws"]
    assert not folder_of(tmp_path, "lab", "digits").exists()


def test_deployment_whose_file_is_damaged_is_not_forgotten(tmp_path: Path) -> None:
    remember(tmp_path, DIGITS)
    (folder_of(tmp_path, "lab", "digits") / "deployment.json").write_text("{")
    [found] = known_deployments(tmp_path)
    assert (found.name, found.target, found.ends_at) == ("digits", "lab", None)


def test_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    remember(tmp_path, DIGITS)
    remember(tmp_path, DIGITS)
    assert [path.name for path in folder_of(tmp_path, "lab", "digits").iterdir()] == ["deployment.json"]


def test_deployment_that_is_being_created_is_neither_created_twice_nor_forgotten(tmp_path: Path) -> None:
    with creating(tmp_path, DIGITS):
        with pytest.raises(UsageError, match="another process is creating digits on lab"), creating(tmp_path, DIGITS):
            pass
        forget(tmp_path, "lab", "digits")
        assert read_known(tmp_path, "lab", "digits") == DIGITS
    forget(tmp_path, "lab", "digits")
    assert read_known(tmp_path, "lab", "digits") is None


def test_error_of_a_full_terminal_while_creating_is_raised(tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError), creating(tmp_path, DIGITS):
        raise BlockingIOError


def test_creation_waits_for_a_command_that_removes_the_folder_of_an_earlier_deployment(tmp_path: Path) -> None:
    remember(tmp_path, DIGITS)
    created = threading.Thread(target=lambda: creating(tmp_path, DIGITS).__enter__())
    with _all_locked(tmp_path):
        created.start()
        shutil.rmtree(folder_of(tmp_path, "lab", "digits"))
    created.join()
    assert read_known(tmp_path, "lab", "digits") == DIGITS


def test_file_of_a_model_that_is_being_staged_is_no_deployment(tmp_path: Path) -> None:
    staged = tmp_path / FOLDER / f"{STAGING}77-x" / "model"
    staged.mkdir(parents=True)
    (staged / "deployment.json").write_text("{}")
    assert list(known_deployments(tmp_path)) == []
