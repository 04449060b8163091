"""HTTP servers as the source of a copy: one file, or the files of a list with the SHA-256 of each."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import quote

from windlass.compat import override
from windlass.errors import StorageError, UsageError
from windlass.storage.address import Address
from windlass.storage.place import (
    Buffer,
    Entry,
    Place,
    Repeatable,
    SourceChanged,
    Unreachable,
    stated_version,
    store_errors,
    system_errors,
)
from windlass.storage.retry import repeated
from windlass.stores.http import Head, HttpClient
from windlass.stores.url import Url

PIECE_BYTES: Final = 256 << 10
MAX_LIST_BYTES: Final = 64 << 20
MAX_REQUESTS: Final = 16
"""Concurrent requests: public servers limit the connections of one client."""
HTML: Final = (".html", ".htm", ".xhtml")
LIST: Final = re.compile(r"(sha256sums?|checksums)(\.txt)?|.+\.(sha256|sha256sums?)(\.txt)?", re.IGNORECASE)
"""Names of files that are lists: `SHA256SUMS`, `mnist.sha256`, `checksums.txt`."""
_LINE: Final = re.compile(r"(\\?)([0-9A-Fa-f]{64}) [ *](.+)")
_ESCAPES: Final = {"n": "\n", "r": "\r", "\\": "\\"}
_BSD_LINE: Final = re.compile(r"(\\?)SHA256 \((.+)\) = ([0-9A-Fa-f]{64})")


@dataclass(frozen=True)
class Remote:
    """One file on a server."""

    name: str
    """Name in the set."""
    url: Url
    sha256: str = ""
    """Expected SHA-256 in hexadecimal digits; empty if none is given."""


class HttpPlace(Place):
    """One file on a server, or the files of a list in the format of `sha256sum`. Read-only."""

    is_sequential = True
    max_requests = MAX_REQUESTS
    is_part = True

    def __init__(self, address: Address, sha256: str = "", takes: Callable[[str], bool] = lambda _name: True) -> None:
        """`sha256` is the expected digest of a single file, in hexadecimal digits. No request is sent for files whose
        names `takes` does not select. Raises UsageError.
        """
        self.address, self._takes = address, takes
        self._client = HttpClient()
        self._sha256 = sha256
        self.is_list = LIST.fullmatch(self.name) is not None
        """Whether the address is a list of files."""
        if not self.name:
            raise UsageError(
                f"{address} names no file: HTTP servers do not list what they have",
                "name one file, or a list of files that sha256sum has written, such as https://HOST/SHA256SUMS",
            )
        if sha256 and self.is_list:
            raise UsageError(f"{address} is a list that states the SHA-256 of each file", "leave out --sha256")
        self._found: dict[str, tuple[Remote, Head]] = {}

    @property
    def name(self) -> str:
        """Name of the file, or of the list."""
        return self._url.name

    @property
    def _url(self) -> Url:
        assert self.address.url is not None
        return self.address.url

    @override
    def check(self) -> None:
        with store_errors(str(self.address)):
            self._client.head(self._url)

    @override
    async def entries(self, cuts: Sequence[str] = ()) -> AsyncIterator[list[Entry]]:
        listed = await repeated(lambda: asyncio.to_thread(self._listed)) if self.is_list else [self._only]
        selected = [one for one in listed if self._takes(one.name)]
        if not selected:
            raise none_selected(self.address, len(listed))
        if not self.is_list:
            yield [await repeated(lambda: asyncio.to_thread(self._entry, self._only))]
            return
        remotes = iter(selected)
        found: list[Entry] = []

        async def work() -> None:
            for remote in remotes:
                try:
                    found.append(await repeated(partial(asyncio.to_thread, self._entry, remote)))
                except Unreachable:
                    raise
                except StorageError as error:
                    found.append(Entry(remote.name, 0, "", error.message.removeprefix(f"{remote.name}: ")))

        async with asyncio.TaskGroup() as group:
            for _ in range(MAX_REQUESTS):
                group.create_task(work())
        yield found

    @property
    def _only(self) -> Remote:
        return Remote(self._url.name, self._url, self._sha256)

    def _listed(self) -> list[Remote]:
        with store_errors(str(self.address)):
            data = self._client.read(self._url, MAX_LIST_BYTES)
        return parse_list(data, str(self.address), self._url)

    def _entry(self, one: Remote) -> Entry:
        """Returns the entry of a file. Its version is the ETag or Last-Modified, with the expected SHA-256 if one is
        given.
        """
        what = one.name if self.is_list else str(self.address)
        with store_errors(what):
            head = self._client.head(one.url)
        if head.is_page and not one.sha256 and not one.name.lower().endswith(HTML):
            raise StorageError(
                f"{what}: the server answers with an HTML page, which may ask for a login",
                "open the URL in a browser; state --sha256 if the file is one",
            )
        self._found[one.name] = one, head
        # Without an ETag, Last-Modified or SHA-256, listings cannot show that a file is unchanged. A new version forces
        # a copy.
        version = _word(head.version)
        if one.sha256:
            return Entry(one.name, head.size, stated_version(one.sha256, version))
        return Entry(one.name, head.size, version or f"unknown-{uuid.uuid4().hex}")

    @override
    def sha256(self, entry: Entry) -> str:
        return self._found[entry.name][0].sha256

    @override
    async def again(self, entry: Entry) -> Entry:
        return await repeated(lambda: asyncio.to_thread(self._entry, self._found[entry.name][0]))

    @override
    def pieces(self, entry: Entry, start: int, length: int) -> Iterator[Buffer]:
        one, head = self._found[entry.name]
        if start and not head.version and not one.sha256:
            raise SourceChanged(
                f"{entry.name}: the connection broke, and the server sends neither a strong ETag nor Last-Modified, "
                "so the download cannot be resumed"
            )
        at, end = start, start + length
        while at < end:
            began = at
            try:
                with store_errors(entry.name):
                    for piece in self._client.stream(one.url, head, at, end - at, PIECE_BYTES):
                        at += len(piece)
                        yield piece
            except Repeatable:
                # The loop resumes only after a whole piece. Otherwise the caller retries the part from its start.
                if at - began < PIECE_BYTES or not (head.version or one.sha256):
                    raise

    def put(self, name: str, data: Buffer) -> str:
        """Raises UsageError, because HTTP servers are read-only."""
        raise UsageError(f"{self.address} is read only")

    @override
    async def read_own(self, name: str) -> bytes | None:
        """Returns None, because HTTP servers have no manifest."""
        return None


class LocalList(HttpPlace):
    """The files whose URLs are in a list on this machine."""

    @property
    @override
    def name(self) -> str:
        return Path(self.address.path).name

    def _listed(self) -> list[Remote]:
        with system_errors(str(self.address)):
            return parse_list(Path(self.address.path).read_bytes(), str(self.address), None)


def none_selected(address: Address, num_listed: int) -> StorageError:
    """Returns the error for a source none of whose files the user has selected."""
    none = "its only file is not" if num_listed == 1 else f"none of its {num_listed:,} files is"
    return StorageError(f"{address}: {none} selected", "check the patterns")


def is_list_of_urls(path: Path) -> bool:
    """Whether a local file is a list with a URL in its first line. Any other file is copied unchanged."""
    if not LIST.fullmatch(path.name):
        return False
    with system_errors(str(path)), open(path, encoding="utf-8", errors="replace") as file:
        lines = (line for line in file if line.strip() and not line.startswith("#"))
        return re.search(r"\bhttps?://", next(lines, "")) is not None


def parse_list(data: bytes, what: str, base: Url | None) -> list[Remote]:
    """Parses a list in the format of `sha256sum` or `sha256sum --tag`. Names in the list are URLs, or relative to
    `base`, the URL of the list. `what` names the list in errors. Raises UsageError.
    """
    found: dict[str, Remote] = {}
    for number, line in enumerate(data.decode("utf-8-sig", "replace").split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        at = f"{what}, line {number}"
        one = _remote(line.rstrip("\r"), at, base)
        if found.setdefault(one.name, one) != one:
            raise UsageError(f"{at}: two different files have the name {one.name}")
    if not found:
        raise UsageError(f"{what} lists no files", "write it by: sha256sum FILE…")
    return list(found.values())


def _remote(line: str, at: str, base: Url | None) -> Remote:
    if match := _LINE.fullmatch(line):
        escaped, sha256, name = match.groups()
    elif match := _BSD_LINE.fullmatch(line):
        escaped, name, sha256 = match.groups()
    else:
        raise UsageError(f"{at} is not of the form: SHA256  NAME", "write the list by: sha256sum FILE…")
    if escaped:
        name = re.sub(r"\\([nr\\])", lambda found: _ESCAPES[found[1]], name)
    try:
        if re.match("https?://", name):
            url = Url.parse(name)
            name = url.name
        elif base is None:
            raise UsageError(f"{at}: a list on this machine names files by URLs, and this is {name!r}")
        else:
            name = name.removeprefix("./")
            url = base.joined(quote(name, safe="/"))
    except ValueError as error:
        raise UsageError(f"{at}: the URL cannot be used: {error}") from None
    if not name:
        raise UsageError(f"{at}: the URL names no file")
    return Remote(name, url, sha256.lower())


def _word(version: str) -> str:
    """Removes spaces from a version, because journals separate address and version by a space."""
    return version.replace(" ", "_")
