"""Small disks that can be filled, for tests of what happens then."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(folder: Path, size_kib: int) -> Iterator[Path]:
    """A file system of its own at `folder`. Skips the test where none may be mounted."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount the small file system that this test fills")
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_kib}k,mode=700", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Take all the space of the file system that holds `folder`; gives the file to remove."""
    filler = folder / "filler"
    with open(filler, "ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1 << 9, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size):
                    pass
    return filler


def make_read_only(disk: Path) -> None:
    """Refuse every further write to a small disk."""
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
