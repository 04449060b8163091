"""Kubernetes resource quantities are parsed."""

from __future__ import annotations

import pytest

from windlass.spec.quantities import amount


@pytest.mark.parametrize(
    ("text", "value"),
    [("500m", 0.5), ("2Gi", 2.0**31), ("3k", 3000.0), ("4", 4.0), ("1e3", 1000.0), ("", 0.0), ("x", 0.0)],
)
def test_quantities_are_read_as_kubernetes_writes_them(text: str, value: float) -> None:
    assert amount(text) == value
