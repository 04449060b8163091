"""Public names of `windlass.train`, and the cost of importing one of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

import windlass.train


@pytest.mark.parametrize("name", windlass.train.__all__)
def test_each_public_name_is_imported_from_the_package(name: str) -> None:
    assert getattr(windlass.train, name).__name__ == name
    assert name in dir(windlass.train)


def test_a_misspelled_name_is_an_import_error_that_names_it() -> None:
    with pytest.raises(ImportError, match="Chekpoint"):
        from windlass.train import Chekpoint  # noqa: F401


def test_report_does_not_import_checkpoints() -> None:
    line = "import sys; from windlass.train import report; print('windlass.train.checkpoint' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
