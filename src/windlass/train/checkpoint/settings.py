"""Settings of `Checkpoint`: folder, interval and retention, from arguments or the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

DEFAULT_FOLDER = "checkpoints"
DEFAULT_EVERY = "5min"
DEFAULT_KEEP = 3
_UNITS = {
    "": 1.0,
    "ms": 0.001,
    "s": 1.0,
    "sec": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "hour": 3600.0,
    "d": 86400.0,
    "day": 86400.0,
}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)\Z")
_STEPS = re.compile(r"(\d+)\s*steps?\Z")


@dataclass(frozen=True)
class Settings:
    """Where and how often to save, and which checkpoints to keep."""

    folder: str
    every_steps: int | None
    every_seconds: float | None
    keep: int
    keep_for_seconds: float | None
    waits_when_busy: bool


def settle(
    folder: object, every: object, keep: object, keep_for: object, when_busy: object, environ: Mapping[str, str]
) -> Settings:
    """Merges arguments with the environment; None means the environment's value. Raises ValueError for an invalid
    setting.
    """
    steps, seconds = _every(every if every is not None else environ.get("WINDLASS_CHECKPOINT_EVERY") or DEFAULT_EVERY)
    kept = keep if keep is not None else environ.get("WINDLASS_CHECKPOINT_KEEP") or DEFAULT_KEEP
    if isinstance(kept, str) and kept.isdigit():
        kept = int(kept)
    if type(kept) is not int or kept < 1:
        raise ValueError(f"Checkpoint(keep={kept!r}): takes how many checkpoints to keep, at least 1")
    if when_busy not in ("skip", "wait"):
        raise ValueError(f"Checkpoint(when_busy={when_busy!r}): takes 'skip' or 'wait'")
    where = folder if folder is not None else environ.get("WINDLASS_CHECKPOINT_DIR") or DEFAULT_FOLDER
    return Settings(
        str(where),
        steps,
        seconds,
        kept,
        None if keep_for is None else _seconds("keep_for", keep_for),
        when_busy == "wait",
    )


def _every(every: object) -> tuple[int | None, float | None]:
    if type(every) is int:
        steps: int = every
    elif isinstance(every, str) and (found := _STEPS.match(every.strip().lower())):
        steps = int(found[1])
    else:
        return None, _seconds("every", every)
    if steps < 1:
        raise ValueError(f"Checkpoint(every={every!r}): takes at least 1 step")
    return steps, None


def _seconds(name: str, text: object) -> float:
    found = _DURATION.match(text.strip().lower()) if isinstance(text, str) else None
    # The whole word is looked up first: "ms" is not a plural of "m".
    unit = (_UNITS.get(found[2]) or _UNITS.get(found[2].removesuffix("s"))) if found else None
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        seconds = float(text)
    elif found and unit:
        seconds = float(found[1]) * unit
    else:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        steps = "a number of steps, or " if name == "every" else ""
        raise ValueError(f"Checkpoint({name}={text!r}): takes {steps}a time such as '30s', '5min' or '2h'")
    return seconds
