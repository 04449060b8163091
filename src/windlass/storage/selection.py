"""Opens the source of a copy: a whole set, one file, or the files that match patterns."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from windlass.compat import override
from windlass.errors import UsageError
from windlass.storage.address import HTTP, Address
from windlass.storage.http_place import HttpPlace, LocalList, is_list_of_urls, none_selected
from windlass.storage.opening import open_place
from windlass.storage.place import Buffer, Entry, Place, stated_version
from windlass.worker.collect import matches

ALL: Final = "**"
SPECIAL: Final = re.compile(r"[*?\[]")
SHA256: Final = re.compile(r"[0-9A-Fa-f]{64}")


@dataclass(frozen=True)
class Selection:
    """Files of a source to copy."""

    include: tuple[str, ...] = ()
    """Patterns, at least one of which must match the name; empty for all files."""
    exclude: tuple[str, ...] = ()
    """Patterns that must not match the name."""
    sha256: str = ""
    """Expected SHA-256 of the file in hexadecimal digits; empty for none. Only if exactly one file is selected."""

    def __post_init__(self) -> None:
        if self.sha256 and not SHA256.fullmatch(self.sha256):
            raise UsageError("--sha256 is no SHA-256", "it has 64 hexadecimal digits")
        object.__setattr__(self, "sha256", self.sha256.lower())

    def takes(self, name: str) -> bool:
        """Whether the file with this name is selected."""
        parts = name.split("/")
        is_included = not self.include or any(_matches(parts, one) for one in self.include)
        return is_included and not any(_matches(parts, one) for one in self.exclude)


@dataclass(frozen=True)
class CopySource:
    """Opened source of a copy."""

    address: Address
    """The address in errors and reports."""
    place: Place
    root: Address
    """Address that the destination must not overlap."""


def open_source(
    text: str,
    folder: Path,
    home: Path,
    selection: Selection,
    destination: Address,
    target: str = "",
    *,
    is_signed: bool = True,
) -> CopySource:
    """Opens the source that `text` names: an address, which may end with a pattern. Paths are relative to `folder`.

    `target` is the last component of a destination that does not exist yet: a single file of that name is refused,
    because the user probably meant it as the file's name. `home` is the folder WINDLASS_HOME. `is_signed`: sign
    requests to S3.

    Raises UsageError, StorageError, MissingExtra.
    """
    if text == "-":
        raise UsageError("- is no source: data copy does not read standard input", "write a file, and copy that")
    base, pattern = _split(text, folder)
    of = Address.parse(base, folder)
    if not is_signed and of.kind != "s3":
        raise UsageError(
            f"--no-sign-request is for public buckets of S3, and the source is {of}",
            "for gs:// set GOOGLE_SKIP_SIGNATURE=true, for az:// AZURE_SKIP_SIGNATURE=true",
        )
    if of.is_http:
        return CopySource(of, _of_server(of, selection, target), of)
    path = Path(of.path)
    if of.is_folder and path.is_file():
        if is_list_of_urls(path):
            return CopySource(of, LocalList(of, selection.sha256, selection.takes), of)
        # Links are resolved only in the parent folder, so that the file keeps the name that the user typed.
        named = folder / os.path.expanduser(base.removeprefix("file://"))
        typed = Path(os.path.realpath(named.parent), named.name)
        refuse_name(typed.name, target)
        of, above = (Address("folder", "", str(one)) for one in (typed, typed.parent))
        return CopySource(of, Selected(open_place(above, home), selection, typed.name, is_one=True), of)
    if of.is_folder and not path.is_dir():
        is_there = os.path.lexists(of.path)
        raise UsageError(f"{of}: {'it is no folder and no file' if is_there else 'there is no such folder or file'}")
    place = open_place(of, home, is_signed=is_signed)
    if pattern:
        return CopySource(of, Selected(place, selection, pattern), _root(of, pattern, destination))
    alone = None
    if not (of.is_folder or text.endswith("/") or not of.path):
        prefix, _, name = of.path.rpartition("/")
        parent = open_place(Address(of.kind, of.bucket, prefix), home, is_signed=is_signed)
        alone = Selected(parent, selection, name, target, is_one=True)
    if alone is None and selection == Selection():
        return CopySource(of, place, of)
    return CopySource(of, Selected(place, selection, ALL, alone=alone), of)


def _root(of: Address, pattern: str, destination: Address) -> Address:
    """Returns the address that the destination must not overlap: `of`, or `of` with the pattern if the destination
    cannot match.
    """
    words, below = pattern.split("/"), destination.path.removeprefix(f"{of.path}/").split("/")
    may_match = ALL in words or all(fnmatchcase(part, word) for part, word in zip(below, words, strict=False))
    return of if may_match else Address(of.kind, of.bucket, f"{of.path}/{pattern}")


def _of_server(of: Address, selection: Selection, target: str) -> Place:
    if "*" in of.path:
        raise UsageError(
            f"{of}: an HTTP server does not list its files",
            "name one file, or a list of files that sha256sum has written, such as https://HOST/SHA256SUMS",
        )
    place = HttpPlace(of, selection.sha256, selection.takes)
    if not place.is_list:
        refuse_name(place.name, target)
    return place


def refuse_name(name: str, target: str) -> None:
    """Raises UsageError if the destination was probably meant as the name of the file."""
    if name == target:
        raise UsageError(
            f"the destination is a folder, and the file keeps its name {name} there",
            "leave out the name at the end; or end the destination with a slash, if it is a folder of that name",
        )


class Selected(Place):
    """The selected files of a place."""

    is_part = True

    def __init__(
        self,
        place: Place,
        selection: Selection,
        pattern: str,
        target: str = "",
        *,
        is_one: bool = False,
        alone: Selected | None = None,
    ) -> None:
        """`pattern` must match the names; if `is_one`, it is the name of the only file, which must not be `target`.
        `alone` is used if no file is below the address: it selects the object whose key is the address itself.
        """
        self._place, self._selection, self._target = place, selection, target
        self._pattern, self._is_one, self._alone = pattern, is_one, alone
        self.address = place.address
        self.is_sent = place.is_sent and not selection.sha256
        self.is_sequential = place.is_sequential
        self.max_requests = place.max_requests
        self.is_part = pattern != ALL or bool(selection.include or selection.exclude)
        self._stated: Entry | None = None
        """The file whose SHA-256 the user gave, as the place lists it."""

    @override
    async def entries(self, cuts: Sequence[str] = ()) -> AsyncIterator[list[Entry]]:
        num_listed = num_taken = 0
        async for batch in self._listing(cuts):
            num_listed += len(batch)
            taken = [one for one in batch if self._takes(one.name)]
            num_taken += len(taken)
            if self._selection.sha256 and taken:
                if num_taken > 1:
                    raise UsageError(f"--sha256 is that of one file, and {self.address} has more than one")
                [self._stated] = taken
                version = stated_version(self._selection.sha256, self._stated.version)
                taken = [self._stated._replace(version=version)]
            yield taken
        if not num_listed and self._alone is not None:
            alone, self._alone = self._alone, None
            if found := await alone.listed():
                self._place, self.is_part, self.address = alone, True, alone.address
                yield found
        elif num_listed and not num_taken:
            raise none_selected(self.address, num_listed)

    async def _listing(self, cuts: Sequence[str]) -> AsyncIterator[list[Entry]]:
        if self._is_one:
            found = await self._place.find(self._pattern)
            if found is not None:
                refuse_name(found.name, self._target)
                yield [found]
            return
        async for batch in self._place.entries(cuts if self._pattern == ALL else ()):
            yield batch

    def _takes(self, name: str) -> bool:
        is_of_pattern = self._is_one or matches(name.split("/"), self._pattern.split("/"))
        return is_of_pattern and self._selection.takes(name)

    def _listed(self, entry: Entry) -> Entry:
        return entry if self._stated is None else self._stated

    @override
    def pieces(self, entry: Entry, start: int, length: int) -> Iterator[Buffer]:
        return self._place.pieces(self._listed(entry), start, length)

    @override
    def identity(self, entry: Entry) -> str:
        return self._place.identity(self._listed(entry))

    @override
    def sha256(self, entry: Entry) -> str:
        return self._selection.sha256 or self._place.sha256(entry)

    @override
    async def again(self, entry: Entry) -> Entry | None:
        return None if self._stated is not None else await self._place.again(entry)

    def put(self, name: str, data: Buffer) -> str:
        """Raises UsageError, because a selection is read-only."""
        raise UsageError(f"a selection of {self.address} is read only")

    @override
    async def read_own(self, name: str) -> bytes | None:
        return await self._place.read_own(name)

    @override
    async def expected(self, entry: Entry) -> str:
        return await self._place.expected(self._listed(entry))


def _matches(parts: Sequence[str], pattern: str) -> bool:
    """Whether a name matches; a pattern without a slash matches a file or folder at any depth."""
    words = pattern.strip("/").split("/")
    return matches(parts, words if "/" in pattern.rstrip("/") else [ALL, *words])


def _split(text: str, folder: Path) -> tuple[str, str]:
    """Splits `text` into an address and a pattern. The pattern is empty if there is none, or if the path exists."""
    scheme, is_url, rest = text.partition("://")
    if not SPECIAL.search(text) or (is_url and scheme.lower() in (*HTTP, "file")):
        return text, ""
    if not is_url and os.path.lexists(folder / os.path.expanduser(text)):
        return text, ""
    head = SPECIAL.split(rest if is_url else text, maxsplit=1)[0]
    base, slash, _ = head.rpartition("/")
    if is_url and not base:
        raise UsageError(f"{text}: the name of a bucket is no pattern")
    pattern = (rest if is_url else text)[len(base + slash) :].rstrip("/")
    if is_url:
        return f"{scheme}://{base}/", pattern
    return (base or slash or "."), pattern
