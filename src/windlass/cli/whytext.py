"""Turns a diagnosis into what a person reads: the verdict first, then what speaks for it, then what to do."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from typing import Final

from windlass.cli.statustext import WHY, missing_words, start_words
from windlass.cli.style import PHASE_COLOURS
from windlass.cli.words import Paint, count, duration, visible
from windlass.diagnose.verdict import NONE, Diagnosis, Verdict
from windlass.runs.ledger import Restart
from windlass.runs.record import Status
from windlass.runs.start import Origin

LABEL: Final = 10
WIDTH: Final = 110
"""Longer lines are hard to read, however wide the terminal."""


RESTARTS: Final = 8
"""So many are told in full; of more, the first and the last ones."""


def why_lines(
    status: Status, diagnosis: Diagnosis, restarts: Sequence[Restart], paint: Paint, *, verbose: int = 0
) -> list[str]:
    """What `windlass why` shows."""
    phase = paint(status.phase.value, PHASE_COLOURS[status.phase.value])
    lines = [f"{paint(status.id, bold=True)} {phase}", *verdict_lines(diagnosis, paint, verbose=verbose)]
    told = [restart_words(restart) for restart in restarts]
    if len(told) > RESTARTS and not verbose:
        half = RESTARTS // 2
        told = [*told[:half], f"… {len(told) - 2 * half} more: windlass why -v", *told[-half:]]
    lines += [_labelled("" if place else "restarts", text, paint) for place, text in enumerate(told)]
    if status.checkpoint_missing is not None:
        lines += [_labelled("warning", paint(missing_words(status.checkpoint_missing), "yellow"), paint)]
    return lines


def restart_words(restart: Restart) -> str:
    """`attempt 2 after a failure at step 57: 2.0s lost (1.0s of it back-off), from step 40, 17 steps redone`."""
    why = WHY.get(restart.reason or "", "")
    at = f" at step {restart.reached_step:,}" if restart.reached_step is not None else ""
    wait = f" ({duration(restart.wait_seconds)} of it back-off)" if restart.wait_seconds else ""
    words = [f"{duration(restart.seconds)} lost{wait}"]
    words.append(start_words(restart.start))
    if restart.steps_redone:
        words.append(f"{count(restart.steps_redone, 'step')} redone")
    elif restart.steps_redone is None and restart.start.origin is not Origin.UNKNOWN:
        words.append("steps redone not known")
    if restart.restarts_left is not None:
        words.append(f"{count(restart.restarts_left, 'restart')} left")
    return f"attempt {restart.attempt} {why}{at}".rstrip() + f": {', '.join(words)}"


def verdict_lines(diagnosis: Diagnosis, paint: Paint, *, verbose: int = 0) -> list[str]:
    """The verdict with its evidence and fix; other explanations in one line each, or in full if asked for."""
    verdict = diagnosis.verdict
    if verdict.code == NONE:
        return [_labelled("why", paint(verdict.summary, "green"), paint), *_not_seen(diagnosis, paint)]
    lines = _verdict(verdict, "why", paint)
    for other in diagnosis.others if verbose else ():
        lines += ["", *_verdict(other, "or", paint)]
    if diagnosis.others and not verbose:
        also = ", ".join(other.code for other in diagnosis.others[:4])
        lines.append(_labelled("less sure", paint(f"{also} (windlass why -v)", dim=True), paint))
    return [*lines, *_not_seen(diagnosis, paint)]


def _not_seen(diagnosis: Diagnosis, paint: Paint) -> list[str]:
    """What could not be looked at, a line or more for each."""
    lines = []
    for place, item in enumerate(diagnosis.not_seen):
        first, *more = _wrapped(item, hang=2)
        lines.append(_labelled("not seen" if place == 0 else "", paint(f"· {first}", dim=True), paint))
        lines += [_labelled("", paint(f"  {line}", dim=True), paint) for line in more]
    return lines


def _verdict(verdict: Verdict, label: str, paint: Paint) -> list[str]:
    head, *rest = _wrapped(_sentence(verdict.summary))
    lines = [_labelled(label, paint(head, "red", bold=True), paint)]
    lines += [_labelled("", paint(line, "red", bold=True), paint) for line in rest]
    for place, item in enumerate(verdict.evidence):
        first, *more = _wrapped(visible(item), hang=2)
        lines.append(_labelled("evidence" if place == 0 else "", f"· {first}", paint))
        lines += [_labelled("", f"  {line}", paint) for line in more]
    if verdict.fix:
        first, *more = _wrapped(_sentence(verdict.fix))
        lines.append(_labelled("fix", paint(first, bold=True), paint))
        lines += [_labelled("", paint(line, bold=True), paint) for line in more]
    return [*lines, _labelled("verdict", paint(verdict.code, dim=True), paint)]


def _wrapped(text: str, hang: int = 0) -> list[str]:
    width = max(40, min(shutil.get_terminal_size((100, 24)).columns, WIDTH) - LABEL - 2 - hang)
    return textwrap.wrap(visible(text), width, break_long_words=False, break_on_hyphens=False) or [""]


def _sentence(text: str) -> str:
    """With a capital, unless it begins with a command or a name."""
    return text[:1].upper() + text[1:] if text.split(" ")[0].isalpha() else text


def _labelled(label: str, text: str, paint: Paint) -> str:
    return f"  {paint(label.ljust(LABEL), dim=True)}{text}"
