"""What a diagnosis is: verdicts with evidence and a fix, the likeliest first."""

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
    """How much speaks for it, 0 to 100: what names a cause beats what names an effect."""

    def to_json(self) -> dict[str, Any]:
        """The public form, as `why -o json` prints it."""
        return {
            "verdict": self.code,
            "summary": self.summary,
            "rank": self.rank,
            "evidence": list(self.evidence),
            "fix": self.fix,
        }


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The verdict on a run, and what else speaks for something."""

    verdict: Verdict
    others: tuple[Verdict, ...] = ()
    not_seen: tuple[str, ...] = ()
    """What could not be looked at, and why: a run that goes on is judged without it."""

    def to_json(self) -> dict[str, Any]:
        """The public form, as `why -o json` prints it."""
        others = [other.to_json() for other in self.others]
        return {**self.verdict.to_json(), "others": others, "not_seen": list(self.not_seen)}
