"""A person's wish to end a run, as a file in the run's folder; whoever keeps the run is its only reader."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked."""

    now: bool = False
    """Whether the ranks are to get no grace period."""
    reason: str = "asked"
    """Who asked: `asked` is a person, `SIGTERM` the machine that goes down."""


def read_wish(run_dir: Path) -> Wish | None:
    """The wish of a run; None where nobody has one."""
    try:
        data = json.loads((run_dir / "stop.json").read_text())
    except (OSError, ValueError):
        return None
    return Wish(bool(data.get("now")), str(data.get("reason", "asked")))


def forget_wish(run_dir: Path) -> None:
    """What was wished of a run that has ended does not hold once it goes on. Raises OSError."""
    (run_dir / "stop.json").unlink(missing_ok=True)


def write_wish(run_dir: Path, wish: Wish) -> None:
    """Ask the keeper of a run to end it. Atomic: it is read whole or not at all. Raises OSError."""
    partial = run_dir / f"stop.{os.getpid()}"
    partial.write_text(json.dumps(asdict(wish)))
    partial.replace(run_dir / "stop.json")
