"""Decides whether a service may get a public load balancer. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from windlass.errors import UsageError

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Exposure:
    """A load balancer in front of a service."""

    source_cidrs: tuple[str, ...]
    """Address ranges from which the load balancer accepts connections, such as `203.0.113.7/32`."""


def exposure(source_cidrs: Sequence[str], *, may_be_public: bool = False) -> Exposure:
    """Returns the exposure of a service to these address ranges. Every service listens with TLS and asks for a token.

    `may_be_public` confirms ranges that contain every address. Raises UsageError for missing, invalid or public ranges.
    """
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
