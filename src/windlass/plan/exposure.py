"""Decides whether a service may get a public load balancer. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from windlass.errors import UsageError

ARGON2: Final = re.compile(r"(argon2:)?\$argon2(id|i|d)\$v=\d+\$m=\d+,t=\d+,p=\d+\$[A-Za-z0-9+/]+\$[A-Za-z0-9+/]+")
"""Matches an argon2 hash in the PHC string format, also with the prefix of Jupyter's `ServerApp.password`."""
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Exposure:
    """A load balancer in front of a service."""

    source_cidrs: tuple[str, ...]
    """Address ranges from which the load balancer accepts connections, such as `203.0.113.7/32`."""


def exposure(
    source_cidrs: Sequence[str],
    *,
    has_tls: bool,
    has_token: bool,
    password_hash: str = "",
    may_be_public: bool = False,
) -> Exposure:
    """Returns the exposure of a service to these address ranges.

    `password_hash` is the hash of the password with which users log in, if any. `may_be_public` confirms ranges that
    contain every address. Raises UsageError for a service without TLS or without a token or an argon2 password, and
    for missing, invalid or public ranges.
    """
    if not has_tls:
        raise UsageError("--expose is refused: the service has no TLS", "expose only services that listen with TLS")
    if password_hash and not ARGON2.fullmatch(password_hash):
        raise UsageError(
            "--expose is refused: the password is not hashed with argon2, and other hashes are guessed too fast",
            "hash it: python -c 'from jupyter_server.auth import passwd; print(passwd())'",
        )
    if not (has_token or password_hash):
        raise UsageError(
            "--expose is refused: the service has neither a token nor a password", "give it a token or a password"
        )
    if not source_cidrs:
        raise UsageError(
            "--expose needs the addresses that may connect",
            "name yours: --source-cidr ADDRESS/32; every address, if that is wanted: --source-cidr 0.0.0.0/0 "
            "--yes-public",
        )
    networks = [_network(one) for one in source_cidrs]
    if not may_be_public and any(one.prefixlen == 0 for one in _merged(networks)):
        raise UsageError(
            f"--source-cidr {' '.join(source_cidrs)} lets every address on the internet connect",
            "name the addresses that may: --source-cidr ADDRESS/32; or confirm it: --yes-public",
        )
    return Exposure(tuple(map(str, networks)))


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text.strip())
    except ValueError as error:
        raise UsageError(
            f"--source-cidr {text} is no address range: {error}", "write for example 203.0.113.7/32"
        ) from error


def _merged(networks: Sequence[Network]) -> Iterator[Network]:
    """Yields the fewest networks with the same addresses: two halves of the internet are the whole."""
    yield from ipaddress.collapse_addresses(one for one in networks if isinstance(one, ipaddress.IPv4Network))
    yield from ipaddress.collapse_addresses(one for one in networks if isinstance(one, ipaddress.IPv6Network))
