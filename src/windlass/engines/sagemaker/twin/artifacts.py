"""Uploads the files that all hosts of a job have written to /opt/ml/model and /opt/ml/output/data.

If two hosts have different files of the same name, the file of the first host is uploaded; the other is reported as
skipped.
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
"""Folders of artifacts below /opt/ml."""
GZIP_LEVEL: Final = 1
"""Compression level. Model weights hardly compress, and higher levels take longer."""
MAX_FAILURE: Final = 1024
"""Maximum characters of /opt/ml/output/failure in a description."""
MAX_FAILURE_BYTES: Final = 4 * MAX_FAILURE


class Artifacts:
    """Artifacts of one job whose hosts have ended, so that their folders no longer change."""

    def __init__(self, request: Request, hosts: Sequence[Path], transfers: Transfers, scratch: Path) -> None:
        """`hosts`: folders of the hosts; `scratch`: temporary folder for archives, which is created and removed."""
        self._hosts, self._transfers, self._scratch = hosts, transfers, scratch
        base = f"{request['OutputDataConfig']['S3OutputPath'].rstrip('/')}/{request['TrainingJobName']}/output"
        self._destination = parse(base)
        self.model_uri = f"{base}/{MODEL_ARCHIVE}"
        """Address of the uploaded model."""
        self.skipped: list[str] = []
        """Files that were not uploaded, each with the reason."""

    async def upload(self) -> None:
        """Packs and uploads the model and the output data. Raises StorageError."""
        with system_errors(str(self._scratch)):
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch.mkdir()
            await asyncio.to_thread(self._pack, MODEL, self._scratch / MODEL_ARCHIVE)
            if any(any(folder.iterdir()) for folder in self._folders(DATA)):
                await asyncio.to_thread(self._pack, DATA, self._scratch / "output.tar.gz")
            packed = Folder(folder_address(self._scratch))
            done = await self._transfers.copy(packed, await listed(packed), self._destination)
            self.skipped += [f"{one.name}: {one.why}" for one in done.refused]
            shutil.rmtree(self._scratch)

    def _folders(self, name: str) -> list[Path]:
        """Returns the folder `name` of each host, except folders that a container replaced by links."""
        found = []
        for host in self._hosts:
            if is_plain(host / ML, name):
                found.append(host / ML / name)
            else:
                self.skipped.append(f"{name} of {host.name}: it is no longer a folder")
        return found

    def _pack(self, name: str, path: Path) -> None:
        """Writes an archive. Raises OSError."""
        known: dict[str, Path | None] = {}
        with tarfile.open(path, "w:gz", compresslevel=GZIP_LEVEL, format=tarfile.PAX_FORMAT) as tar:
            for folder in self._folders(name):
                for below_folder in _walk(folder):
                    self._add(tar, folder, below_folder, f"{name}/{below_folder}", known)

    def _add(self, tar: tarfile.TarFile, folder: Path, name: str, shown: str, known: dict[str, Path | None]) -> None:
        """Adds one file or folder to the archive. `known` maps names in the archive to the path of a file, or None for
        a folder.

        A file with the same content as another host's file of that name is not reported as skipped.
        """
        tar.inodes = {}  # type: ignore[attr-defined]  # a file with two names is packed twice, and never as a link
        info = tar.gettarinfo(folder / name, name)
        if why := _problem(info, name):
            self.skipped.append(f"{shown}: {why}")
            return
        above = name.rpartition("/")[0]
        if name in known and _is_same(known[name], info, folder / name):
            return
        if name in known or known.get(above, None if not above else folder) is not None:
            self.skipped.append(f"{shown}: another host has a file of that name")
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
    """Whether the entry equals the one in the archive: both are folders, or regular files with the same content."""
    if there is None or not info.isreg():
        return there is None and info.isdir()
    return not there.is_symlink() and filecmp.cmp(there, path, shallow=False)


def failure(host: Path) -> str:
    """Returns the first 1,024 characters that a host has written to /opt/ml/output/failure."""
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
    """Returns why a file cannot be a member of an archive, or ""."""
    if info is None or not (info.isreg() or info.isdir() or info.issym()):
        return "it is neither file, folder nor link"
    if info.issym() and leads_out(name.count("/"), info.linkname):
        return "it is a link that leads out"
    return ""


def _walk(folder: Path) -> Iterator[str]:
    """Yields the relative names of all files and folders, each folder before its contents. Raises OSError."""

    def refuse(error: OSError) -> None:
        raise error  # an unreadable folder must not count as empty

    for at, folders, files in os.walk(folder, onerror=refuse):
        folders.sort()
        for name in sorted([*folders, *files]):
            yield os.path.relpath(os.path.join(at, name), folder)  # noqa: PTH118 - as os.walk gives it
