"""Tests of the conditions under which a service gets a public load balancer."""

from __future__ import annotations

import pytest

from windlass.errors import UsageError
from windlass.plan.exposure import Exposure, exposure

ME = "203.0.113.7/32"


def test_ranges_of_addresses_suffice() -> None:
    assert exposure(("203.0.113.7", "198.51.100.0/24")) == Exposure((ME, "198.51.100.0/24"))


def test_every_address_needs_a_confirmation() -> None:
    assert exposure(("0.0.0.0/0",), may_be_public=True) == Exposure(("0.0.0.0/0",))


@pytest.mark.parametrize(
    ("cidrs", "reason"),
    [
        ([], "needs the addresses"),
        (["0.0.0.0/0"], "every address"),
        (["::/0"], "every address"),
        (["0.0.0.0/1", "128.0.0.0/1"], "every address"),
        ([ME, "::/1", "8000::/1"], "every address"),
        (["203.0.113.7/24"], "host bits set"),
        (["everyone"], "no address range"),
    ],
)
def test_anything_less_is_refused_with_the_reason(cidrs: list[str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        exposure(cidrs)
