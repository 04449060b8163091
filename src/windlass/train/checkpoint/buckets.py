"""Brings DDP's gradient buckets into the order that they had before a restart, so that sums are formed as before.

DDP lays its buckets out anew after the first step of each process, in the order in which gradients came. With more than
two ranks the place of a gradient in its bucket decides in which order it is summed over the ranks, and floating-point
sums depend on that. A resumed run would thus make its first step with other buckets than the undisturbed one, and end
with slightly other weights. So the order is kept, and after a restore DDP is shown gradients of zero in that order.

This reaches into what DDP keeps for itself; where a version of torch has it no longer, nothing is done.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from windlass.train.checkpoint.parts import Part

FEWEST_RANKS = 3
"""The sum of two is the same in either order."""


def orders(parts: Iterable[Part]) -> dict[str, list[int]]:
    """By part: the numbers of the parameters as they lie in the buckets of the second step and all after it."""
    return {part.name: order for part in parts if (order := _order(part.thing))}


def bring_back(parts: Iterable[Part], kept: dict[str, list[int]]) -> None:
    """Have the next step made with buckets of these orders. A collective, before the first step of the process."""
    for part in parts:
        order = kept.get(part.name)
        if order is not None and _rebuilds(part.thing):
            _show_zeros(part.thing, order)


def _rebuilds(thing: Any) -> bool:
    """Whether it is a DDP that lays out its buckets after the first step, and does nothing more with gradients."""
    return (
        isinstance(thing, DistributedDataParallel)
        and not thing.find_unused_parameters
        and not getattr(thing, "static_graph", False)
        and not getattr(thing, "_comm_hooks", None)
        and getattr(thing, "mixed_precision", None) is None
    )


def _order(thing: Any) -> list[int] | None:
    if not _rebuilds(thing):
        return None
    try:
        told = thing._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", "")
        num_parameters = len(_parameters(thing))
    except (AttributeError, RuntimeError):
        return None
    numbers = [int(word) for word in str(told).replace(",", " ").split()]
    # Before the second step nothing is told; gradients nearly always come from the last layer to the first.
    return numbers if sorted(numbers) == list(range(num_parameters)) else [*range(num_parameters)][::-1]


def _parameters(ddp: DistributedDataParallel) -> list[torch.nn.Parameter]:
    found: list[torch.nn.Parameter] = ddp._build_params_for_reducer()[0]  # type: ignore[no-untyped-call]
    return found


def _show_zeros(ddp: DistributedDataParallel, order: list[int]) -> None:
    try:
        parameters = _parameters(ddp)
        prepare = ddp.reducer.prepare_for_backward
    except AttributeError:
        return
    if sorted(order) != list(range(len(parameters))) or any(map(_is_watched, parameters)):
        return
    with torch.enable_grad():
        prepare([])
        for number in order:
            (parameters[number] * 0).sum().backward()  # type: ignore[no-untyped-call]
    for one in parameters:
        one.grad = None


def _is_watched(parameter: torch.nn.Parameter) -> bool:
    """Whether a gradient of zero would be noticed: by a hook, which may even be the optimizer, or in a sum."""
    hooks = getattr(parameter, "_post_accumulate_grad_hooks", None) or getattr(parameter, "_backward_hooks", None)
    return bool(hooks) or parameter.grad is not None
