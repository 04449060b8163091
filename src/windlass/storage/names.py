"""Names of files in a set: which of those that a store or a folder lists may be written below a folder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

OWN: Final = ".windlass"
"""What the names of our own files beside a set begin with; never part of the set. In a folder of this machine it is a
folder as long as a copy is under way: to scripts that take each folder for a class of images it would be one."""
MAX_PART_BYTES: Final = 255
"""Of one part of a path: the limit of all common file systems."""
MAX_BYTES: Final = 1024
"""Of a whole name: the limit of S3."""
_PLAIN: Final = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9_.-]*/)*[A-Za-z0-9_-][A-Za-z0-9_.-]*")
"""Names in which nothing needs a closer look, unless they are long: nearly all."""
_CONTROL: Final = re.compile("[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
"""Also characters that XML, in which stores list names, cannot have: Azurite lists nothing beside such a name."""
_REFUSED: Final = frozenset(("", ".", ".."))


def problem(name: str) -> str:
    """Why a name cannot be that of a file below a folder; empty where it can."""
    if len(name) <= MAX_PART_BYTES and _PLAIN.fullmatch(name):
        return ""
    if "\0" in name:
        return "its name has a NUL character"
    if _CONTROL.search(name):
        return "its name has control characters"
    if name.startswith("/"):
        return "its name is an absolute path"
    parts = name.split("/")
    if not _REFUSED.isdisjoint(parts):
        return "its name leads out of the folder" if ".." in parts else "its name has an empty part"
    if len(name.encode()) > MAX_BYTES:
        return f"its name is longer than {MAX_BYTES} bytes"
    if len(name) > MAX_PART_BYTES // 4 and any(len(part.encode()) > MAX_PART_BYTES for part in parts):
        return f"a part of its name is longer than {MAX_PART_BYTES} bytes"
    return ""


def is_own(name: str) -> bool:
    """Whether it is a file of ours beside the set."""
    return name.startswith(OWN) and (name == OWN or name[len(OWN)] in "/-")


def own_file(name: str) -> str:
    """The name in a folder of a file of ours, which has another in a store: `.windlass-manifest.jsonl`."""
    return name.replace("/", "-")


def clashes(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Names that cannot stand beside one before them, each with the reason: a file system may not tell upper from lower
    case, and none has a file and a folder of one name.
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
