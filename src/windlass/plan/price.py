"""The price of a plan by the hour, from that of one node. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def price(
    per_node_hour: float | None, currency: str, num_nodes: int, source: str, num_spares: int = 0
) -> dict[str, Any] | None:
    """The price of `num_nodes` nodes and of spares as a plan holds it; None where nothing is known of one.

    `source` is where the figure is from.
    """
    if per_node_hour is None:
        return None
    return {
        "per_hour": round(per_node_hour * (num_nodes + num_spares), 6),
        "per_node_hour": per_node_hour,
        "currency": currency,
        "source": source,
    }


def num_spares(engine: str, job: Mapping[str, Any]) -> int:
    """How many spares a job has on an engine beside its nodes, by its JSON: only the options of that engine count."""
    return int(job.get(engine, {}).get("spares", 0))
