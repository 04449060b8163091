"""Verdicts with evidence and a fix, and the diagnosis that ranks them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

NONE: Final = "none"
"""Code of the verdict on a run without problems."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One explanation of how a run ended."""

    code: str
    """Stable name such as `module-missing`; listed in `docs/concepts/why.md`."""
    summary: str
    """What happened, in one sentence without a full stop."""
    rank: int | None = None
    """Rank in which the failure began; None if all ranks or no rank in particular failed."""
    evidence: tuple[str, ...] = ()
    """Observations that support the verdict, the strongest first."""
    fix: str = ""
    """How to fix the problem."""
    score: float = 0.0
    """Strength of the evidence, 0 to 110; causes score higher than effects."""
    is_effect: bool = False
    """Whether the verdict describes only an effect, and is therefore not shown as an alternative explanation."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Template of a verdict. In its texts, `{1}`, `{2}` … are groups of the pattern; `{it}` and other names are named
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
        """Returns the verdict for the groups of a match, with `score` or else the advice's own score."""
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
    """Data that could not be read, with reasons; the verdict does not consider it."""

    def __repr__(self) -> str:
        return f"<windlass.Diagnosis {self.verdict.code}: {self.verdict.summary}>"
