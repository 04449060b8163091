"""Extracts an archive into a folder, by the rules of tarfile's filter `data`: Python 3.11 has it from 3.11.4 on."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Sequence

from windlass.worker.tarpipe import leads_out


def extract(tar: tarfile.TarFile, members: Sequence[tarfile.TarInfo], folder: str | os.PathLike[str]) -> None:
    """Extract members into a folder, as files of the user. Nothing is written where one of them is refused.

    Raises OSError, and tarfile.TarError for a member that leads out of the folder or through a link, and for devices.
    """
    links: set[str] = set()
    for member in members:
        if why := _refused(member, links):
            raise tarfile.TarError(f"{member.name}: {why}")
        if member.issym():
            links.add(os.path.normpath(member.name))
    if hasattr(tarfile, "data_filter"):
        tar.extractall(folder, members, filter="data")
        return
    for member in members:
        member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
        member.mode = member.mode & 0o755 | (0o700 if member.isdir() else 0o600)
    tar.extractall(folder, members)


def _refused(member: tarfile.TarInfo, links: set[str]) -> str:
    """Why a member is not extracted; empty where it is."""
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
