"""A person's wish to end a run, as a file in the run's folder; whoever keeps the run is its only reader."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from windlass.worker.reserve import FULL_ERRORS

STOP: Final = "stop.json"
NOW: Final = "stop-now"
"""Left beside it, empty, where the disk was too full for a wish without a grace period."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked."""

    now: bool = False
    """Whether the ranks are to get no grace period."""
    reason: str = "asked"
    """Who asked: `asked` is a person, `SIGTERM` the machine that goes down."""


def read_wish(run_dir: Path) -> Wish | None:
    """The wish of a run; None where nobody has one."""
    if (run_dir / NOW).exists():
        return Wish(now=True)
    try:
        text = (run_dir / STOP).read_text()
        data = json.loads(text) if text else {}  # an empty one was left on a full disk
    except (OSError, ValueError):
        return None
    return Wish(bool(data.get("now")), str(data.get("reason", "asked")))


def forget_wish(run_dir: Path) -> None:
    """What was wished of a run that has ended does not hold once it goes on. Raises OSError."""
    for name in (STOP, NOW):
        (run_dir / name).unlink(missing_ok=True)


def write_wish(run_dir: Path, wish: Wish) -> None:
    """Ask the keeper of a run to end it. Atomic: it is read whole or not at all. Raises OSError.

    On a full disk the file is empty, which takes no space, and its name has what was asked.
    """
    partial = run_dir / f"stop.{os.getpid()}"
    try:
        partial.write_text(json.dumps(asdict(wish)))
    except OSError as error:
        if error.errno not in FULL_ERRORS or not partial.exists():
            raise
        os.truncate(partial, 0)
        partial.replace(run_dir / (NOW if wish.now else STOP))
        return
    partial.replace(run_dir / STOP)
