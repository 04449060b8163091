"""The random number generators of a rank; a checkpoint saves their state for each rank."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any

import torch

_OF_LOADER = "of the loader"
"""Key of the loader's generator, which cannot collide with the keyword that names a generator of the script."""


class RandomNumbers:
    """The generators of Python, NumPy and torch, and the script's `own` generators by name."""

    def __init__(self, own: Mapping[str, Any]) -> None:
        self._own = dict(own)

    def add_that_of(self, loader: Any) -> None:
        """Adds the generator with which a loader draws the order of each epoch, if it has one. Later loaders are
        ignored.
        """
        held = (loader, getattr(loader, "sampler", None))  # Hugging Face accelerate uses the second name
        found = [getattr(one, name, None) for one in held for name in ("generator", "synchronized_generator")]
        one = next((one for one in found if isinstance(one, torch.Generator)), None)
        if one is not None and all(one is not known for known in self._own.values()):
            self._own.setdefault(_OF_LOADER, one)

    def state(self) -> dict[str, Any]:
        """Returns the states of all generators in use."""
        state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state().numpy().tobytes()}
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            state["numpy"] = numpy.random.get_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            state["cuda"] = torch.cuda.get_rng_state().cpu().numpy().tobytes()
        return {**state, "own": {name: _state(one) for name, one in self._own.items()}} if self._own else state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the saved generators, so that each continues its sequence; other generators are unchanged."""
        random.setstate(state["python"])
        torch.set_rng_state(_tensor(state["torch"]))
        if "numpy" in state:
            import numpy

            numpy.random.set_state(state["numpy"])
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state(_tensor(state["cuda"]))
        for name, one in self._own.items():
            if name in state.get("own", {}):
                _restore(one, state["own"][name])


def is_generator(thing: Any) -> bool:
    """Whether the object is a generator that can be saved."""
    numpy = sys.modules.get("numpy")
    of_numpy = (numpy.random.Generator, numpy.random.RandomState) if numpy is not None else ()
    return isinstance(thing, (torch.Generator, random.Random, *of_numpy))


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.get_state() if hasattr(generator, "get_state") else generator.bit_generator.state


def _restore(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(_tensor(state))
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "set_state"):
        generator.set_state(state)
    else:
        generator.bit_generator.state = state


def _tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
