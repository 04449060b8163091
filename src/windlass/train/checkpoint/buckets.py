"""Restores the order of DDP's gradient buckets after a restart, so that gradients are summed in the same order.

DDP rebuilds its buckets after the first step of each process, in the order in which gradients arrived. With more than
two ranks, the position of a gradient in its bucket decides the order of its summation over the ranks, and
floating-point sums depend on that order. A resumed run would therefore make its first step with other buckets than an
uninterrupted one, and end with slightly different weights. Checkpoints therefore contain the order, and after a restore
DDP receives zero gradients in this order.

The module uses internals of DDP. With a version of torch that lacks them, the module does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from windlass.train.checkpoint.parts import Part

MIN_RANKS = 3
"""With fewer ranks, a sum has at most two terms, and their order does not change the result."""


def orders(parts: Iterable[Part]) -> dict[str, list[int]]:
    """Returns the parameter numbers of each part, in the bucket order that DDP uses from the second step on."""
    return {part.name: _order(part.thing) for part in parts if _rebuilds(part.thing)}


def restore(parts: Iterable[Part], kept: Mapping[str, list[int]]) -> None:
    """Makes DDP use these bucket orders from the next step on. A collective, called before the process's first step."""
    for part in parts:
        if part.name in kept and _rebuilds(part.thing):
            _backward_zeros(part.thing, kept[part.name])


def _rebuilds(thing: Any) -> bool:
    """Whether the object is a DDP module that rebuilds its buckets after the first step, and uses no static graph,
    communication hooks or mixed precision.
    """
    return (
        isinstance(thing, DistributedDataParallel)
        and not thing.find_unused_parameters
        and not getattr(thing, "static_graph", False)
        and not getattr(thing, "_comm_hooks", None)
        and getattr(thing, "mixed_precision", None) is None
        and hasattr(thing, "_get_ddp_logging_data")
        and hasattr(thing, "_build_params_for_reducer")
    )


def _order(ddp: DistributedDataParallel) -> list[int]:
    try:
        data: dict[str, Any] = ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        order = data.get("rebuilt_per_bucket_param_indices", "")
    except RuntimeError:
        order = ""
    numbers = [int(word) for word in str(order).replace(",", " ").split()]
    # Before the second step DDP has no order; gradients nearly always arrive from the last layer to the first.
    expected = list(range(len(_parameters(ddp))))
    return numbers if sorted(numbers) == expected else expected[::-1]


def _parameters(ddp: DistributedDataParallel) -> list[torch.nn.Parameter]:
    found: list[torch.nn.Parameter] = ddp._build_params_for_reducer()[0]  # type: ignore[no-untyped-call]
    return found


def _backward_zeros(ddp: DistributedDataParallel, order: list[int]) -> None:
    parameters = _parameters(ddp)
    prepare = getattr(ddp.reducer, "prepare_for_backward", None)
    if prepare is None or sorted(order) != list(range(len(parameters))) or any(map(_notices_gradients, parameters)):
        return
    with torch.enable_grad():
        prepare([])
        for number in order:
            (parameters[number] * 0).sum().backward()  # type: ignore[no-untyped-call]
    for one in parameters:
        one.grad = None


def _notices_gradients(parameter: torch.nn.Parameter) -> bool:
    """Whether a zero gradient would trigger a hook (perhaps that of an optimizer) or be added to an existing
    gradient.
    """
    hooks = getattr(parameter, "_post_accumulate_grad_hooks", None) or getattr(parameter, "_backward_hooks", None)
    return bool(hooks) or parameter.grad is not None
