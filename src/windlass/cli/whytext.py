"""Formats a diagnosis: the verdict first, then its evidence, then what to do."""

from __future__ import annotations

import shutil
import textwrap
from typing import Final

from windlass.cli.formatting import Paint, count, duration, visible
from windlass.cli.statustext import STARTED, difference_words, labelled, start_words, warning_lines
from windlass.cli.style import phase_word
from windlass.diagnose.verdict import NONE, Diagnosis, Verdict
from windlass.runs.ledger import Restart
from windlass.runs.start import Origin
from windlass.views.verdict import Why

LABEL: Final = 10
WIDTH: Final = 110
"""Maximum line width, because longer lines are hard to read."""
COMMANDS: Final = ("windlass", "kubectl", "aws", "python", "uv", "poetry", "chmod")
"""Programs whose command line may begin the text of a fix."""
RESTARTS: Final = 8
"""Maximum number of restarts shown in full; otherwise the first and the last ones are shown."""


def why_lines(why: Why, paint: Paint, *, verbose: int = 0) -> list[str]:
    """Returns the output lines of `windlass why`."""
    status, verdict = why.status, why.diagnosis.verdict
    lines = [f"{paint(status.id, bold=True)} {phase_word(status.phase, paint)}"]
    lines += verdict_lines(why.diagnosis, paint, verbose=verbose)
    restarts = [restart_words(restart) for restart in why.restarts]
    if len(restarts) > RESTARTS and not verbose:
        half = RESTARTS // 2
        restarts = [*restarts[:half], f"… {len(restarts) - 2 * half} more: windlass why -v", *restarts[-half:]]
    lines += _labelled("restarts", restarts, paint)
    besides = [one for one in status.warnings if one.code != verdict.code]
    lines += _labelled("warning", warning_lines(besides, paint), paint)
    lines += _labelled("data", [paint(difference_words(one), "yellow") for one in why.data_differences], paint)
    return lines


def restart_words(restart: Restart) -> str:
    """Formats a restart: `attempt 2 after a failure at step 57: 2.0s lost (1.0s of it back-off), from step 40, 17 steps
    redone`.
    """
    why = STARTED.get(restart.reason or "", "")
    at = f" at step {restart.reached_step:,}" if restart.reached_step is not None else ""
    wait = f" ({duration(restart.wait_seconds)} of it back-off)" if restart.wait_seconds else ""
    words = [f"{duration(restart.seconds)} lost{wait}", start_words(restart.start)]
    if restart.steps_redone:
        words.append(f"{count(restart.steps_redone, 'step')} redone")
    elif restart.steps_redone is None and restart.start.origin is not Origin.UNKNOWN:
        words.append("steps redone not known")
    if restart.restarts_left is not None:
        words.append(f"{count(restart.restarts_left, 'restart')} left")
    return f"attempt {restart.attempt} {why}{at}".rstrip() + f": {', '.join(words)}"


def verdict_lines(found: Diagnosis, paint: Paint, *, verbose: int = 0) -> list[str]:
    """Formats the verdict with its evidence and fix; lists other explanations by code, or in full if requested."""
    not_seen = _items("not seen", found.not_seen, paint, dim=True)
    if found.verdict.code == NONE:
        return [*_labelled("why", [paint(found.verdict.summary, "green")], paint), *not_seen]
    lines = _verdict(found.verdict, "why", paint)
    for other in found.others if verbose else ():
        lines += ["", *_verdict(other, "or", paint)]
    if found.others and not verbose:
        also = ", ".join(other.code for other in found.others[:4])
        lines += _labelled("less sure", [paint(f"{also} (windlass why -v)", dim=True)], paint)
    return [*lines, *not_seen]


def _verdict(verdict: Verdict, label: str, paint: Paint) -> list[str]:
    summary = [paint(line, "red", bold=True) for line in _wrapped(_sentence(verdict.summary))]
    fix = [paint(line, bold=True) for line in _wrapped(_sentence(verdict.fix))] if verdict.fix else []
    return [
        *_labelled(label, summary, paint),
        *_items("evidence", verdict.evidence, paint),
        *_labelled("fix", fix, paint),
        *_labelled("verdict", [paint(verdict.code, dim=True)], paint),
    ]


def _items(label: str, items: tuple[str, ...], paint: Paint, *, dim: bool = False) -> list[str]:
    """Formats items after a label, each with a dot before its first line."""
    lines = [f"{'  ' if place else '· '}{line}" for item in items for place, line in enumerate(_wrapped(item, hang=2))]
    return _labelled(label, [paint(line, dim=dim) for line in lines], paint)


def _wrapped(text: str, hang: int = 0) -> list[str]:
    width = max(40, min(shutil.get_terminal_size((100, 24)).columns, WIDTH) - LABEL - 2 - hang)
    return textwrap.wrap(visible(text), width, break_long_words=False, break_on_hyphens=False) or [""]


def _sentence(text: str) -> str:
    """Capitalizes a sentence, except one that begins with a command or a name."""
    first = text.split(" ")[0]
    return text[:1].upper() + text[1:] if first.isalpha() and first not in COMMANDS else text


def _labelled(label: str, lines: list[str], paint: Paint) -> list[str]:
    return [f"  {line}" for line in labelled(label, lines, paint, width=LABEL)]
