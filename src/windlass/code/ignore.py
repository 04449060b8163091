"""Parses ignore files and matches paths against them, exactly as git does: gitignore(5) and git's wildmatch.c.

Patterns are matched as bytes against one entry at a time. A caller that walks a tree and does not enter ignored folders
gets the same result as git. tests/code/test_ignore.py compares the results on generated trees; the results of the
package pathspec 1.1 differ from git's on one tree in eight.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

_SPECIAL: Final = re.compile(rb"[*?\[\\]")
_ANY, _FOLDERS, _REST = b"[^/]*", b"(?:.*/)?", b".*"
_STARS: Final = (_ANY, _FOLDERS, _REST)
_CLASSES: Final = {
    "alnum": string.ascii_letters + string.digits,
    "alpha": string.ascii_letters,
    "blank": " \t",
    "cntrl": "".join(map(chr, [*range(32), 127])),
    "digit": string.digits,
    "graph": string.ascii_letters + string.digits + string.punctuation,
    "lower": string.ascii_lowercase,
    "print": string.ascii_letters + string.digits + string.punctuation + " ",
    "punct": string.punctuation,
    "space": string.whitespace,
    "upper": string.ascii_uppercase,
    "xdigit": string.hexdigits,
}


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of an ignore file."""

    base: bytes
    """Absolute path of the folder that the pattern is relative to, without a trailing slash."""
    source: str
    """File and line, as shown to the user: `.gitignore:3`."""
    pattern: str
    """The line as written."""
    keeps: bool
    """Whether the line begins with `!`, which means that matching entries are not ignored."""
    folders_only: bool
    is_path: bool
    """Whether the pattern is matched against the whole path below `base`; otherwise against the last name only."""
    expression: re.Pattern[bytes]

    def matches(self, path: bytes, *, is_folder: bool) -> bool:
        """Whether the rule matches the entry at `path`, which is absolute and below `base`; parents are not tested."""
        if self.folders_only and not is_folder:
            return False
        text = path[len(self.base) + 1 :] if self.is_path else path[path.rfind(b"/") + 1 :]
        return self.expression.fullmatch(text) is not None


def last_match(rules: Iterable[list[Rule]], path: bytes, *, is_folder: bool) -> Rule | None:
    """Returns the rule that decides on an entry: the last match in the last list with a match. `rules` contains lists
    in ascending order of precedence.
    """
    for group in reversed(list(rules)):
        for rule in reversed(group):
            if rule.matches(path, is_folder=is_folder):
                return rule
    return None


def parse(data: bytes, base: bytes, source: str) -> list[Rule]:
    """Returns the rules of an ignore file, without lines that can never match, which git ignores too."""
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return [rule for number, line in enumerate(lines, 1) for rule in _rule(line, base, f"{source}:{number}")]


def _rule(line: bytes, base: bytes, source: str) -> Iterator[Rule]:
    line = _trimmed(line.removesuffix(b"\r"))
    if not line or line.startswith(b"#"):
        return
    pattern = line.removeprefix(b"!")
    body = pattern.removesuffix(b"/")
    is_path = b"/" in body
    expression = _translated(body.removeprefix(b"/") if is_path else body, is_path=is_path)
    if body and expression is not None:
        yield Rule(
            base=base,
            source=source,
            pattern=line.decode("utf-8", "replace"),
            keeps=pattern != line,
            folders_only=body != pattern,
            is_path=is_path,
            expression=re.compile(expression, re.DOTALL),
        )


def _trimmed(line: bytes) -> bytes:
    """Removes trailing spaces, except a space after a backslash."""
    end = at = 0
    while at < len(line):
        step = 2 if line[at : at + 1] == b"\\" else 1
        if line[at : at + 1] != b" ":
            end = at + step
        at += step
    return line[:end]


def _translated(pattern: bytes, *, is_path: bool) -> bytes | None:
    """Translates a pattern into a regular expression; None for a pattern that cannot match."""
    first = _SPECIAL.search(pattern)
    # git compares the literal prefix of a pattern separately, and matches the rest as a new pattern. Therefore `**`
    # after a literal prefix also matches folders: `foo**/bar` matches foo/x/bar.
    start = first.start() if first is not None else len(pattern)
    pieces: list[bytes] = []
    at = 0
    while at < len(pattern):
        letter = pattern[at : at + 1]
        if letter == b"*":
            piece, at = _stars(pattern, at, start, is_path=is_path)
        elif letter == b"[":
            found = _bracket(pattern, at + 1)
            if found is None:
                return None
            members, at = found
            piece = _set_of(members - {0x2F})
        elif letter == b"?":
            piece, at = b"[^/]", at + 1
        else:
            at += letter == b"\\"
            if at == len(pattern):
                return None
            piece, at = re.escape(pattern[at : at + 1]), at + 1
        pieces.append(piece)
    return _joined(pieces)


def _joined(pieces: list[bytes]) -> bytes:
    """Joins the pieces of a pattern into one regular expression.

    Text between two stars is matched only at its first occurrence (atomic group). This avoids exponential backtracking,
    with the same result.
    """
    out, is_open = b"", False
    last_star = max((at for at, piece in enumerate(pieces) if piece in _STARS), default=-1)
    for at, piece in enumerate(pieces):
        if piece in _STARS and is_open:
            out, is_open = out + b")", False
        if piece == _ANY and at < last_star:
            out, is_open = out + b"(?>[^/]*?", True
        else:
            out += piece
    return out


def _stars(pattern: bytes, at: int, start: int, *, is_path: bool) -> tuple[bytes, int]:
    """Returns the regular expression for consecutive `*`, and the offset after them."""
    end = at
    while pattern[end : end + 1] == b"*":
        end += 1
    rest = pattern[end:]
    begins = at == start or pattern[at - 1 : at] == b"/"
    if end - at == 1 or not is_path or not begins or (rest and not rest.startswith((b"/", b"\\/"))):
        return _ANY, end
    if rest.startswith(b"/"):
        return _FOLDERS, end + 1
    return _REST, end


def _bracket(pattern: bytes, at: int) -> tuple[set[int], int] | None:
    """Returns the bytes that a bracket expression matches, and the offset after it; None for an unclosed bracket."""
    is_negated = pattern[at : at + 1] in (b"!", b"^")
    at += is_negated
    members: set[int] = set()
    before = -1  # first letter of a range such as a-z; -1 if no range may begin here
    first = at
    while at < len(pattern) and (pattern[at] != 0x5D or at == first):  # a first "]" is a literal
        letter = pattern[at : at + 1]
        if letter == b"-" and before > 0 and at + 1 < len(pattern) and pattern[at + 1] != 0x5D:
            at += 2 if pattern[at + 1 : at + 2] == b"\\" else 1
            if at >= len(pattern):
                return None
            members |= set(range(before, pattern[at] + 1))
            before = -1
        elif letter == b"[" and pattern[at + 1 : at + 2] == b":":
            close = pattern.find(b"]", at + 2)
            name = pattern[at + 2 : close - 1].decode("latin-1")
            if close < 0:
                return None
            if close == at + 2 or pattern[close - 1 : close] != b":":
                members.add(before := 0x5B)
            elif name in _CLASSES:
                members |= set(_CLASSES[name].encode())
                at, before = close, -1
            else:
                return None
        else:
            at += letter == b"\\"
            if at >= len(pattern):
                return None
            members.add(before := pattern[at])
        at += 1
    if at >= len(pattern):
        return None
    return (set(range(256)) - members if is_negated else members), at + 1


def _set_of(members: set[int]) -> bytes:
    return b"[" + b"".join(b"\\x%02x" % one for one in sorted(members)) + b"]" if members else b"(?!)"
