"""A file in a folder that is written in parts and can be resumed by another copy."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from windlass.compat import override
from windlass.storage.digest import Parts
from windlass.storage.files import begin_writing, reserve, version, write_at, write_whole
from windlass.storage.place import Buffer, Entry, PartialFile, system_errors
from windlass.worker import process

DIGEST_HEX: Final = 64


class FolderFile(PartialFile):
    """A file in parts, with a journal next to it of the digest of each complete part and the length of
    incomplete ones.
    """

    def __init__(self, path: Path, part: Path, entry: Entry, parts: Parts, source: str) -> None:
        """Opens or creates the partial file. Raises OSError."""
        if part.is_symlink():  # a link in the destination may lead out of it
            part.unlink()
        self._boot = process.boot_id()
        self._path, self._part, self._parts = path, part, parts
        self._journal = part.with_suffix(".parts")
        self._head = {"name": entry.name, "size": parts.size, "source": source}
        self._kept: dict[int, int] = {}
        """Bytes already written of each incomplete part."""
        self._noted_boot = ""
        """Boot id in the existing journal."""
        self.done = dict(self._written())
        if len(self.done) < len(parts) and not part.exists():
            self.done, self._kept = {}, {}
        if self._noted_boot != self._boot or not (self.done or self._kept):
            # The boot id is stored because another node that shares the disk must not trust entries written before this
            # node rebooted.
            lines = [json.dumps({**self._head, "boot": self._boot})]
            lines += [f"{number} {digest.hex()}" for number, digest in self.done.items()]
            write_whole(self._journal, "".join(f"{line}\n" for line in lines).encode())
        if not self.done and not self._kept:
            with open(part, "wb") as file:
                reserve(file.fileno(), parts.size)

    @override
    def begun(self, number: int) -> int:
        return self._kept.get(number, 0)

    @override
    def write(
        self, number: int, pieces: Iterable[Buffer], moved: Callable[[int], object] = lambda _num_bytes: None
    ) -> bytes:
        start, _ = self._parts.span(number)
        kept = self._kept.get(number, 0)
        with system_errors(str(self._path)), open(self._part, "r+b") as file, open(self._journal, "ab", 0) as journal:
            digest = hashlib.sha256(os.pread(file.fileno(), kept, start))
            for piece in pieces:
                digest.update(piece)
                write_at(file.fileno(), start + kept, piece)
                self._kept[number] = kept = kept + len(piece)
                journal.write(f"{number} +{kept}\n".encode())
                moved(len(piece))
            journal.write(f"{number} {digest.hexdigest()}\n".encode())
            begin_writing(file.fileno(), start, kept)
        return digest.digest()

    @override
    def kept(self, number: int) -> bytes:
        start, length = self._parts.span(number)
        with system_errors(str(self._path)), open(self._part if self._part.exists() else self._path, "rb") as file:
            return os.pread(file.fileno(), length if number in self.done else self._kept.get(number, 0), start)

    @override
    async def finish(self, digests: list[bytes]) -> str:
        with system_errors(str(self._path)):
            return await asyncio.to_thread(self._finish)

    @override
    def forget(self) -> None:
        with system_errors(str(self._path)):
            self._journal.unlink(missing_ok=True)

    @override
    async def discard(self) -> None:
        self._part.unlink(missing_ok=True)
        self._journal.unlink(missing_ok=True)

    def _finish(self) -> str:
        if self._part.exists():
            with open(self._part, "rb") as file:
                os.fsync(file.fileno())
            self._part.replace(self._path)
        return version(self._path.stat())

    def _written(self) -> Iterator[tuple[int, bytes]]:
        """Yields the complete parts of the journal. After a reboot their content is read again, because writes may be
        lost.

        If the copy was killed before its own journal recorded the file, the file already has its final name.
        """
        try:
            head, *lines = self._journal.read_text(errors="replace").splitlines()
            begun = json.loads(head)
            self._noted_boot = begun.pop("boot", "")
            path = self._part if self._part.exists() else self._path
            if begun != self._head or path.stat().st_size != self._parts.size:
                return
        except (OSError, ValueError, AttributeError, TypeError):
            return
        is_trusted = self._noted_boot == self._boot and path == self._part
        for line in lines:
            number, _, rest = line.partition(" ")
            if not number.isdecimal() or int(number) >= len(self._parts):
                continue
            start, length = self._parts.span(int(number))
            if rest.startswith("+"):
                if is_trusted and rest[1:].isdecimal() and int(rest) <= length:
                    self._kept[int(number)] = int(rest)
            elif len(rest) == DIGEST_HEX and (is_trusted or _sha256_at(path, start, length) == rest):
                self._kept.pop(int(number), None)
                yield int(number), bytes.fromhex(rest)


def is_of(part: Path, source: str) -> bool:
    """Whether a partial file or its journal belongs to a copy of this source. A copy of another source may be in
    progress.
    """
    with suppress(OSError, ValueError, TypeError, KeyError), open(part.with_suffix(".parts"), "rb") as journal:
        return bool(json.loads(journal.readline())["source"].rpartition(" ")[0] == source)
    return False


def _sha256_at(path: Path, start: int, length: int) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(os.pread(file.fileno(), length, start)).hexdigest()
