"""Formats the output of `data copy`, `verify`, `ls` and `stage`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from windlass.cli.formatting import Paint, count, duration, size, table, titled, visible
from windlass.cli.statustext import DIGEST_CHARS

if TYPE_CHECKING:
    from windlass.storage.progress import Refusal
    from windlass.views.data import (
        DataCacheList,
        DataCopied,
        DataCopyPreview,
        DataList,
        DataVerified,
        StagedData,
    )

SHOWN: Final = 20
"""Maximum number of refused files listed; `-o json` lists all."""


def copied_lines(done: DataCopied, paint: Paint) -> list[str]:
    """Returns the output lines of `data copy`."""
    copied = done.copied
    moved = f"{count(copied.num_copied, 'file')} copied, {size(copied.num_bytes)} in {duration(copied.seconds)}"
    if copied.num_bytes and copied.seconds >= 0.1:
        moved += f", {size(int(copied.num_bytes / copied.seconds))}/s"
    lines = [moved if copied.num_copied else "nothing copied" if copied.refused else "nothing to copy"]
    if copied.num_unchanged:
        lines[0] += f"; {count(copied.num_unchanged, 'file')} unchanged"
    lines += refused_lines(copied.refused, "not copied", paint)
    if copied.num_files or not copied.refused:
        lines.append(
            f"{done.destination}: {count(copied.num_files, 'file')}, {size(copied.set_bytes)}, {copied.digest}"
        )
    return lines


def preview_lines(found: DataCopyPreview, paint: Paint) -> list[str]:
    """Returns the output lines of `data copy --dry-run`."""
    rows = [[size(one.bytes), visible(one.name)] for one in found.files[:SHOWN]]
    lines = titled(("SIZE", "NAME"), rows, paint) if rows else []
    if len(found.files) > SHOWN:
        lines.append(f"and {len(found.files) - SHOWN:,} more: -o json names all")
    lines += refused_lines(found.refused, "not copied", paint)
    total = f"{count(len(found.files), 'file')}, {size(found.bytes)}"
    unchanged = f"; {count(found.unchanged_files, 'file')} unchanged" if found.unchanged_files else ""
    return [*lines, f"would be copied to {found.destination}: {total}{unchanged}"]


def verified_lines(done: DataVerified, paint: Paint) -> list[str]:
    """Returns the output lines of `data verify`."""
    found = done.found
    lines = refused_lines(found.problems, "not as the manifest says", paint)
    if found.extra:
        lines.append(f"{count(len(found.extra), 'other file')} beside the set, such as {visible(found.extra[0])}")
    word = paint("verified", "green") if done.ok else paint("differs", "red", bold=True)
    lines.append(f"{done.address}: {word}, {count(found.num_files, 'file')}, {size(found.num_bytes)}, {found.digest}")
    return lines


def list_lines(found: DataList, paint: Paint) -> list[str]:
    """Returns the output lines of `data ls`."""
    rows = [[size(one.bytes), visible(one.name)] for one in found.files]
    total = f"{count(len(rows), 'file')}, {size(sum(one.bytes for one in found.files))}"
    shown = titled(("SIZE", "NAME"), rows, paint) if rows else []
    return [*shown, f"{found.address}: {total}, {found.digest or visible(found.problem) or 'without a manifest'}"]


def staged_lines(done: StagedData) -> list[str]:
    """Returns the output lines of `data stage`."""
    fetched = f"{size(done.fetched_bytes)} fetched in {duration(done.seconds)}" if done.fetched_bytes else "unchanged"
    return [f"{fetched}: {count(done.files, 'file')}, {size(done.bytes)}, {done.digest}", done.folder]


def cache_lines(found: DataCacheList, paint: Paint) -> list[str]:
    """Returns the output lines of `data ls` for the cache."""
    now = time.time()
    rows = [
        [
            one.digest[:DIGEST_CHARS] or "in part",
            f"{one.files:,}",
            size(one.bytes),
            f"{duration(max(0.0, now - one.used_at))} ago",
            visible(" ".join(one.sources)),
        ]
        for one in reversed(found.sets)
    ]
    shown = titled(("DIGEST", "FILES", "SIZE", "USED", "SOURCE"), rows, paint) if rows else []
    return [*shown, f"cache: {count(len(rows), 'set')}, {size(sum(one.bytes for one in found.sets))}"]


def refused_lines(refused: tuple[Refusal, ...], what: str, paint: Paint) -> list[str]:
    """Returns lines with refused files and the reason for each; empty if no file was refused."""
    if not refused:
        return []
    lines = [paint(f"{count(len(refused), 'file')} {what}:", "red")]
    lines += table([[f"  {visible(one.name)}", visible(one.why)] for one in refused[:SHOWN]])
    if len(refused) > SHOWN:
        lines.append(f"  and {len(refused) - SHOWN:,} more: -o json names all")
    return lines
