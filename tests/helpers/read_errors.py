"""Reads that fail as on a network file system, switched on and off while the processes under test run."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("read_errors.c")


@dataclass(frozen=True)
class ReadErrors:
    """A preloaded library and the file that controls it."""

    library: Path
    control: Path

    @property
    def environ(self) -> dict[str, str]:
        """What a process needs whose reads are to fail."""
        return {"LD_PRELOAD": str(self.library), "READ_ERRORS": str(self.control)}

    def begin(self, number: int, folder: Path, *, once: bool = False) -> None:
        """From now on reads below `folder` fail with this errno; with `once` a single one of them."""
        partial = self.control.with_suffix(".partial")
        partial.write_text(f"{number} {folder}{' once' if once else ''}\n")
        partial.rename(self.control)

    def end(self) -> None:
        """Reads succeed again."""
        self.control.unlink(missing_ok=True)


def build(folder: Path) -> ReadErrors:
    """Compile the library into `folder`. Skips the test where there is no C compiler."""
    library = folder / "read_errors.so"
    command = ["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", str(library), str(SOURCE), "-ldl"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no C compiler here")
    assert done.returncode == 0, done.stderr
    return ReadErrors(library, folder / "read-errors")
