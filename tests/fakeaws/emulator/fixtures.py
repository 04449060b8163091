"""Pytest fixtures of the emulated account and of Terraform; test modules import the ones that they use."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakeaws.emulator import Emulator, emulated_aws, terraform_environ, terraform_mirror


@pytest.fixture
def aws(tmp_path: Path) -> Iterator[Emulator]:
    """Yields an empty emulated account for one test."""
    with emulated_aws(tmp_path / "aws") as emulator:
        yield emulator


@pytest.fixture(scope="module")
def shared_aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """Yields an emulated account for the independent tests of a module."""
    with emulated_aws(tmp_path_factory.mktemp("aws")) as emulator:
        yield emulator


@pytest.fixture(scope="session")
def terraform(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Returns the environment of `terraform`; skips the test if Terraform or its provider is missing."""
    require_terraform()
    return terraform_environ(tmp_path_factory.mktemp("terraform"))


def require_terraform() -> None:
    """Skips the test if `terraform`, or a source for its provider, is missing."""
    if shutil.which("terraform") is None:
        pytest.skip("terraform is not installed")
    named = os.environ.get("TF_CLI_CONFIG_FILE", "")
    if terraform_mirror() is None and not (named and Path(named).is_file()):
        pytest.skip("no mirror of Terraform's providers: set WINDLASS_TEST_TERRAFORM_MIRROR")
