"""Packs a code folder into one reproducible archive: the same files give the same bytes and digest.

Files excluded by `selection.py` are not packed. Links are kept if their target is packed too, and refused if it is
outside of the folder or excluded; sockets, devices and pipes are skipped. Folders at the top that git ignores are
packed without their contents, because scripts save into them without creating them.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from windlass.code.selection import BUILT_IN, OWN, ExcludedEntries, File, Selection, refuse_credentials, select
from windlass.errors import UsageError

CODE: Final = "code"
"""Name of the folder in the archive."""
FEW: Final = 5
"""Number of largest files that the error for an oversized folder lists."""


@dataclass(frozen=True, slots=True)
class Packed:
    """An archive of code (gzipped tar) and its contents."""

    data: bytes
    digest: str
    """SHA-256 of `data`, in hex."""
    files: tuple[tuple[str, int], ...]
    """Name and bytes before compression of each file of the folder, by name; 0 bytes for a link."""
    excluded: tuple[ExcludedEntries, ...] = ()
    """Entries of the folder that are not packed, by rule."""
    num_added: int = 0
    """Number of files from outside the folder."""
    added_bytes: int = 0

    @property
    def num_bytes(self) -> int:
        """Total bytes of the files of the folder before compression."""
        return sum(size for _, size in self.files)

    @property
    def largest(self) -> tuple[tuple[str, int], ...]:
        """The largest files of the folder, in descending order of size."""
        return tuple(sorted(self.files, key=lambda file: (-file[1], file[0]))[:FEW])


def pack(
    folder: Path,
    limit: int,
    environ: Mapping[str, str],
    added: Mapping[str, Path] | None = None,
    own: Collection[str] = (),
) -> Packed:
    """Creates an archive with a folder, as `code`, and with the files and packages in `added`, under their names.

    `limit` is the maximum number of bytes before compression, which is checked before any file is read. `environ`
    locates the user's git configuration; `own` are absolute paths of folders of Windlass, which are excluded. Raises
    UsageError for an oversized folder, files with credentials, a link whose target is not packed, and a file that
    cannot be read.
    """
    selection = select(folder, environ, own)
    others = sorted(entry for name, path in (added or {}).items() for entry in _added(name, path))
    added_bytes = sum(size for _, _, size in others)
    total = sum(file.num_bytes for file in selection.files) + added_bytes
    files = tuple((file.name, file.num_bytes) for file in selection.files)
    if total > limit:
        largest = Packed(b"", "", files).largest
        raise UsageError(
            f"the code is {_megabytes(total)}, and at most {_megabytes(limit)} travel with a job",
            f"largest: {_listed(largest)}; list files that are not code in .windlassignore",
        )
    refuse_credentials(selection.files, folder)
    _refuse_links(selection, folder)
    members = [(f"{CODE}/{file.name}", file.path) for file in selection.files]
    # Files of added packages may be links, created by an installer, so their targets are packed.
    members += [(name, path.resolve()) for name, path, _ in others]
    data, vanished = archive_of(members, [f"{CODE}/{name}" for name in selection.ignored_folders])
    files = tuple(file for file in files if f"{CODE}/{file[0]}" not in vanished)
    digest = hashlib.sha256(data).hexdigest()
    return Packed(data, digest, files, selection.counted(), len(others), added_bytes)


def archive_of(members: Iterable[tuple[str, Path]], empty_folders: Iterable[str] = ()) -> tuple[bytes, frozenset[str]]:
    """Creates a gzipped tar of files and empty folders. `members` has the name in the archive and the path of each
    file. Also returns the names of files that no longer exist, which are skipped.

    The same files give the same bytes. Raises UsageError for an unreadable file.
    """
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.PAX_FORMAT) as archive:
        vanished = frozenset(name for name, path in members if not _add(archive, name, path))
        for name in empty_folders:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
    return _compressed(tar), vanished


def code_of(archive: bytes) -> bytes:
    """Returns the archive that `archive_of` creates for the files of `code` alone, from an archive of `pack`."""
    tar = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(gzip.decompress(archive))) as packed,
        tarfile.open(fileobj=tar, mode="w", format=tarfile.PAX_FORMAT) as code,
    ):
        for entry in packed:
            if entry.name.startswith(f"{CODE}/") and not entry.isdir():
                entry.pax_headers = {}  # those of long names, which are made again
                code.addfile(entry, packed.extractfile(entry) if entry.isfile() else None)
    return _compressed(tar)


def _compressed(tar: io.BytesIO) -> bytes:
    return gzip.compress(tar.getvalue(), compresslevel=6, mtime=0)


def _added(name: str, path: Path) -> Iterator[tuple[str, Path, int]]:
    """Yields archive name, path and size: of one file, or of each file of a Python package."""
    for file in [path] if path.is_file() else path.rglob("*.py"):
        with contextlib.suppress(FileNotFoundError):  # removed since the folder was listed, or the lock of an editor
            yield (name if file == path else f"{name}/{file.relative_to(path).as_posix()}"), file, file.stat().st_size


def _add(archive: tarfile.TarFile, name: str, path: Path) -> bool:
    """Adds one file without owner and time; of the file mode, only the executable bit is kept. Returns False if the
    file no longer exists.
    """
    entry, data = tarfile.TarInfo(name), b""
    try:
        found = path.lstat()
        if not (is_link := stat.S_ISLNK(found.st_mode)):
            data = path.read_bytes()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", f"name it in {OWN}") from error
    entry.mode = 0o755 if found.st_mode & stat.S_IXUSR else 0o644
    entry.size = len(data)
    if is_link:
        entry.type, entry.linkname = tarfile.SYMTYPE, os.path.relpath(os.path.realpath(path), path.parent.resolve())
    archive.addfile(entry, io.BytesIO(data))
    return True


def _refuse_links(selection: Selection, folder: Path) -> None:
    """Raises UsageError for a link whose target exists here, and would not where the archive is extracted."""
    links = [file.path for file in selection.files if file.is_link]
    packed = _names_and_folders(selection.files) if links else set()
    for path in links:
        if leads_out(path, folder):
            raise UsageError(f"{path} is a link that leads out of {folder}", "copy what it leads to, or ignore it")
        target = Path(os.path.realpath(path))
        name = target.relative_to(folder.resolve()).as_posix()
        if name in packed or not target.exists():
            continue
        entry = selection.excluded_entry(name)
        source, pattern = selection.excluded[entry] if entry is not None else ("", "")
        send_too = f"; to send the target too, write !/{entry} in {OWN}" if source not in ("", BUILT_IN) else ""
        raise UsageError(
            f"{path} is a link to {name}, which is not sent{f': {source} {pattern} excludes it' if source else ''}",
            f"list the link in {OWN}, and name a data set in data:{send_too}",
        )


def _names_and_folders(files: Iterable[File]) -> set[str]:
    """Returns the names of files, and of all folders that contain one; `.` is the folder itself."""
    names = {file.name for file in files}
    return names | {str(parent) for name in names for parent in PurePosixPath(name).parents}


def leads_out(path: Path, folder: Path) -> bool:
    """Whether the target of a link is outside a folder."""
    target = os.path.realpath(path)  # Path.resolve() fails for circular links
    return not Path(target).is_relative_to(folder.resolve())


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.1f} MB"


def _listed(files: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(f"{name} ({_megabytes(size)})" for name, size in files)
