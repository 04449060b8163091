"""Copies channels, checkpoints and artifacts of a job between its hosts and stores, with `windlass.storage`.

Unlike `windlass data copy`, these copies write no manifest at the destination: a script would read it as data.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

from windlass.engines.sagemaker.service import Request
from windlass.engines.sagemaker.twin.layout import ML, is_plain
from windlass.errors import StorageError
from windlass.storage.address import Address
from windlass.storage.copy import Copy
from windlass.storage.failure import first_of
from windlass.storage.folder import Folder
from windlass.storage.journal import Journal
from windlass.storage.names import OWN
from windlass.storage.opening import open_place
from windlass.storage.place import Buffer, Entry, Place, system_errors
from windlass.storage.progress import Copied


class _Selected(Place):
    """Selected files of another `Place`, possibly under other names."""

    def __init__(self, place: Place, files: Mapping[str, Entry]) -> None:
        """`files` maps names to the entries that the place lists."""
        self.address = place.address
        self._place, self._files = place, files

    async def entries(self, cuts: Sequence[str] = ()) -> AsyncIterator[list[Entry]]:
        yield [Entry(name, one.size, one.version, one.problem) for name, one in self._files.items()]

    def pieces(self, entry: Entry, start: int, length: int) -> Iterator[Buffer]:
        return self._place.pieces(self._files[entry.name], start, length)

    async def expected(self, entry: Entry) -> str:
        return await self._place.expected(self._files[entry.name])

    async def read_own(self, name: str) -> bytes | None:
        is_renamed = any(name != one.name for name, one in self._files.items())
        return None if is_renamed else await self._place.read_own(name)

    def put(self, name: str, data: Buffer) -> str:
        raise NotImplementedError


class Transfers:
    """Copies of one job. `state` is a folder for the state of unfinished uploads."""

    def __init__(self, state: Path) -> None:
        self._state = state

    def open(self, address: Address) -> Place:
        """Opens the place of an address. Raises StorageError, MissingExtra."""
        return open_place(address, self._state)

    async def copy(self, source: Place, files: Mapping[str, Entry], destination: Address) -> Copied:
        """Copies and verifies these files of a place. Raises StorageError if no more files can be copied."""
        with system_errors(str(destination)), tempfile.TemporaryDirectory(dir=self._state) as folder:
            with Journal(Path(folder) / "journal.jsonl") as journal:
                into = self.open(destination)
                try:
                    done = await Copy(_Selected(source, files), into, journal, has_manifest=False).run()
                except BaseExceptionGroup as group:
                    raise first_of(group) from group
            if destination.is_folder:
                shutil.rmtree(Path(destination.path) / OWN, ignore_errors=True)
        return done

    async def fetch(self, uri: str, folder: Path) -> None:
        """Fetches the files whose address begins with `uri` into a folder. Raises StorageError, also if there
        are none.
        """
        place, files = await self._matching(uri)
        if not files:
            raise StorageError(f"there is nothing at {uri}")
        require_all_copied(await self.copy(place, files, folder_address(folder)))

    async def duplicate(self, folder: Path, to: Path) -> None:
        """Copies all files of a local folder to another one. Raises StorageError."""
        place = Folder(folder_address(folder))
        require_all_copied(await self.copy(place, await listed(place), folder_address(to)))

    async def _matching(self, uri: str) -> tuple[Place, dict[str, Entry]]:
        """Returns the place of a URI's files, and the files by their names in a channel.

        An S3Uri is a key prefix and not a folder: `s3://b/train` matches `train/a` and also `train-1.csv`.
        """
        address = parse(uri)
        if address.is_folder:
            path = Path(address.path)
            if path.is_file():
                holder = Folder(folder_address(path.parent))
                return holder, {path.name: Entry(path.name, path.stat().st_size, holder.version_of(path.name))}
        if address.is_folder or not address.path or uri.endswith("/"):
            place = self.open(address)
            return place, await listed(place)
        above, _, start = address.path.rpartition("/")
        place = self.open(Address(address.kind, address.bucket, above))
        found = [one for one in (await listed(place)).values() if one.name.startswith(start)]
        return place, {one.name.removeprefix(f"{start}/"): one for one in found}


class CheckpointUploads:
    """Uploads changed checkpoint files of one host."""

    def __init__(self, transfers: Transfers, host: Path, path: str, destination: Address) -> None:
        """`path`: folder of the checkpoints, relative to /opt/ml."""
        self._transfers, self._host, self._path, self._destination = transfers, host, path, destination
        self._folder = Folder(folder_address(host / ML / path))
        self._sent: dict[str, str] = {}
        """Version of each file in the store, by name."""

    async def fetch(self) -> None:
        """Fetches existing checkpoints from the store. Raises StorageError."""
        if not self._destination.is_folder or Path(self._destination.path).exists():
            place = self._transfers.open(self._destination)
            if files := await listed(place):
                require_all_copied(await self._transfers.copy(place, files, self._folder.address))
        self._sent = {name: one.version for name, one in (await listed(self._folder)).items()}

    async def push(self) -> list[str]:
        """Uploads changed files; returns the skipped files, each with the reason. Raises StorageError."""
        if not is_plain(self._host / ML, self._path):
            return [f"{self._path} of {self._host.name}: it is no longer a folder"]
        files = await listed(self._folder)
        changed = {name: one for name, one in files.items() if self._sent.get(name) != one.version}
        if not changed:
            return []
        done = await self._transfers.copy(self._folder, changed, self._destination)
        self._sent.update((name, one.source) for name, one in done.files.items())
        return [f"{one.name}: {one.why}" for one in done.refused]


async def fetch_channels(transfers: Transfers, request: Request, hosts: list[Path]) -> None:
    """Fetches each channel of a job to its first host and copies it to the other hosts. Raises StorageError."""
    for channel in request.get("InputDataConfig", ()):
        source = channel["DataSource"]["S3DataSource"]
        folders = [host / ML / "input/data" / channel["ChannelName"] for host in hosts]
        for folder in folders:
            folder.mkdir()
        await transfers.fetch(source["S3Uri"], folders[0])
        for folder in folders[1:]:
            await transfers.duplicate(folders[0], folder)


def parse(uri: str) -> Address:
    """Parses an S3Uri, which may also be a `file://` URI."""
    scheme, _, rest = uri.partition("://")
    return folder_address(Path(rest).resolve()) if scheme == "file" else Address.parse(uri, Path("/"))


def folder_address(path: Path) -> Address:
    """Returns the address of a local folder."""
    return Address("folder", "", str(path))


async def listed(place: Place) -> dict[str, Entry]:
    """Returns all files of a place by name. Raises StorageError."""
    return {one.name: one for one in await place.listed()}


def require_all_copied(done: Copied) -> None:
    """Raises StorageError if a file was skipped."""
    if done.refused:
        first = done.refused[0]
        more = f" (and {len(done.refused) - 1} more)" if len(done.refused) > 1 else ""
        raise StorageError(f"{first.name}: {first.why}{more}")
