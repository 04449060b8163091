"""Tests of the conditions under which a service gets a public load balancer."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.errors import UsageError
from windlass.plan.exposure import Exposure, exposure

HASH = "argon2:$argon2id$v=19$m=10240,t=10,p=8$c2FsdHNhbHQ$aGFzaGhhc2g"
SHA1 = "sha1:67c9e60bb8b6:9ffede0825894254b2e042ea597d771089e11aed"
ME = "203.0.113.7/32"


def decided(*cidrs: str, **given: Any) -> Exposure:
    return exposure(cidrs, **{"has_tls": True, "has_token": True, **given})


def test_tls_a_token_and_a_range_of_addresses_suffice() -> None:
    assert decided("203.0.113.7", "198.51.100.0/24") == Exposure((ME, "198.51.100.0/24"))


def test_an_argon2_password_replaces_the_token() -> None:
    assert decided(ME, has_token=False, password_hash=HASH) == Exposure((ME,))


def test_every_address_needs_a_confirmation() -> None:
    assert decided("0.0.0.0/0", may_be_public=True) == Exposure(("0.0.0.0/0",))


@pytest.mark.parametrize(
    ("cidrs", "given", "reason"),
    [
        ([ME], {"has_tls": False}, "has no TLS"),
        ([ME], {"has_token": False}, "neither a token nor a password"),
        ([ME], {"has_token": False, "password_hash": SHA1}, "not hashed with argon2"),
        ([ME], {"password_hash": SHA1}, "not hashed with argon2"),
        ([], {}, "needs the addresses"),
        (["0.0.0.0/0"], {}, "every address"),
        (["::/0"], {}, "every address"),
        (["0.0.0.0/1", "128.0.0.0/1"], {}, "every address"),
        ([ME, "::/1", "8000::/1"], {}, "every address"),
        (["203.0.113.7/24"], {}, "host bits set"),
        (["everyone"], {}, "no address range"),
    ],
)
def test_anything_less_is_refused_with_the_reason(cidrs: list[str], given: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        decided(*cidrs, **given)
