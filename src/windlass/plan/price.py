"""Says what a plan costs by the hour, from the price of one node."""

from __future__ import annotations

from typing import Any


def price(per_node_hour: float | None, currency: str, num_nodes: int, source: str) -> dict[str, Any] | None:
    """The price of `num_nodes` nodes as a plan holds it; None where nothing is known of one.

    `source` says where the figure is from.
    """
    if per_node_hour is None:
        return None
    return {
        "per_hour": round(per_node_hour * num_nodes, 6),
        "per_node_hour": per_node_hour,
        "currency": currency,
        "source": source,
    }
