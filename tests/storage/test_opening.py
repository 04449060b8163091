"""Processes on each host and node import `storage`; what they do not use must not delay their start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import windlass

OPEN_FOLDER = """
from windlass.storage.address import Address
from windlass.storage.opening import open_place
open_place(Address.parse("/data", Path("/")), Path("/home"))
"""


@pytest.mark.parametrize(
    ("code", "unused"),
    [
        pytest.param(OPEN_FOLDER, ("http.client", "xml"), id="a folder"),
        pytest.param("import windlass.storage.files", ("logging", "concurrent.futures"), id="writing a file"),
    ],
)
def test_modules_that_are_not_used_are_not_imported(code: str, unused: tuple[str, ...]) -> None:
    begin = "import sys\nfrom pathlib import Path\nsys.path.insert(0, sys.argv[1])\n"
    program = f"{begin}{code}\nprint([name for name in {unused!r} if name in sys.modules])"
    source = str(Path(windlass.__file__).parents[1])
    command = [sys.executable, "-I", "-S", "-c", program, source]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"
