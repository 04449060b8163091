"""One home that two installations of Windlass use: ranks import the parts of the one that started them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import windlass

PACKAGE = Path(windlass.__file__).parent
SCRIPT = """
import os
import windlass.train
print("parts of", os.path.realpath(windlass.train.__file__))
"""


def test_ranks_import_the_parts_of_the_installation_that_started_them(tmp_path: Path) -> None:
    other = tmp_path / "other" / "windlass"
    shutil.copytree(PACKAGE, other, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True, timeout=240)
    (tmp_path / "train.py").write_text(SCRIPT)
    for package in (PACKAGE, other, PACKAGE):
        done = subprocess.run(
            [sys.executable, "-m", "windlass", "run", "train.py", "--set", f"python={tmp_path / 'bare/bin/python'}"],
            env={**os.environ, "PYTHONPATH": str(package.parent), "WINDLASS_HOME": str(tmp_path / "home")},
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert f"[0] parts of {package}/train/__init__.py\n" in done.stdout, done.stderr
