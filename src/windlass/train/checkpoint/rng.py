"""The random number generators of a rank: Python's, NumPy's, torch's of the CPU and of its GPU."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


def take() -> dict[str, Any]:
    """The state of those that are in use, for `put_back`."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state().numpy().tobytes()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state["numpy"] = numpy.random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state().cpu().numpy().tobytes()
    return state


def put_back(state: dict[str, Any]) -> None:
    """Go on with the numbers that would have come next when `state` was taken."""
    random.setstate(state["python"])
    torch.set_rng_state(_tensor(state["torch"]))
    if "numpy" in state:
        import numpy

        numpy.random.set_state(state["numpy"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(_tensor(state["cuda"]))


def _tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
