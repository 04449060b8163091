"""The new and changed files of a run's code folder: what was copied to its output, and what would be lost."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from windlass.runs import events
from windlass.worker.protocol import FileSize, SavedState

if TYPE_CHECKING:
    from windlass.plan.plan import Plan

MOST: Final = 10
MOST_PATTERNS: Final = 5


@dataclass(frozen=True, slots=True)
class ChangedFiles:
    """The files of the code folder that are new or changed since the run began, when its ranks had ended."""

    folder: str
    """The code folder, as the ranks saw it."""
    is_kept: bool
    """Whether the folder is on this machine, where the files stay until another run or a user changes them. Otherwise
    it is deleted with its pod, or with the host of its training job."""
    wanted: tuple[str, ...]
    """The job's `outputs.collect`."""
    copied: int
    """Files that were copied to the output; each node counts its own."""
    copied_nodes: int
    """The nodes that have copied some."""
    copied_bytes: int
    left: int
    """Files that are only in the code folder."""
    left_bytes: int
    largest: tuple[FileSize, ...]
    """The ten largest of these."""
    is_cut: bool
    """Whether there may be more: the time to list them was over."""
    patterns: tuple[str, ...]
    """What `outputs.collect` lacks to keep the largest ones."""


def changed_files(found: Sequence[events.CodeFiles], plan: Plan) -> ChangedFiles | None:
    """The view of what the nodes of the newest attempt have reported; None where none has, or nothing has changed."""
    is_kept = plan.engine == "local"
    wanted = plan.nodes.collect.patterns if plan.nodes.collect is not None else ()
    if is_kept:
        found = found[-1:]  # all nodes have the same folder, and the last one has seen all
    if not found or not (wanted or any(one.left for one in found)):
        return None
    largest = sorted((file for one in found for file in one.largest), key=lambda file: -file.bytes)[:MOST]
    return ChangedFiles(
        found[0].folder,
        is_kept,
        wanted,
        copied=sum(one.copied for one in found),
        copied_nodes=sum(one.copied > 0 for one in found),
        copied_bytes=sum(one.copied_bytes for one in found),
        left=sum(one.left for one in found),
        left_bytes=sum(one.left_bytes for one in found),
        largest=tuple(largest),
        is_cut=any(one.is_cut for one in found),
        patterns=tuple(one for one in dict.fromkeys(pattern_of(file.path) for file in largest) if one not in wanted)[
            :MOST_PATTERNS
        ],
    )


def newest_save(reports: Sequence[events.CodeFiles]) -> SavedState | None:
    """The newest saved state, of all nodes."""
    saves = [one.save for one in reports if one.save is not None]
    return max(saves, key=lambda one: one.at, default=None)


def pattern_of(path: str) -> str:
    """The pattern that keeps a file and its like: `out/**` for one in a folder, `*.pt` for one that is in none."""
    folder, slash, _ = path.partition("/")
    if slash:
        return f"{_literal(folder)}/**"
    ending = posixpath.splitext(path)[1]
    return f"*{_literal(ending)}" if ending else _literal(folder)


def _literal(text: str) -> str:
    """A pattern for this text alone, or with `?` for each letter that no terminal shows as it is."""
    shown = re.sub(r"([*?\[])", r"[\1]", text)
    return "".join(letter if letter.isprintable() else "?" for letter in shown)
