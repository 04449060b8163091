"""Verdicts with evidence and a fix, and the diagnosis that ranks them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

NONE: Final = "none"
"""The code of a run in which nothing is wrong."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One explanation of how a run ended."""

    code: str
    """Stable name: `module-missing`. The page `docs/concepts/why.md` lists all."""
    summary: str
    """What happened, in one sentence without a full stop."""
    rank: int | None = None
    """The rank that it began with; None where it concerns none or all."""
    evidence: tuple[str, ...] = ()
    """What was seen that says so, the strongest first."""
    fix: str = ""
    """What to do about it."""
    score: float = 0.0
    """How much speaks for it, 0 to 110: what names a cause beats what names an effect."""
    is_effect: bool = False
    """Whether it is how a cause shows itself, and no other explanation beside one."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A verdict as a template: in its texts `{1}`, `{2}` … are what a pattern found, `{it}` and others are named."""

    code: str
    summary: str
    fix: str
    score: float = 90

    def verdict(
        self,
        evidence: tuple[str, ...],
        *found: str | None,
        score: float | None = None,
        rank: int | None = None,
        **words: Any,
    ) -> Verdict:
        """The verdict on what was found; its score is that of the advice, or `score`."""
        parts = ("", *((part or "").strip().rstrip(".") for part in found))
        summary, fix = (text.format(*parts, **words) for text in (self.summary, self.fix))
        return Verdict(self.code, summary, rank, evidence, fix, self.score if score is None else score)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The verdict on a run, and what else speaks for something."""

    verdict: Verdict
    others: tuple[Verdict, ...] = ()
    """Other explanations, the likeliest first."""
    not_seen: tuple[str, ...] = ()
    """What could not be looked at, and why: a run that goes on is judged without it."""

    def __repr__(self) -> str:
        return f"<windlass.Diagnosis {self.verdict.code}: {self.verdict.summary}>"
