"""Uploads what a job has written to /opt/ml/model and /opt/ml/output/data, of all hosts together.

Different files of two hosts with the same name clash; the one of the first host is taken, and the other is left out by
name.
"""

from __future__ import annotations

import asyncio
import filecmp
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from windlass.engines.sagemaker.layout import MODEL_ARCHIVE
from windlass.engines.sagemaker.service import Request
from windlass.engines.sagemaker.twin.layout import ML, is_plain
from windlass.engines.sagemaker.twin.transfer import Transfers, folder_address, listed, parse
from windlass.storage.folder import Folder
from windlass.storage.place import system_errors
from windlass.worker.tarpipe import leads_out

MODEL, DATA = "model", "output/data"
"""Below /opt/ml."""
GZIP_LEVEL: Final = 1
"""Weights hardly get smaller, and each higher level takes longer."""
MAX_FAILURE: Final = 1024
"""Characters of /opt/ml/output/failure that a description has."""
MAX_FAILURE_BYTES: Final = 4 * MAX_FAILURE


class Artifacts:
    """Of one job, once its hosts have ended: nothing changes their folders any more."""

    def __init__(self, request: Request, hosts: Sequence[Path], transfers: Transfers, scratch: Path) -> None:
        """`hosts`: their folders; `scratch`: a folder that is made for archives, and removed."""
        self._hosts, self._transfers, self._scratch = hosts, transfers, scratch
        base = f"{request['OutputDataConfig']['S3OutputPath'].rstrip('/')}/{request['TrainingJobName']}/output"
        self._destination = parse(base)
        self.model_uri = f"{base}/{MODEL_ARCHIVE}"
        """Where the model is."""
        self.left_out: list[str] = []
        """What could not be uploaded, each with the reason."""

    async def upload(self) -> None:
        """Upload all of it. Raises StorageError."""
        with system_errors(str(self._scratch)):
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch.mkdir()
            await asyncio.to_thread(self._pack, MODEL, self._scratch / MODEL_ARCHIVE)
            if any(any(folder.iterdir()) for folder in self._folders(DATA)):
                await asyncio.to_thread(self._pack, DATA, self._scratch / "output.tar.gz")
            packed = Folder(folder_address(self._scratch))
            done = await self._transfers.copy(packed, await listed(packed), self._destination)
            self.left_out += [f"{one.name}: {one.why}" for one in done.refused]
            shutil.rmtree(self._scratch)

    def _folders(self, name: str) -> list[Path]:
        """The folders of that name of all hosts; one that the container has replaced by a link is left out."""
        found = []
        for host in self._hosts:
            if is_plain(host / ML, name):
                found.append(host / ML / name)
            else:
                self.left_out.append(f"{name} of {host.name}: it is no folder any more")
        return found

    def _pack(self, name: str, path: Path) -> None:
        """Write an archive. Raises OSError."""
        known: dict[str, Path | None] = {}
        with tarfile.open(path, "w:gz", compresslevel=GZIP_LEVEL, format=tarfile.PAX_FORMAT) as tar:
            for folder in self._folders(name):
                for below_folder in _walk(folder):
                    self._add(tar, folder, below_folder, f"{name}/{below_folder}", known)

    def _add(self, tar: tarfile.TarFile, folder: Path, name: str, shown: str, known: dict[str, Path | None]) -> None:
        """Add one file or folder; `known` are those that the archive has: the path of a file, None for a folder.

        Of a file that another host has written just so, none is left out.
        """
        tar.inodes = {}  # type: ignore[attr-defined]  # a file with two names is packed twice, and never as a link
        info = tar.gettarinfo(folder / name, name)
        if why := _problem(info, name):
            self.left_out.append(f"{shown}: {why}")
            return
        above = name.rpartition("/")[0]
        if name in known and _is_same(known[name], info, folder / name):
            return
        if name in known or known.get(above, None if not above else folder) is not None:
            self.left_out.append(f"{shown}: another host has a file of that name")
            return
        known[name] = None if info.isdir() else folder / name
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        if info.isreg():
            with open(folder / name, "rb") as file:
                tar.addfile(info, file)
        else:
            tar.addfile(info)


def _is_same(there: Path | None, info: tarfile.TarInfo, path: Path) -> bool:
    """Whether a folder, or a regular file with the same content, is in the archive already."""
    if there is None or not info.isreg():
        return there is None and info.isdir()
    return not there.is_symlink() and filecmp.cmp(there, path, shallow=False)


def failure(host: Path) -> str:
    """The first 1,024 characters of what a host has written to /opt/ml/output/failure."""
    if not is_plain(host / ML, "output"):
        return ""
    try:
        descriptor = os.open(host / ML / "output/failure", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        return file.read(MAX_FAILURE_BYTES).decode(errors="replace").strip()[:MAX_FAILURE]


def _problem(info: tarfile.TarInfo | None, name: str) -> str:
    """Why a file cannot be a member of an archive; empty where it can."""
    if info is None or not (info.isreg() or info.isdir() or info.issym()):
        return "it is neither file, folder nor link"
    if info.issym() and leads_out(name.count("/"), info.linkname):
        return "it is a link that leads out"
    return ""


def _walk(folder: Path) -> Iterator[str]:
    """The names of all that is below a folder, a folder before what is in it. Raises OSError."""

    def refuse(error: OSError) -> None:
        raise error  # a folder that cannot be read is not empty

    for at, folders, files in os.walk(folder, onerror=refuse):
        folders.sort()
        for name in sorted([*folders, *files]):
            yield os.path.relpath(os.path.join(at, name), folder)  # noqa: PTH118 - as os.walk gives it
