"""Address of a set of files: a folder of this machine, a prefix in an object store, or a file of an HTTP server."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from windlass.errors import UsageError
from windlass.stores.gs_az import KINDS
from windlass.stores.url import Url

STORES: Final = {"s3": "s3", **KINDS}
"""Scheme of an address → kind of store."""
HTTP: Final = ("http", "https")


@dataclass(frozen=True, slots=True)
class Address:
    """Location of a set of files. `str` and `repr` contain no secret."""

    kind: str
    """`folder`, `s3`, `gs`, `az`, `http` or `https`."""
    bucket: str
    """Bucket or container; for a URL, the host; for a folder, empty."""
    path: str
    """Absolute path of a folder; else the prefix, without a slash at either end, or the path of a URL without its first
    slash."""
    url: Url | None = field(default=None, repr=False, compare=False)
    """For http and https: the URL with its query and login, which must not be stored."""

    @classmethod
    def parse(cls, text: str, folder: Path) -> Address:
        """Parses `s3://bucket/prefix`, `https://host/file`, `file:///path` or a path relative to `folder`. Raises
        UsageError.
        """
        scheme, is_url, rest = text.partition("://")
        if not is_url:
            if not text:
                raise UsageError("an address is missing", "name a folder, or s3://bucket/prefix")
            return cls("folder", "", os.path.realpath(folder / os.path.expanduser(text)))
        if scheme == "file":
            if not rest.startswith("/"):
                raise UsageError(f"{text} has no path from the root", "write file:///PATH")
            return cls("folder", "", os.path.realpath(rest))
        if scheme.lower() in HTTP:
            return cls._of_url(text)
        if scheme not in STORES:
            known = "known are s3://, gs://, az://, https://, http:// and paths of folders"
            raise UsageError(f"{text}: {scheme}:// is no known kind of store", known)
        bucket, _, prefix = rest.partition("/")
        if not bucket:
            raise UsageError(f"{text}: the bucket is missing", f"write {scheme}://BUCKET/PREFIX")
        parts = [part for part in prefix.split("/") if part]
        if any(part in (".", "..") for part in parts):
            raise UsageError(f"{text}: a prefix has no . and no ..")
        return cls(STORES[scheme], bucket, "/".join(parts))

    @classmethod
    def _of_url(cls, text: str) -> Address:
        try:
            url = Url.parse(text)
        except ValueError as error:
            raise UsageError(f"the URL of a source cannot be used: {error}", "write https://HOST/PATH") from None
        return cls(url.scheme, url.host, url.path.removeprefix("/"), url)

    @property
    def is_folder(self) -> bool:
        """Whether the address is a local folder."""
        return self.kind == "folder"

    @property
    def is_http(self) -> bool:
        """Whether the address is on an HTTP server, which is read-only."""
        return self.kind in HTTP

    def key(self, name: str) -> str:
        """Returns the key of one file in its bucket."""
        return f"{self.path}/{name}" if self.path else name

    def __str__(self) -> str:
        if self.is_folder:
            return self.path
        if self.is_http:
            return f"{self.kind}://{self.bucket}/{self.path}"
        return f"{self.kind}://{self.bucket}/{self.path + '/' if self.path else ''}"


def key_of(text: str) -> str:
    """Returns the file name under which the state of an address is stored."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:20]
