"""Sources of downloads: an HTTP host or a folder, read from any offset on."""

from __future__ import annotations

import http.client
import os
import ssl
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import quote, unquote, urlsplit

from windlass.errors import StorageError, UsageError
from windlass.storage.files import version
from windlass.storage.place import system_errors

TIMEOUT_SECONDS: Final = 30.0
PIECE_BYTES: Final = 1 << 18
BUSY: Final = frozenset((408, 425, 429, 500, 502, 503, 504))


class Interrupted(StorageError):
    """A host that is busy, cannot be reached or has closed the connection: the request may be repeated."""

    def __init__(self, message: str, pause_seconds: float = 0.0) -> None:
        super().__init__(message, "check the connection and the proxy, or name a mirror: --from URL")
        self.pause_seconds = pause_seconds
        """For which the host asks."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A file from an offset on."""

    start: int
    """May be 0 though a later offset was asked for: the file has changed, or the host cannot send a part."""
    num_bytes: int
    """Of the whole file."""
    version: str
    """Changes when the file does: an ETag or a time; empty where the host has neither."""
    pieces: Generator[bytes, None, None]
    """Raises Interrupted where they end early."""


class Source(ABC):
    """Where one file is."""

    url: str

    @abstractmethod
    def open(self, start: int, known_version: str) -> Answer:
        """The rest of the file from `start` on, if it still has this version; else all. Raises StorageError."""


def source_of(name: str, url: str, mirror: str | None) -> Source:
    """Where a file is read: at its publisher, or by its name at a mirror. Raises UsageError."""
    if mirror is None:
        return HttpSource(url)
    scheme, is_url, _ = mirror.partition("://")
    if not is_url:
        return FileSource(Path(os.path.expanduser(mirror)) / name)
    parts = urlsplit(mirror)
    if scheme == "file":
        return FileSource(Path(unquote(parts.path)) / name)
    if scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{scheme}:// is no address of a mirror", "name a folder, or http:// or https://")
    if parts.username or parts.password or parts.query or parts.fragment:
        hint = "it is kept in the record of the download: serve the files without, or name a folder that has them"
        raise UsageError("the address of a mirror has no user, password, query or fragment", hint)
    return HttpSource(f"{mirror.rstrip('/')}/{quote(name)}")


class FileSource(Source):
    """A file of this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()
        self.url = self._path.as_uri()

    def open(self, start: int, known_version: str) -> Answer:
        """See `Source`."""
        with system_errors(str(self._path)):
            found = self._path.stat()
            is_same = version(found) == known_version
            begin = start if is_same and start <= found.st_size else 0
            return Answer(begin, found.st_size, version(found), self._pieces(begin))

    def _pieces(self, start: int) -> Generator[bytes, None, None]:
        with system_errors(str(self._path)), open(self._path, "rb") as file:
            file.seek(start)
            while piece := file.read(PIECE_BYTES):
                yield piece


class HttpSource(Source):
    """A file of an HTTP host."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._opener = urllib.request.build_opener(SafeRedirects())

    def open(self, start: int, known_version: str) -> Answer:
        """See `Source`."""
        headers = {"User-Agent": "windlass", "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
            if known_version:
                headers["If-Range"] = known_version
        with _errors(self.url):
            try:
                answer = self._opener.open(urllib.request.Request(self.url, headers=headers), timeout=TIMEOUT_SECONDS)
            except urllib.error.HTTPError as error:
                error.close()
                if error.code == 416:
                    return self.open(0, "")
                raise _refusal(self.url, error) from error
            found = self._answer(answer, start)
            if found.start and known_version and found.version != known_version:  # a host that ignores If-Range
                answer.close()
                return self.open(0, "")
            return found

    def _answer(self, answer: Any, asked: int) -> Answer:
        headers: Message = answer.headers
        if headers.get_content_type() == "text/html":
            answer.close()
            hint = "download it in a browser, and name the folder that has it: --from FOLDER"
            raise StorageError(f"{self.url}: the host answers with a page, not with the file", hint)
        start, num_bytes = _span(headers, answer.status)  # hosts that call .gz an encoding send the file as it is
        if num_bytes is None or start not in (0, asked):
            answer.close()
            raise StorageError(f"{self.url}: the host does not state the size of the file", "name a mirror: --from URL")
        return Answer(start, num_bytes, _version(headers), self._pieces(answer, num_bytes - start))

    def _pieces(self, answer: IO[bytes], num_bytes: int) -> Generator[bytes, None, None]:
        with answer, _errors(self.url):
            while num_bytes and (piece := answer.read(min(PIECE_BYTES, num_bytes))):
                num_bytes -= len(piece)
                yield piece
            if num_bytes:
                raise Interrupted(f"{self.url}: the connection was closed {num_bytes:,} bytes before the end")


class SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https alone, and none from https to http."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """See HTTPRedirectHandler. Raises StorageError."""
        scheme = urlsplit(newurl).scheme
        if scheme not in ("http", "https") or (urlsplit(req.full_url).scheme, scheme) == ("https", "http"):
            raise StorageError(f"{req.full_url}: the host redirects to {scheme}://, which is not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@contextmanager
def _errors(url: str) -> Iterator[None]:
    """What a connection can fail with, as ours."""
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        raise _unsafe(url, error) from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise _unsafe(url, error.reason) from error
        raise Interrupted(f"{url}: the host cannot be reached: {_words(error.reason)}") from error
    except (OSError, http.client.HTTPException) as error:
        raise Interrupted(f"{url}: the connection failed: {_words(error)}") from error


def _words(error: object) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        return error.strerror or os.strerror(error.errno)
    return str(error) or type(error).__name__


def _unsafe(url: str, error: ssl.SSLCertVerificationError) -> StorageError:
    return StorageError(f"{url}: the certificate of the host is not valid: {error.verify_message}")


def _refusal(url: str, error: urllib.error.HTTPError) -> StorageError:
    words = f"{url}: the host answers {error.code} {error.reason}"
    if error.code in BUSY:
        pause = error.headers.get("Retry-After", "")
        return Interrupted(words, float(pause) if pause.isdecimal() else 0.0)
    return StorageError(words, "name a mirror, or a folder that has the files: --from URL")


def _span(headers: Message, status: int) -> tuple[int, int | None]:
    """Where the answer begins, and the size of the whole file."""
    if status != 206:
        length = headers.get("Content-Length", "")
        return 0, int(length) if length.isdecimal() else None
    unit, _, rest = headers.get("Content-Range", "").partition(" ")
    span, _, whole = rest.partition("/")
    start = span.partition("-")[0]
    if unit != "bytes" or not start.isdecimal() or not whole.isdecimal():
        return 0, None
    return int(start), int(whole)


def _version(headers: Message) -> str:
    """What If-Range takes: a strong ETag, else a time."""
    tag = headers.get("ETag", "")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified", "")
