"""Names of files in a set: decides which names of a store or folder may be written below a folder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

OWN: Final = ".windlass"
"""Prefix of the names of Windlass's own files next to a set, which are never part of the set. In a local folder it is a
folder that exists only during a copy, because scripts may treat every folder as a class of images."""
MAX_PART_BYTES: Final = 255
"""Maximum bytes of one path component, the limit of all common file systems."""
MAX_BYTES: Final = 1024
"""Maximum bytes of a whole name, the limit of S3."""
_PLAIN: Final = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9_.-]*/)*[A-Za-z0-9_-][A-Za-z0-9_.-]*")
"""Names that are valid without further checks unless they are too long; nearly all names match."""
_CONTROL: Final = re.compile("[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
"""Characters that are invalid in a name. An XML listing cannot contain some of them: Azurite returns an empty listing
if one name has such a character."""
_REFUSED: Final = frozenset(("", ".", ".."))


def problem(name: str) -> str:
    """Returns why a name is invalid for a file below a folder; empty if it is valid."""
    if len(name) <= MAX_PART_BYTES and _PLAIN.fullmatch(name):
        return ""
    if "\0" in name:
        return "its name has a NUL character"
    if _CONTROL.search(name):
        return "its name has control characters"
    if name.startswith("/"):
        return "its name is an absolute path"
    if is_own(name):
        return "Windlass keeps a file of its own under its name"
    parts = name.split("/")
    if not _REFUSED.isdisjoint(parts):
        return "its name leads out of the folder" if ".." in parts else "its name has an empty part"
    if len(name.encode()) > MAX_BYTES:
        return f"its name is longer than {MAX_BYTES} bytes"
    if len(name) > MAX_PART_BYTES // 4 and any(len(part.encode()) > MAX_PART_BYTES for part in parts):
        return f"a part of its name is longer than {MAX_PART_BYTES} bytes"
    return ""


def is_own(name: str) -> bool:
    """Whether the name belongs to one of Windlass's own files next to the set."""
    return name.startswith(OWN) and (name == OWN or name[len(OWN)] in "/-")


def own_file(name: str) -> str:
    """Returns the local name of one of Windlass's own files, such as `.windlass-manifest.jsonl`. In a store, the name
    has a slash.
    """
    return name.replace("/", "-")


def clashes(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields names that conflict with an earlier name, with the reason: a file and a folder of one name, or names that
    differ only in case, which some file systems do not distinguish.
    """
    files: dict[str, str] = {}
    folders: dict[str, str] = {}
    for name in names:
        folded = name.casefold()
        above = [folded[:at] for at, char in enumerate(folded) if char == "/"]
        if (other := files.get(folded)) is not None:
            yield name, f"its name differs from {other} in upper and lower case alone"
        elif (other := folders.get(folded)) is not None:
            yield name, f"a folder of that name is needed for {other}"
        elif (other := next((files[one] for one in above if one in files), None)) is not None:
            yield name, f"its folder would have the name of the file {other}"
        else:
            files[folded] = name
            folders.update((one, name) for one in above)
