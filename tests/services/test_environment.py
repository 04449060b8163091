"""The environment of TensorBoard and notebooks is made once, by uv, and made again if its making was killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from windlass.errors import EngineError
from windlass.services.environment import find_jupyter, image_setup, make_environment
from windlass.services.service import ServiceKind

UV = """#!/bin/sh
echo "$*" >> {log}
if [ "$2" = venv ]; then mkdir -p "$5/bin"; else exit {code}; fi
"""


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in the place of uv, which writes its arguments to the returned file."""
    (tmp_path / "bin").mkdir()
    write_uv(tmp_path, 0)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return tmp_path / "log"


def write_uv(tmp_path: Path, code: int) -> None:
    path = tmp_path / "bin" / "uv"
    path.write_text(UV.format(log=tmp_path / "log", code=code))
    path.chmod(0o755)


def make(tmp_path: Path) -> Path:
    return make_environment(ServiceKind.NOTEBOOK, sys.executable, "3.11", tmp_path, lambda _line: None)


def test_environment_is_made_once(tmp_path: Path, uv: Path) -> None:
    assert make(tmp_path) == make(tmp_path)
    venv, install = uv.read_text().splitlines()
    assert venv.startswith("--quiet venv")
    assert "--constraint" in install
    assert "jupyterlab" in install


def test_environment_whose_making_failed_is_made_again(tmp_path: Path, uv: Path) -> None:
    write_uv(tmp_path, 1)
    with pytest.raises(EngineError, match="could not install"):
        make(tmp_path)
    [left] = [path for path in (tmp_path / "environments").iterdir() if path.is_dir()]
    (left / "half").touch()
    write_uv(tmp_path, 0)
    assert make(tmp_path) == left
    assert not (left / "half").exists()


def test_interpreter_that_cannot_be_run_is_reported(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cannot be run"):
        find_jupyter(ServiceKind.NOTEBOOK, str(tmp_path / "python"), tmp_path, lambda _line: None)


def test_image_without_the_packages_is_refused_with_the_line_to_add() -> None:
    script = image_setup(ServiceKind.NOTEBOOK, sys.executable, installs=False)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "RUN pip install jupyterlab==4.6.6 ipykernel jupyter-server 'jupyter-server-proxy>=4,<5'" in done.stderr
    assert "pip install" in image_setup(ServiceKind.NOTEBOOK, "python3", installs=True)
