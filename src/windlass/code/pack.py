"""Packs a folder of code into one archive: the same files give the same bytes, so that a digest names them.

What `.gitignore` and `.windlassignore` name stays behind, read as git reads them: in every folder, the deeper one last.
Links are kept where they lead to a place inside the folder, and refused where they lead out of it; sockets, devices and
pipes are passed over.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from windlass.errors import MissingPart, UsageError

IGNORE_FILES: Final = (".gitignore", ".windlassignore")
NEVER: Final = frozenset({".git", ".hg", ".svn", "__pycache__", ".venv", "venv", "node_modules", ".mypy_cache",
                          ".ruff_cache", ".pytest_cache", ".ipynb_checkpoints", ".DS_Store"})  # fmt: skip
"""Names that are no code, whether or not somebody has listed them."""
FEW: Final = 5
"""Largest files that are named where a folder is too large."""


@dataclass(frozen=True, slots=True)
class Packed:
    """An archive of code, a gzipped tar."""

    data: bytes
    digest: str
    """SHA-256 of `data`, in hex."""
    num_files: int
    largest: tuple[tuple[str, int], ...]
    """The largest files with their bytes before compression, the largest first."""


def pack(folders: Mapping[str, Path], limit: int) -> Packed:
    """An archive that holds each folder, or file, under the name that it has in `folders`.

    `limit` is the most bytes that the files may have before they are compressed: beyond it nothing is read.
    Raises UsageError: too large, a link that leads out, a file that cannot be read; MissingPart.
    """
    found = sorted(entry for name, root in folders.items() for entry in _entries(name, root))
    sizes = sorted(((path.lstat().st_size, name) for name, path, _ in found), reverse=True)
    largest = tuple((name, size) for size, name in sizes[:FEW])
    total = sum(size for size, _ in sizes)
    if total > limit:
        raise UsageError(f"the code is {_megabytes(total)}, and at most {_megabytes(limit)} travel with a job",
                         f"largest: {_listed(largest)}; name what is not code in .windlassignore")  # fmt: skip
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, path, root in found:
            _add(archive, name, path, root)
    data = gzip.compress(tar.getvalue(), compresslevel=6, mtime=0)
    return Packed(data, hashlib.sha256(data).hexdigest(), len(found), largest)


def _entries(name: str, root: Path) -> Iterator[tuple[str, Path, Path]]:
    """The name in the archive, the place and the folder of each file."""
    if root.is_file():
        yield name, root, root.parent
    else:
        for path in _files(root, root, []):
            yield f"{name}/{path}", root / path, root


def _files(root: Path, folder: Path, rules: list[tuple[Path, object]]) -> Iterator[PurePosixPath]:
    """Files and links of a folder, relative to `root`, without what the ignore files of it and its parents name."""
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - names alone
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror}", "check code:") from error
    rules = [*rules, *((folder, spec) for name in IGNORE_FILES if name in names for spec in [_spec(folder / name)])]
    for name in names:
        path = folder / name
        mode = path.lstat().st_mode
        if name in NEVER or _is_ignored(path, rules, is_dir=stat.S_ISDIR(mode)):
            continue
        if stat.S_ISDIR(mode):
            yield from _files(root, path, rules)
        elif stat.S_ISREG(mode) or stat.S_ISLNK(mode):
            yield PurePosixPath(path.relative_to(root))


def _spec(path: Path) -> object:
    try:
        import pathspec
    except ImportError as error:
        raise MissingPart("pathspec is needed to read ignore files", "pip install 'windlass[kubernetes]'") from error
    try:
        return pathspec.GitIgnoreSpec.from_lines(path.read_text(errors="replace").splitlines())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}", "see: git help gitignore") from error


def _is_ignored(path: Path, rules: list[tuple[Path, object]], *, is_dir: bool) -> bool:
    """Whether the last rule that says something of a path says that it stays behind."""
    for folder, spec in reversed(rules):
        name = PurePosixPath(path.relative_to(folder)).as_posix() + ("/" if is_dir else "")
        said = spec.check_file(name).include  # type: ignore[attr-defined]
        if said is not None:
            return bool(said)
    return False


def _add(archive: tarfile.TarFile, name: str, path: Path, folder: Path) -> None:
    """One file with nothing of this machine: no owner, no time, no rights but to run it."""
    entry = tarfile.TarInfo(name)
    found = path.lstat()
    entry.mode = 0o755 if found.st_mode & stat.S_IXUSR else 0o644
    if stat.S_ISLNK(found.st_mode):
        if not path.resolve().is_relative_to(folder.resolve()):
            raise UsageError(f"{path} is a link that leads out of {folder}", "copy what it leads to, or ignore it")
        entry.type, entry.linkname = tarfile.SYMTYPE, os.path.relpath(path.resolve(), path.parent.resolve())
        archive.addfile(entry)
        return
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "name it in .windlassignore") from error
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.1f} MB"


def _listed(files: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(f"{name.split('/', 1)[1]} ({_megabytes(size)})" for name, size in files)
