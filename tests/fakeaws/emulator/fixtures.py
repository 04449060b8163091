"""Pytest fixtures of the emulated account and of Terraform; a test module imports those that it uses."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakeaws.emulator import Emulator, emulated_aws, terraform_environ, terraform_mirror


@pytest.fixture
def aws(tmp_path: Path) -> Iterator[Emulator]:
    """An emulated account that is empty, for one test."""
    with emulated_aws(tmp_path / "aws") as emulator:
        yield emulator


@pytest.fixture(scope="module")
def shared_aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """An emulated account for the tests of a module that do not disturb each other."""
    with emulated_aws(tmp_path_factory.mktemp("aws")) as emulator:
        yield emulator


@pytest.fixture(scope="session")
def terraform(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of `terraform`; a test that asks for it is skipped where Terraform or its provider is missing."""
    require_terraform()
    return terraform_environ(tmp_path_factory.mktemp("terraform"))


def require_terraform() -> None:
    """Skip the test where `terraform`, or a place to install its provider from, is missing."""
    if shutil.which("terraform") is None:
        pytest.skip("terraform is not installed")
    named = os.environ.get("TF_CLI_CONFIG_FILE", "")
    if terraform_mirror() is None and not (named and Path(named).is_file()):
        pytest.skip("no mirror of Terraform's providers: set WINDLASS_TEST_TERRAFORM_MIRROR")
