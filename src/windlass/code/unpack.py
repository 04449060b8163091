"""Extracts an archive into a folder with the rules of tarfile's `data` filter, available since Python 3.11.4."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from windlass.worker.output_size import entries
from windlass.worker.tarpipe import leads_out


def extract(tar: tarfile.TarFile, members: Sequence[tarfile.TarInfo], folder: str | os.PathLike[str]) -> None:
    """Extracts members into a folder, owned by the user. If one member is refused, nothing is written.

    Raises OSError, and tarfile.TarError for a member that leads out of the folder or through a link, and for devices.
    """
    for member, why in refused(members):
        raise tarfile.TarError(f"{member.name}: {why}")
    if hasattr(tarfile, "data_filter"):
        tar.extractall(folder, members, filter="data")
        return
    for member in members:
        member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
        member.mode = member.mode & 0o755 | (0o700 if member.isdir() else 0o600)
    tar.extractall(folder, members)


def extract_permitted(tar: tarfile.TarFile, folder: Path) -> list[str]:
    """Extracts all members except those that `extract` refuses; returns the names of refused members, each with the
    reason.

    Files are moved into the folder once all are extracted. Existing links there are replaced, and nothing is written
    through them. Raises OSError, and tarfile.TarError, EOFError and zlib.error for a damaged archive.
    """
    members = tar.getmembers()
    refused_members = dict(refused(members))
    names = {os.path.normpath(member.name) for member in refused_members}
    for member in members:
        if member not in refused_members and member.islnk() and os.path.normpath(member.linkname) in names:
            refused_members[member] = f"another name of {member.linkname}, which is left out"
    good = [member for member in members if member not in refused_members]
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(mode=0o700)
    try:
        extract(tar, good, part)
        move_into(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return [f"{member.name}: {why}" for member, why in refused_members.items()]


def move_into(source: Path, target: Path) -> None:
    """Moves the files of a folder into another one, each atomically; replaces files with the same path.

    Raises OSError.
    """
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in entries(str(source)):
        to = target / path
        for parent in [*reversed(Path(path).parents)][1:]:
            if not (target / parent).is_dir() or (target / parent).is_symlink():
                with suppress(FileNotFoundError):
                    (target / parent).unlink()
                (target / parent).mkdir()
        if to.is_dir() and not to.is_symlink():
            shutil.rmtree(to)
        (source / path).replace(to)


def refused(members: Iterable[tarfile.TarInfo]) -> Iterator[tuple[tarfile.TarInfo, str]]:
    """Yields the members that `extract` refuses, each with the reason."""
    links: set[str] = set()
    for member in members:
        if why := _refused(member, links):
            yield member, why
        elif member.issym():
            links.add(os.path.normpath(member.name))


def _refused(member: tarfile.TarInfo, links: set[str]) -> str:
    """Returns why a member is not extracted; empty if it is extracted."""
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return "neither file, folder nor link"
    names = [member.name, member.linkname] if member.islnk() else [member.name]
    for name in map(os.path.normpath, names):
        parts = name.split("/")
        if name.startswith("/") or parts[0] == "..":
            return "leads out"
        if any("/".join(parts[:end]) in links for end in range(1, len(parts) + 1)):
            return "goes through a link"
    if member.issym() and leads_out(os.path.normpath(member.name).count("/"), member.linkname):
        return f"a link that leads out, to {member.linkname}"
    return ""
