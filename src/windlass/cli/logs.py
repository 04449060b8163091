"""Writes the logs of a run as bytes: one rank's lines unchanged, several ranks' with `[K] ` before each line.

On a terminal, each rank has a colour, and output of a rank cannot move the cursor.
"""

from __future__ import annotations

import json
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import click

from windlass.cli.style import RANK_COLOURS
from windlass.errors import UsageError
from windlass.runs.logs import LogBlock, RunLogs

_ESCAPE = re.compile(r"\x1b\[[0-9;:]*m|\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_]|.)?")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1a\x1c-\x1f\x7f-\x9f]")


def write_logs(
    run_dir: Path,
    out: BinaryIO,
    *,
    ranks: Collection[int] = (),
    attempt: int | None = None,
    tail: int | None = None,
    since_ns: int | None = None,
    is_over: Callable[[], bool] | None = None,
    terminal: bool = False,
    pattern: re.Pattern[str] | None = None,
    stamped: bool = False,
    as_json: bool = False,
) -> None:
    """Writes the logs of the ranks of a run; with `is_over`, follows the logs until `is_over()` returns true.

    `terminal` says whether `out` is a terminal, for colours. `tail` is the number of last matches of `pattern` to
    write. With `is_over`, all matches among the last `tail` lines, and all later matches, are written. `stamped` writes
    the time before each line, `as_json` one JSON object per line. Raises UsageError for a rank or attempt that does not
    exist.
    """
    logs, chosen = RunLogs(run_dir), ranks or None
    if is_over is None:
        _refuse_unknown(logs, ranks, attempt)
    searched = pattern is not None and is_over is None
    blocks: Iterable[LogBlock] = logs.read_batches(
        ranks=chosen, attempt=attempt, tail=None if searched else tail, since_ns=since_ns, is_over=is_over
    )
    if pattern is not None:
        blocks = _found(blocks, pattern)
    if searched and tail is not None:
        blocks = deque(_single(blocks), tail)
    if as_json:
        _write_json(blocks, out, flush=is_over is not None)
        return
    write_blocks(blocks, out, plain=len(ranks) == 1, flush=is_over is not None, terminal=terminal, stamped=stamped)


def _found(blocks: Iterable[LogBlock], pattern: re.Pattern[str]) -> Iterator[LogBlock]:
    """Yields the lines that match the pattern."""
    for block in blocks:
        lines = [line for line in block.lines() if pattern.search(line.text)]
        if lines:
            yield block._replace(data=b"".join(line.data + b"\n" for line in lines))


def _single(blocks: Iterable[LogBlock]) -> Iterator[LogBlock]:
    """Splits blocks into blocks of one line."""
    for block in blocks:
        for line in block.lines():
            yield block._replace(data=line.data + b"\n")


def _write_json(blocks: Iterable[LogBlock], out: BinaryIO, *, flush: bool) -> None:
    """Writes a JSON object for each line, as `views.lines.LogLineView`."""
    for block in blocks:
        for line in block.lines():
            view = {"time": line.time_ns / 1e9, "attempt": line.attempt, "rank": line.rank, "text": line.text}
            out.write(json.dumps(view).encode() + b"\n")
        if flush:
            out.flush()
    out.flush()


def write_blocks(
    blocks: Iterable[LogBlock],
    out: BinaryIO,
    *,
    plain: bool = False,
    flush: bool = False,
    terminal: bool = False,
    stamped: bool = False,
) -> None:
    """Writes blocks with the prefix of their rank, or `plain` without; `stamped` adds the time of each line."""
    for block in blocks:
        stamp = time_stamp(block.time_ns) if stamped else ""
        if plain and not stamped:
            out.write(block.data)
        elif terminal and not plain:
            out.write(terminal_lines(block, stamp).encode())
        else:
            out.write(block.prefixed(stamp.encode() + (b"" if plain else b"[%d] " % block.rank)))
            if not block.data.endswith(b"\n"):
                out.write(b"\n")  # a line of another rank must not continue this line
        if flush:
            out.flush()
    out.flush()


def time_stamp(time_ns: int) -> str:
    """Formats a time in UTC as `kubectl logs --timestamps` does: `2026-03-01T09:30:00.250Z `."""
    seconds, rest = divmod(time_ns, 10**9)
    return time.strftime(f"%Y-%m-%dT%H:%M:%S.{rest // 10**6:03}Z ", time.gmtime(seconds))


def terminal_lines(block: LogBlock, stamp: str = "") -> str:
    """Formats a block for a terminal: the rank first, colours kept, escape sequences that move the cursor removed.

    For a progress bar that redraws itself by carriage returns, only the last state is kept.
    """
    prefix = stamp + click.style(f"[{block.rank}]", fg=RANK_COLOURS[block.rank % len(RANK_COLOURS)]) + " "
    lines = []
    for line in block.data.decode("utf-8", "replace").removesuffix("\n").split("\n"):
        if not line.isprintable():
            line = _tame(line)
        lines.append(f"{prefix}{line}\n")
    return "".join(lines)


def _tame(line: str) -> str:
    line = line.rstrip("\r").rsplit("\r", 1)[-1]
    coloured = "\x1b" in line
    if coloured:
        line = _ESCAPE.sub(lambda match: match[0] if match[0].endswith("m") and match[0][1:2] == "[" else "", line)
    line = _CONTROL.sub("", line)
    return f"{line}\x1b[0m" if coloured else line


def _refuse_unknown(logs: RunLogs, ranks: Collection[int], attempt: int | None) -> None:
    attempts = logs.attempts()
    if attempt is not None and attempt not in attempts:
        raise UsageError(f"there is no attempt {attempt}", f"the run has had {len(attempts)}")
    known = {rank for number in attempts for rank in logs.ranks(number)}
    for rank in ranks:
        if known and rank not in known:
            last = max(known)
            raise UsageError(f"there is no rank {rank}", f"the ranks are 0 to {last}" if last else "its only rank is 0")
