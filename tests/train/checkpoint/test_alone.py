"""Modules that are copied with a rank, such as the writer, work with every Python that a script may use."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[3] / "src"
ALONE = [
    "train/checkpoint/writer.py",
    "train/checkpoint/files.py",
    "train/checkpoint/storage.py",
    "train/checkpoint/__init__.py",
    "train/report.py",
]


@pytest.mark.parametrize("name", ALONE)
def test_writer_needs_only_python_3_9_and_the_standard_library(name: str) -> None:
    tree = ast.parse((SRC / "windlass" / name).read_text("utf-8"), feature_version=(3, 9))
    typing_only = {
        node
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if node in typing_only or not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        assert all(found.split(".")[0] in (*sys.stdlib_module_names, "windlass") for found in names), ast.unparse(node)


def test_writer_starts_isolated_and_imports_only_windlass_and_the_standard_library() -> None:
    program = (
        "import runpy, sys; sys.argv = ['writer.py']; sys.path.insert(0, sys.orig_argv[-1])\n"
        "import windlass.train.checkpoint.writer\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, str(SRC)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['__main__', 'windlass']"
