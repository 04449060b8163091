"""New and changed files in a run's code folder: files copied to its output, and files that would be lost."""

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

MAX_FILES: Final = 10
MOST_PATTERNS: Final = 5


@dataclass(frozen=True, slots=True)
class ChangedFiles:
    """Files of the code folder that were new or changed when the ranks ended, compared with the start of the run."""

    folder: str
    """Path of the code folder as seen by the ranks."""
    is_kept: bool
    """Whether the folder is on this machine, where the files remain until another run or the user changes them.
    Otherwise the folder is deleted with its pod, or with the host of its training job."""
    wanted: tuple[str, ...]
    """Patterns in the job's `outputs.collect`."""
    copied: int
    """Number of files copied to the output, summed over nodes."""
    copied_nodes: int
    """Number of nodes that copied files."""
    copied_bytes: int
    left: int
    """Number of files that exist only in the code folder."""
    left_bytes: int
    largest: tuple[FileSize, ...]
    """The ten largest files that exist only in the code folder."""
    is_cut: bool
    """Whether the list may be incomplete because the time limit for listing was reached."""
    patterns: tuple[str, ...]
    """Patterns to add to `outputs.collect` to keep the largest files."""


def changed_files(found: Sequence[events.CodeFiles], plan: Plan) -> ChangedFiles | None:
    """Builds the view from the reports of the newest attempt's nodes; None without reports or changed files."""
    is_kept = plan.runs_here
    wanted = plan.nodes.collect.patterns if plan.nodes.collect is not None else ()
    if is_kept and found:
        # All nodes share this folder, so one report covers all nodes. A supervisor reads reports of several nodes at
        # once, so the last report may be of a node that looked before another one wrote: the longest is taken.
        found = [max(reversed(found), key=lambda one: (one.copied, one.left))]
    if not found or not (wanted or any(one.left for one in found)):
        return None
    largest = sorted((file for one in found for file in one.largest), key=lambda file: -file.bytes)[:MAX_FILES]
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
    """Returns the newest saved state among all nodes."""
    saves = [one.save for one in reports if one.save is not None]
    return max(saves, key=lambda one: one.at, default=None)


def pattern_of(path: str) -> str:
    """Returns a pattern that matches a file and similar files: `out/**` for `out/a.pt`, `*.pt` for `a.pt`."""
    folder, slash, _ = path.partition("/")
    if slash:
        return f"{_literal(folder)}/**"
    ending = posixpath.splitext(path)[1]
    return f"*{_literal(ending)}" if ending else _literal(folder)


def _literal(text: str) -> str:
    """Returns a pattern that matches exactly this text, with `?` for characters that terminals do not show."""
    shown = re.sub(r"([*?\[])", r"[\1]", text)
    return "".join(letter if letter.isprintable() else "?" for letter in shown)
