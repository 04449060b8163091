"""The end of EKS support is determined by dates, not by a list of supported versions."""

from __future__ import annotations

from datetime import date
from typing import get_args

import pytest

from windlass.pricing.kubernetes import STANDARD_UNTIL, support_note
from windlass.spec.cluster import Version


@pytest.mark.parametrize(
    ("today", "words"),
    [
        (date(2026, 9, 2), ""),
        (date(2026, 9, 3), "leaves standard support on 2026-12-02, in 90 days"),
        (date(2026, 11, 28), "leaves standard support on 2026-12-02, in 4 days"),
        (date(2026, 12, 2), "in 0 days"),
        (date(2026, 12, 3), "left standard support on 2026-12-02"),
    ],
)
def test_end_of_standard_support_is_reported_90_days_in_advance(today: date, words: str) -> None:
    note = support_note("1.34", today)
    assert words in note
    assert bool(note) == bool(words)


def test_version_without_a_support_date_is_reported_as_unknown() -> None:
    assert "was not known" in support_note("1.36", date(2026, 11, 28))
    assert set(STANDARD_UNTIL) <= set(get_args(Version))
