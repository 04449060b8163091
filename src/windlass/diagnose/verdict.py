"""Verdicts with evidence and a fix, and the diagnosis that ranks them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

NONE: Final = "none"
"""Code of a run without problems."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One explanation of how a run ended."""

    code: str
    """Stable name: `module-missing`. The page `docs/concepts/why.md` lists all."""
    summary: str
    """What happened, in one sentence without a full stop."""
    rank: int | None = None
    """Rank in which the failure began; None if it concerns none or all."""
    evidence: tuple[str, ...] = ()
    """Observations that support the verdict, the strongest first."""
    fix: str = ""
    """How to fix the problem."""
    score: float = 0.0
    """Strength of the evidence, 0 to 110; causes score higher than effects."""
    is_effect: bool = False
    """Whether the verdict describes an effect of a cause, and is not an alternative explanation next to one."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Template of a verdict. In its texts `{1}`, `{2}` … are the groups of a pattern; `{it}` and others are named
    values.
    """

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
        """Returns the verdict for these groups, with `score` or else the score of the advice."""
        parts = ("", *((part or "").strip().rstrip(".") for part in found))
        summary, fix = (text.format(*parts, **words) for text in (self.summary, self.fix))
        return Verdict(self.code, summary, rank, evidence, fix, self.score if score is None else score)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Verdict on a run, with alternative explanations."""

    verdict: Verdict
    others: tuple[Verdict, ...] = ()
    """Alternative explanations, the most likely first."""
    not_seen: tuple[str, ...] = ()
    """What could not be observed, and why; a running run is judged without it."""

    def __repr__(self) -> str:
        return f"<windlass.Diagnosis {self.verdict.code}: {self.verdict.summary}>"
