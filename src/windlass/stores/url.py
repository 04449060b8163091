"""HTTP URLs of files, whose `str` and `repr` contain no secret. Standard library only, Python 3.9."""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urljoin, urlsplit

_SAFE = "/%:=&?~+!$,;'@()*[]-._"
HOST = re.compile(r"(?:[A-Za-z0-9_-]{1,63}\.)*[A-Za-z0-9_-]{1,63}\.?|\[[0-9A-Fa-f:.]+\]")
"""Host names and IPv6 addresses that can be looked up."""


@dataclass(frozen=True)
class Url:
    """The URL of a file. `str` and `repr` leave out query, user and password."""

    scheme: str
    host: str
    """Host name, with the port if the URL has one."""
    path: str
    """Percent-encoded path, with a leading slash."""
    query: str = field(default="", repr=False)
    """Percent-encoded query; empty if the URL has none."""
    authorization: str = field(default="", repr=False)
    """`Authorization` header for this host; empty if the URL has no login."""

    @classmethod
    def parse(cls, text: str) -> Url:
        """Parses an http or https URL and drops its fragment. Raises ValueError; its message contains no secret."""
        text = text.strip()
        if not text.isprintable():
            raise ValueError("it has control characters")
        try:
            parts = urlsplit(text)
            name = parts.hostname or ""
            name = name if name.isascii() else name.encode("idna").decode()
        except ValueError:  # the error is not quoted, because its text may contain a password
            raise ValueError("its host cannot be read") from None
        if parts.scheme not in ("http", "https"):
            raise ValueError("it does not begin with http:// or https://")
        if ":" in name:
            name = f"[{name}]"
        try:
            port = parts.port
        except ValueError:
            raise ValueError("its port is not a number") from None
        if not HOST.fullmatch(name):
            raise ValueError("it has no valid host name")
        login = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        return cls(
            parts.scheme,
            name if port is None else f"{name}:{port}",
            quote(parts.path, safe=_SAFE) or "/",
            quote(parts.query, safe=_SAFE),
            "" if login == ":" else f"Basic {b64encode(login.encode()).decode()}",
        )

    @property
    def has_secret(self) -> bool:
        """Whether the URL has a query or a login, which must not be stored."""
        return bool(self.query or self.authorization)

    @property
    def name(self) -> str:
        """Last component of the path, decoded; empty if the path ends with a slash."""
        return unquote(self.path.rpartition("/")[2])

    @property
    def target(self) -> str:
        """Path and query, as in a request line."""
        return f"{self.path}?{self.query}" if self.query else self.path

    def joined(self, location: str) -> Url:
        """Resolves a reference relative to this URL; the login is kept only for the same host. Raises ValueError."""
        try:
            text = urljoin(f"{self.scheme}://{self.host}{self.target}", location)
        except ValueError:
            raise ValueError("its host cannot be read") from None
        found = Url.parse(text)
        is_same = (found.scheme, found.host) == (self.scheme, self.host) and not found.authorization
        login = self.authorization if is_same else found.authorization
        return Url(found.scheme, found.host, found.path, found.query, login)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}{self.path}"
