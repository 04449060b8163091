"""How long AWS takes to make or to remove what a plan of Terraform has, in minutes. Pure.

The figures are what AWS and eksctl name as usual; they are shown beforehand and decide nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

CHAIN: Final[tuple[tuple[str, float, float], ...]] = (
    ("aws_vpc", 0.5, 0.5),
    ("aws_nat_gateway", 2.0, 1.0),
    ("aws_eks_cluster", 9.0, 3.0),
    ("aws_eks_node_group", 3.0, 5.0),
    ("aws_eks_addon", 2.0, 0.5),
)
"""Types that wait for each other, with minutes to make and to remove: those of one type are made at the same time."""
BESIDE: Final[tuple[tuple[str, float, float], ...]] = (
    ("aws_fsx_lustre_file_system", 8.0, 10.0),
    ("aws_fsx_data_repository_association", 5.0, 5.0),
)
"""Types that wait for each other beside the chain."""


def minutes(types: Iterable[str], *, is_destroy: bool = False) -> float:
    """Minutes to expect for resources of these types; 0 where all of them are quick."""
    present = set(types)
    chain, beside = (
        sum(removed if is_destroy else made for kind, made, removed in rows if kind in present)
        for rows in (CHAIN, BESIDE)
    )
    return max(chain, beside)
