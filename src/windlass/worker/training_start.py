"""Detects where the training of a rank begins: its first steps, and log lines that report a restored checkpoint.

A script that restores its own checkpoint does not report this to Windlass, but logs it. Recognised are messages of
transformers, Lightning, accelerate, DeepSpeed, Megatron, torchtitan, MMEngine, timm, ultralytics, nanoGPT and scripts
modelled after them. Precision is preferred to recall: a line that may be about pretrained weights is ignored.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Final  # noqa: UP035 - the worker runs on Python 3.9 too

from windlass.worker.trainlogs import INTEGER_LIMIT, LINE_CHARS, Progress, without_colours

LOOK_BYTES: Final = 256 << 10
"""Maximum bytes of output, without progress bars, that are searched for the start of training. Limited because parsing
takes time."""
LINE_SHOWN: Final = 200
_HINTS: Final = (b"resum", b"restor", b"continuing", b"load", b"start")
_FLAGS: Final = re.ASCII | re.IGNORECASE

_RESTORES: Final = tuple(
    re.compile(pattern, _FLAGS)
    for pattern in (
        # `Resuming training from out`, `Resuming training last.pt from epoch 12`, `Resumed from checkpoint: step_500`
        r"\b(?:auto[- ]?)?resum(?:ing|ed)\s+(?:(?:model\s+|the\s+)?(?:training|fine-?tuning|run)\s+(?:\S+\s+)?)?"
        r"(?:from|at|epoch)\b",
        r"\bresume checkpoint from\s",  # MMEngine
        r"\brestor(?:ing|ed) (?:all )?states from the checkpoint (?:path |file )?at\s",  # Lightning
        r"\bloading states from\s",  # accelerate
        r"\bcontinuing training from (?:the )?(?:saved )?(?:checkpoint|epoch|global[ _]step)\b",  # transformers
        r"\[torch\] load(?:ing|ed) checkpoint from\s",  # DeepSpeed
    )
)
LOADS: Final = re.compile(r"\bload(?:ing|ed)\s+(?:the\s+)?checkpoint\b", _FLAGS)
"""Matches messages that are also logged for pretrained weights. They only count if the line contains a step or an
epoch."""
_STARTS: Final = re.compile(r"\b(?:training starts at step|starting training from iteration)\s+(\d{1,15})\b", _FLAGS)
"""Matches messages of torchtitan and Detectron2 with the first step. They are also logged by a training from
scratch."""
_DENIES: Final = re.compile(
    r"\b(?:no|not|never|cannot|can't|could(?:n't)?|unable|fail(?:s|ed|ure)?|error|if|would|disabled)\b"
    r"|\b(?:from|at|checkpoint)\b\W{0,4}(?:scratch|none|null|false)\b",
    _FLAGS,
)
_SENTENCE_END: Final = re.compile(r"[.!?](?=\s)")
_STEP: Final = re.compile(
    r"(?<![a-z])(?:global[ _]?step|steps?|iter(?:ation)?|updates?)[\s:=_#-]{0,3}(\d{1,15})\b|\b(\d{1,15}) updates\b"
    r"|\bcheckpoint-(\d{1,15})\b",
    _FLAGS,
)
_EPOCH: Final = re.compile(r"(?<![a-z])epochs?[\s:=_#-]{0,3}(\d{1,9})\b", _FLAGS)

Reader = Callable[[bytes], "tuple[str, Progress] | None"]
"""Function that returns the progress in a line and its kind."""
KINDS: Final = ("structured", "pattern", "known", "posted")
"""Kinds of progress, best first. Posts of transformers' Trainer are last, because the first post lacks the
checkpoint's step."""


def restored(line: str) -> dict[str, Any] | None:
    """Parses a log line about a checkpoint that the script has restored. Returns None for any other line.

    The result has the shortened `line`, and `step` and `epoch` if the line contains them.
    """
    if len(line) > LINE_CHARS:
        return None
    line = without_colours(line).strip()
    match = next((one for pattern in _RESTORES if (one := pattern.search(line))), None)
    starts = _STARTS.search(line)
    loads = LOADS.search(line)
    found_at = match or starts or loads
    if found_at is None:
        return None
    sentence_end = _SENTENCE_END.search(line, found_at.end())
    sentence = line[: sentence_end.start()] if sentence_end else line
    if _DENIES.search(sentence):
        return None
    found: dict[str, Any] = {"line": line[:LINE_SHOWN]}
    if match is None and starts is not None:
        first = int(starts[1])
        is_torchtitan = starts[0].lower().startswith("training")
        return {**found, "step": first - is_torchtitan} if first > is_torchtitan else None
    names = sentence[found_at.start() :]
    step, epoch = _last(_STEP, names), _last(_EPOCH, names, first=True)
    if step is not None:
        found["step"] = step
    if epoch is not None:
        found["epoch"] = epoch
    return None if match is None and len(found) == 1 else found


def _last(pattern: re.Pattern[str], text: str, *, first: bool = False) -> int | None:
    """Returns the last number that the pattern matches, which in a path is the innermost; with `first`, the
    first one.
    """
    numbers = [int(next(group for group in found.groups() if group)) for found in pattern.finditer(text)]
    numbers = [number for number in numbers if number < INTEGER_LIMIT]
    return numbers[0 if first else -1] if numbers else None


class TrainingStart:
    """Reads the output of a rank from its first line until training has begun."""

    def __init__(self, read: Reader) -> None:
        self._read = read
        self._seen_bytes = 0
        self._steps: dict[str, list[int]] = {kind: [] for kind in KINDS}
        self._given = ""
        self._has_loss = False
        """Whether a loss was printed. Checkpoints loaded after that, such as the best one, are not the start of
        training."""
        self.restored: list[dict[str, Any]] = []
        """Restore events that were not taken yet: the first, and later ones with more details."""
        self._worth = 0
        """Rating of the best restore line so far."""

    @property
    def is_open(self) -> bool:
        """Whether more output must be searched."""
        return self._seen_bytes < LOOK_BYTES and not any(len(steps) > 1 for steps in self._printed_steps)

    @property
    def _printed_steps(self) -> list[list[int]]:
        return [steps for kind, steps in self._steps.items() if kind != "posted"]

    def feed(self, data: bytes) -> None:
        """Adds output, as whole lines in order."""
        for line in data.replace(b"\r", b"\n").split(b"\n"):
            if not self.is_open:
                return
            self._seen_bytes += 0 if b"%|" in line else len(line) + 1
            if line and len(line) <= 2 * LINE_CHARS:
                self._line(line)

    def report(self, kind: str, step: object) -> None:
        """Adds a reported step; for each kind, the first two increasing steps count."""
        steps = self._steps[kind]
        if type(step) is int and len(steps) < 2 and (not steps or step > steps[0]):
            steps.append(step)

    def take(self, *, at_end: bool = False) -> dict[str, Any] | None:
        """Returns the first `step` and `every` (steps between reports), once known, and again from a better kind of
        progress.
        """
        for kind in KINDS[: KINDS.index(self._given) if self._given else None]:
            steps = self._steps[kind]
            if len(steps) > 1 or (steps and at_end):
                self._given = kind
                every = {"every": steps[1] - steps[0]} if len(steps) > 1 else {}
                return {"step": steps[0], **every}
        return None

    def _line(self, line: bytes) -> None:
        lowered = line.lower()
        has_begun = self._has_loss or any(self._printed_steps)
        if any(hint in lowered for hint in _HINTS) and not has_begun:
            report = restored(line.decode("utf-8", "replace"))
            if report is not None and _worth(report) > self._worth:
                self._worth = _worth(report)
                self.restored.append({"action": "restored", "source": "log", **report})
        found = self._read(line)
        self._has_loss = self._has_loss or (found is not None and "loss" in found[1])
        if found is not None and not _is_empty_bar(line, found[1]):
            self.report(found[0], found[1].get("step"))


def _worth(report: dict[str, Any]) -> int:
    """Rates a restore event: highest with a step, then with an epoch."""
    return 1 + 2 * ("step" in report) + ("epoch" in report)


def _is_empty_bar(line: bytes, progress: Progress) -> bool:
    """Whether a line is the bar at 0 that transformers' Trainer draws before it skips to the step of the checkpoint."""
    return progress.get("step") == 0 and b"%|" in line
