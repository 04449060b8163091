"""Recipe: what a public data set consists of, where it is published, and how it becomes files that scripts read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

from windlass.storage.place import Buffer


class NewFile(NamedTuple):
    """A file of a layout, as its converter makes it."""

    name: str
    """Below the folder of the set, with `/` between its parts."""
    pieces: Iterable[Buffer]
    """Its content."""


LeaveOut: TypeAlias = Callable[[str, str], None]
"""Called with the name of a file that is left out of a layout, and why."""
Convert: TypeAlias = Callable[[Mapping[str, Path], LeaveOut], Iterator[NewFile]]
"""Makes the files of a layout of the downloads, which are given by name. Raises StorageError."""


@dataclass(frozen=True, slots=True)
class Download:
    """A file of a host."""

    name: str
    """In the folder of downloads, and at a mirror."""
    url: str
    """Where its publisher has it."""
    num_bytes: int | None = None
    """None where it is not known before the host states it."""
    checksums: tuple[str, ...] = ()
    """`sha256:HEX`, `md5:HEX`: all must match. Empty where none is known."""
    checksum_by: str = ""
    """Who published them."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to lay out a set."""

    summary: str
    entries: tuple[str, ...]
    """Files and folders that it consists of. Each appears at once, when all are complete."""
    num_bytes: int | None
    """About how many bytes it takes; None where that is not known: about as many as the downloads."""
    convert: Convert


@dataclass(frozen=True, slots=True)
class Recipe:
    """A public data set."""

    name: str
    title: str
    downloads: tuple[Download, ...]
    layouts: Mapping[str, Layout]
    """By name."""
    default: tuple[str, ...]
    """Layouts that are made if none is named."""
    homepage: str
    licence: str
    citation: str
    note: str = ""
    """What else a user should know before the download."""

    @property
    def num_bytes(self) -> int | None:
        """Of the downloads; None where one is not known."""
        sizes = [one.num_bytes for one in self.downloads]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def notice(self) -> str:
        """Text of the file that is written beside the data."""
        sources = "\n".join(f"  {one.url}" for one in self.downloads)
        parts = [self.title, self.homepage, f"Licence: {self.licence}", f"Citation: {self.citation}"]
        return "\n\n".join([*parts, f"Published at:\n{sources}", *([self.note] if self.note else [])]) + "\n"
