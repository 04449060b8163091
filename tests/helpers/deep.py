"""Folders nested more deeply than Python calls functions."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def deep_tree(folder: Path) -> Iterator[Path]:
    """The innermost of so many folders in `folder`; they are removed, for pytest cannot."""
    place, made = folder, []
    for _ in range(sys.getrecursionlimit() + 50):
        place = place / "a"
        place.mkdir()
        made.append(place)
    try:
        yield place
    finally:
        for path in reversed(made):
            path.rmdir()
