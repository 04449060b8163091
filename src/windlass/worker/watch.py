"""Takes the stacks of ranks that say nothing: by a signal that they answer themselves; nothing is attached to them."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Callable  # noqa: UP035 - the worker runs on Python 3.9 too

from windlass.worker import process
from windlass.worker.rank import STACK_SIGNAL

if TYPE_CHECKING:
    from windlass.worker.ranks import Rank

PATIENCE_SECONDS = 1.0
QUIET_SECONDS = 0.05
MAX_STACK_CHARS = 16_384
_WAITED = re.compile(r"[Tt]imed out|[Tt]imeout|[Ww]atchdog")


def take_stacks(ranks: list[Rank], drain: Callable[[Rank], object]) -> list[dict[str, Any]]:
    """Where each live rank is now: `rank`, `state` (of its process), and `stack` as the rank wrote it, or empty.

    What it writes is in its log too. Takes a tenth of a second; a second where a rank does not answer.
    """
    for rank in ranks:
        drain(rank)
    before = {rank.number: rank.capture.length for rank in ranks}
    asked = [rank for rank in ranks if _answers(rank.pid) and process.send(rank.pid, STACK_SIGNAL)]
    give_up = time.monotonic() + PATIENCE_SECONDS
    lengths, changed_at = dict(before), time.monotonic()
    while asked and time.monotonic() < give_up:
        time.sleep(0.01)
        for rank in asked:
            drain(rank)
        now = {rank.number: rank.capture.length for rank in ranks}
        if now != lengths:
            lengths, changed_at = now, time.monotonic()
            continue
        answered = all(now[rank.number] > before[rank.number] for rank in asked)
        if answered and time.monotonic() - changed_at >= QUIET_SECONDS:
            break
    found = []
    for rank in ranks:
        written = rank.capture.length - before[rank.number]
        text = rank.capture.last(written).decode("utf-8", "replace") if written else ""
        line = process.stat(rank.pid)
        state = line.state if line else ""
        found.append({"rank": rank.number, "state": state, "stack": text[-MAX_STACK_CHARS:]})
    return found


def waited_in_vain(tail: str) -> bool:
    """Whether a rank's last words are that it has waited too long for others: they are to be asked where they are."""
    return bool(_WAITED.search(tail[-4096:]))


def _answers(pid: int) -> bool:
    """Whether this process handles the signal; one that does not would die of it."""
    try:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                if line.startswith("SigCgt:"):
                    return bool(int(line.split()[1], 16) >> (STACK_SIGNAL - 1) & 1)
    except (OSError, ValueError):
        pass
    return False
