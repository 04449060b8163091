"""Removes folders of runs in two steps, so that a killed deletion can be completed later.

A folder is first renamed into `HOME/trash`. From then on the run counts as deleted: the next command that opens the
record deletes its rows, and `rm`, `ps --all` and supervisors at their end remove the folder.
"""

from __future__ import annotations

import contextlib
from pathlib import Path


class Trash:
    """Folders of deleted runs; each folder is named by the run's id."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "trash"

    def ids(self) -> list[str]:
        """Returns the runs whose folders still exist; usually none."""
        try:
            return sorted(path.name for path in self.folder.iterdir())
        except OSError:
            return []

    def put(self, run_dir: Path) -> None:
        """Moves the folder of a run into the trash. A folder that cannot be moved is left unchanged."""
        # The move fails if the folder is missing or a mount point, or if the disk has no space for a directory entry.
        with contextlib.suppress(OSError):
            self.folder.mkdir(mode=0o700, exist_ok=True)
            run_dir.rename(self.folder / run_dir.name)

    def drain(self, run_id: str) -> None:
        """Removes the content of a folder but keeps the folder, because the rows of its run are not deleted yet."""
        with contextlib.suppress(OSError):
            for path in list((self.folder / run_id).iterdir()):
                remove(path)

    def empty(self) -> None:
        """Removes all folders. Folders that cannot be removed remain for the next call."""
        for run_id in self.ids():
            remove(self.folder / run_id)
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def remove(path: Path) -> None:
    """Removes a file or a folder with its content, as far as possible."""
    import shutil  # shutil loads three compression libraries that no other command needs

    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
