"""Lists the files below a folder; as a program, prints the digest of the listing.

A copy between two folders runs this program to list both on separate cores, because most of the time is spent in
Python.
"""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from windlass.storage.files import version
from windlass.storage.names import is_own
from windlass.storage.place import Entry, system_errors

if TYPE_CHECKING:
    from windlass.storage.manifest import File

_MAIN: Final = "import sys; sys.path.insert(0, sys.argv.pop(1)); from windlass.storage.walk import main; main()"


def walk(folder: Path) -> Iterator[Entry]:
    """Yields all files below a folder, except Windlass's own. A subfolder that cannot be read is yielded as an entry
    with a problem. Raises StorageError.
    """
    root = os.path.realpath(folder)
    waiting = [""]
    while waiting:
        below = waiting.pop()
        try:
            opened = os.scandir(f"{root}/{below}")
        except OSError as error:
            if not below:
                with system_errors(str(folder)):
                    raise
            if not isinstance(error, FileNotFoundError):  # a folder that was removed meanwhile is ignored
                yield Entry(_shown(below), 0, "", f"it cannot be read: {error.strerror}")
            continue
        with system_errors(str(folder / below)), opened as found:
            for one in found:
                name = f"{below}/{one.name}" if below else one.name
                if is_own(name):
                    continue
                if one.is_dir(follow_symlinks=False):
                    waiting.append(name)
                else:
                    yield _entry(root, name, one)


def digest_of(files: Iterable[Entry | File]) -> str:
    """Returns the digest of the names, sizes and versions of a listing in any order."""
    lines = sorted(f"{one.name}\0{one.size}\0{one.version}" for one in files)
    return hashlib.sha256("\n".join(lines).encode(errors="surrogatepass")).hexdigest()


def digest_beside(folder: Path) -> str:
    """Returns the digest of `walk(folder)`, computed by a separate process; empty if that failed. Raises OSError."""
    package = str(Path(__file__).parents[2])
    command = [sys.executable, "-I", "-S", "-c", _MAIN, package, str(folder)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def main() -> None:
    """Prints the digest of the folder given on the command line."""
    print(digest_of(walk(Path(sys.argv[1]))))


def _shown(name: str) -> str:
    """Returns a printable name; names in UTF-8 are unchanged."""
    return name.encode(errors="backslashreplace").decode()


def _entry(root: str, name: str, found: os.DirEntry[str]) -> Entry:
    if (shown := _shown(name)) != name:
        return Entry(shown, 0, "", "its name is no UTF-8")
    if found.is_symlink():
        target = os.path.realpath(found.path)
        if os.path.commonpath([root, target]) != root:
            return Entry(name, 0, "", "it is a link to a place outside of the folder")
    try:
        status = found.stat()
    except OSError as error:
        return Entry(name, 0, "", f"it cannot be read: {error.strerror}")
    if not stat.S_ISREG(status.st_mode):
        return Entry(name, 0, "", "it is a link to a folder" if stat.S_ISDIR(status.st_mode) else "it is no file")
    return Entry(name, status.st_size, version(status))
