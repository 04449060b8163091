"""Finds saved training states in folders, by their file names."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator

from windlass.worker.protocol import SavedState

ZIPPED = (".pt", ".pth", ".bin", ".ckpt", ".tar", ".keras")
SAVED = (*ZIPPED, ".safetensors", ".npz", ".h5", ".distcp")
"""Suffixes of files with saved training states."""
MAX_FILES = 5000


def is_saved_state(path: str) -> bool:
    """Whether a file is a saved training state, judged by its name."""
    return path.endswith(SAVED)


def newest_saved(folders: Iterable[str], since: float, until: float = float("inf")) -> SavedState | None:
    """Returns the newest saved training state in these folders that was written between `since` and `until` (Unix
    seconds).
    """
    found: list[SavedState] = []
    for folder in folders:
        for entry in itertools.islice((one for one in walk(folder) if is_saved_state(one.name)), MAX_FILES):
            with contextlib.suppress(OSError):
                status = entry.stat()
                if since < status.st_mtime < until and not entry.is_dir():
                    found.append(SavedState(entry.path, status.st_size, status.st_mtime))
    return max(found, key=lambda one: one.at, default=None)


def walk(
    folder: str,
    is_skipped: Callable[[os.DirEntry[str]], bool] = lambda _: False,
    on_error: Callable[[OSError], None] = lambda _: None,
) -> Iterator[os.DirEntry[str]]:
    """Yields the files and links below a folder. Skips subfolders for which `is_skipped` is true, and unreadable ones
    unless `on_error` raises their error.
    """
    waiting = [folder]  # not os.walk, which is recursive until Python 3.12
    while waiting:
        try:
            with os.scandir(waiting.pop()) as found:
                entries = list(found)
        except OSError as error:  # the folder was removed or is not readable
            on_error(error)
            continue
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                yield entry
            elif not is_skipped(entry):
                waiting.append(entry.path)
