"""Removes folders of runs in two steps, so that a deletion that was killed is finished later.

A folder is first renamed into `HOME/trash`. From then on the run counts as deleted: the next command that opens the
record takes its rows out, and `rm`, `ps --all` and supervisors that end remove the folder.
"""

from __future__ import annotations

import contextlib
from pathlib import Path


class Trash:
    """Folders of deleted runs, named by their ids."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "trash"

    def ids(self) -> list[str]:
        """The runs whose folders still exist; usually none."""
        try:
            return sorted(path.name for path in self.folder.iterdir())
        except OSError:
            return []

    def put(self, run_dir: Path) -> None:
        """Move the folder of a run into the trash; one that cannot be moved stays where it is."""
        with contextlib.suppress(OSError):  # no such folder, a mount point, or no space for a name
            self.folder.mkdir(mode=0o700, exist_ok=True)
            run_dir.rename(self.folder / run_dir.name)

    def drain(self, run_id: str) -> None:
        """Remove the content of a folder and keep the folder: the rows of its run are not deleted yet."""
        with contextlib.suppress(OSError):
            for path in list((self.folder / run_id).iterdir()):
                remove(path)

    def empty(self) -> None:
        """Remove all folders. What cannot be removed is left for the next time."""
        for run_id in self.ids():
            remove(self.folder / run_id)
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def remove(path: Path) -> None:
    """Remove a file or folder with its content, as far as possible."""
    import shutil  # loads three compression libraries, which no other command needs

    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
