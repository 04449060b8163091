"""Extracts an archive into a folder with the rules of tarfile's `data` filter, available since Python 3.11.4."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

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


def extract_permitted(tar: tarfile.TarFile, folder: str | os.PathLike[str]) -> list[str]:
    """Extracts all members except those that `extract` refuses; returns the names of refused members, each with the
    reason.

    Existing links in the folder are replaced, and nothing is written through them. Raises tarfile.TarError, and
    OSError; after an OSError, no file of the archive is left in the folder.
    """
    members = tar.getmembers()
    refused_members = dict(refused(members))
    names = {os.path.normpath(member.name) for member in refused_members}
    for member in members:
        if member not in refused_members and member.islnk() and os.path.normpath(member.linkname) in names:
            refused_members[member] = f"another name of {member.linkname}, which is left out"
    good = [member for member in members if member not in refused_members]
    for member in good:
        _remove_links(folder, os.path.normpath(member.name))
    try:
        extract(tar, good, folder)
    except OSError:
        # After an error, such as a full disk, extracted files are removed, because a file may be truncated.
        for member in good:
            if member.isreg():
                with suppress(OSError):
                    os.unlink(os.path.join(folder, member.name))  # noqa: PTH108, PTH118 - as above
        raise
    return [f"{member.name}: {why}" for member, why in refused_members.items()]


def _remove_links(folder: str | os.PathLike[str], name: str) -> None:
    """Removes links along the path of a file, and at its end."""
    path = os.fspath(folder)
    for part in name.split("/"):
        path = os.path.join(path, part)  # noqa: PTH118 - as os.path.normpath gives it
        if os.path.islink(path):  # noqa: PTH114
            os.unlink(path)  # noqa: PTH108


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
