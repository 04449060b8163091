"""Ranks whose interpreter lacks Windlass import its parts, and the user's modules in PYTHONPATH."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import windlass

PACKAGE = Path(windlass.__file__).parent
SCRIPT = """
import os
import windlass.train
print("parts of", os.path.realpath(windlass.train.__file__))
try:
    import mine
    print("mine is", mine.__file__)
except ImportError:
    pass
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns an interpreter without Windlass."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=240)
    return folder / "bin" / "python"


def run(folder: Path, python: Path, *words: str, package: Path = PACKAGE, env: Mapping[str, str] | None = None) -> str:
    """Returns the output of a run of the script, started by the installation in `package`."""
    (folder / "train.py").write_text(SCRIPT)
    program = "import sys; sys.path.insert(0, sys.argv.pop(1)); from windlass.cli.entry import main; sys.exit(main())"
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(package.parent), "run", "train.py", "--set", f"python={python}", *words],
        env={**environ, "WINDLASS_HOME": str(folder / "home"), **(env or {})},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_ranks_import_the_parts_of_the_installation_that_started_them(tmp_path: Path, bare: Path) -> None:
    other = tmp_path / "other" / "windlass"
    shutil.copytree(PACKAGE, other, ignore=shutil.ignore_patterns("__pycache__"))
    for package in (PACKAGE, other, PACKAGE):
        assert f"[0] parts of {package}/train/__init__.py\n" in run(tmp_path, bare, package=package)


@pytest.mark.parametrize("of_job", [False, True])
def test_pythonpath_of_shell_or_job_is_kept(tmp_path: Path, bare: Path, of_job: bool) -> None:
    mine = tmp_path / "lib" / "mine.py"
    mine.parent.mkdir()
    mine.touch()
    words = ["--set", f"env.PYTHONPATH={mine.parent}"] if of_job else []
    printed = run(tmp_path, bare, *words, env={} if of_job else {"PYTHONPATH": str(mine.parent)})
    assert f"[0] mine is {mine}\n" in printed
    assert f"[0] parts of {PACKAGE}/train/__init__.py\n" in printed
