"""Packs parts of this package into a zip file that Python runs as it is, in any image that has one."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

EPOCH: Final = (1980, 1, 1, 0, 0, 0)
"""The time of all files: the same version gives the same bytes."""
FILE: Final = "windlass.zip"
IMPORTER: Final = Path(__file__).with_name("zip_importer.py")
"""Which the program may install before it imports more: it saves half of the compiling."""

RUNNER: Final = """
import json, os, sys, tempfile
handle, path = tempfile.mkstemp(".zip")
with open(handle, "wb") as file:
    file.write(sys.stdin.buffer.read(int(sys.argv[1])))
os.environ.update(json.loads(sys.argv[2]))
os.execv(sys.executable, [sys.executable, "-I", "-S", path, *sys.argv[3:]])
"""
"""Starts a packed program that comes by standard input: its length, further variables as JSON, and its arguments."""


def packed(main: str, parts: Sequence[str]) -> bytes:
    """The zip file of these files and folders of the package, which runs the program `main`."""
    root = Path(__file__).parents[3]
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        _add(file, "__main__.py", main.encode())
        _add(file, "zip_importer.py", IMPORTER.read_bytes())
        for path in sorted(set(_files(root, parts))):
            _add(file, f"windlass/{path.relative_to(root)}", path.read_bytes())
    return made.getvalue()


def _files(root: Path, parts: Sequence[str]) -> Iterator[Path]:
    for part in parts:
        path = root / part
        yield from path.rglob("*.py") if path.is_dir() else (path,)


def _add(file: zipfile.ZipFile, name: str, data: bytes) -> None:
    info = zipfile.ZipInfo(name, EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED
    file.writestr(info, data)
