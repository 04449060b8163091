"""Adapters for the objects that a script gives to `Checkpoint`: modules, optimizers, dicts, objects with state_dict.

Each part converts its object to a tree of state and back. Existing tensors, such as those of a module, are loaded in
place, so that a second copy of the model is never needed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.tensor import DTensor

_REPLICATED = (nn.parallel.DistributedDataParallel, nn.DataParallel)


Template = Callable[[Sequence[str], tuple[int, ...]], "torch.Tensor | None"]


class Part:
    """Wraps an object with `state_dict` and `load_state_dict`: a scheduler, a scaler, a sampler, a loader."""

    def __init__(self, name: str, thing: Any) -> None:
        self.name = name
        self.thing = thing
        self.per_rank = bool(getattr(thing, "state_is_per_rank", False)) or _is_stateful_loader(thing)
        """Whether each rank saves its own state; otherwise rank 0's state is used by all ranks."""

    def state(self) -> Any:
        """Returns the tree of state to save."""
        return self.thing.state_dict()

    def differing(self, names: Collection[str]) -> Collection[str]:
        """Returns the tensors among `names` that may have other values on other ranks; rank 0's values are saved."""
        return names

    def existing(self) -> dict[str, torch.Tensor]:
        """Returns the tensors that are loaded in place, by path."""
        return {}

    def templates(self) -> Template:
        """Returns a function from path and shape to an existing tensor, whose sharding and device the loaded tensor
        gets.

        Returns None if all tensors are loaded on the CPU.
        """
        return lambda path, shape: None

    def check(self, state: Any) -> None:
        """Checks a tree whose tensors are still empty. Raises ValueError if it cannot be loaded."""

    def load(self, state: Any) -> None:
        """Loads a tree of state."""
        self.thing.load_state_dict(state)


class EpochPart(Part):
    """Wraps an object with `set_epoch` and without state, such as torch's DistributedSampler."""

    def state(self) -> Any:
        """Returns None: there is no state."""
        return None

    def load(self, state: Any) -> None:
        """Does nothing."""


class DictPart(Part):
    """Wraps a dict of the script, which is updated in place."""

    def state(self) -> Any:
        """Returns the items of the dict."""
        return dict(self.thing)

    def templates(self) -> Template:
        """Uses the existing tensor at the same path."""

        def find(path: Sequence[str], shape: tuple[int, ...]) -> torch.Tensor | None:
            found = self.thing
            for key in path:
                found = found.get(key) if isinstance(found, Mapping) else None
            return found if isinstance(found, torch.Tensor) and tuple(found.shape) == shape else None

        return find

    def load(self, state: Any) -> None:
        """Replaces the items of the same dict by the saved ones."""
        self.thing.clear()
        self.thing.update(state)


class ModulePart(Part):
    """Wraps a module, plain or inside DDP, FSDP2 or torch.compile. Names are those of the plain module."""

    def state(self) -> Any:
        """Returns tensors by name; DTensors if the module is sharded."""
        inside = replicated(self.thing)
        # If no submodule is wrapped, torch's function gives the same names but takes a hundred times as long.
        is_plain = all(unwrapped(child) is child for child in inside.modules())
        return inside.state_dict() if is_plain else get_model_state_dict(inside)

    def differing(self, names: Collection[str]) -> Collection[str]:
        """Returns everything but parameters: DDP broadcasts rank 0's buffers before it uses them."""
        return set(names).difference(name for name, _ in named_parameters(replicated(self.thing)))

    def existing(self) -> dict[str, torch.Tensor]:
        """Returns all tensors of the module."""
        return {name: value for name, value in self.state().items() if isinstance(value, torch.Tensor)}

    def load(self, state: Any) -> None:
        """Loads extra state, and tensors that `state_dict` returns as copies. All other tensors were already loaded in
        place.
        """
        if state:  # an empty state, as of loss functions, is skipped because torch refuses it
            set_model_state_dict(replicated(self.thing), state)


class OptimizerPart(Part):
    """Wraps an optimizer. State is saved by parameter name, because parameter numbers depend on the order of the
    groups.

    DCP's get_optimizer_state_dict is not used because it steps a fresh optimizer to create state. Such a step fails for
    some optimizers, and creates state for parameters that had none.
    """

    def __init__(self, name: str, thing: torch.optim.Optimizer, names: Mapping[int, str]) -> None:
        """`names` maps the id of a parameter to its name."""
        super().__init__(name, thing)
        self._names = names

    def state(self) -> Any:
        """Returns `state` by parameter name, `param_groups` with names, and `other`: state that belongs to no
        parameter.
        """
        groups, state = [], {}
        other = {key: value for key, value in self.thing.state.items() if not isinstance(key, torch.Tensor)}
        for group, named in self._groups():
            groups.append({**{key: value for key, value in group.items() if key != "params"}, "params": list(named)})
            for name, parameter in named.items():
                if self.thing.state.get(parameter):
                    state[name] = dict(self.thing.state[parameter])
        return {"state": state, "param_groups": groups, **({"other": other} if other else {})}

    def differing(self, names: Collection[str]) -> Collection[str]:
        """Returns nothing: replicated parameters have the same state on all ranks."""
        return ()

    def templates(self) -> Template:
        """Returns a function that finds the parameter of a state. State with the parameter's shape is sharded like the
        parameter.
        """
        parameters = self._parameters()

        def find(path: Sequence[str], shape: tuple[int, ...]) -> torch.Tensor | None:
            parameter = parameters.get(path[1]) if len(path) >= 3 and path[0] == "state" else None
            return parameter if parameter is not None and tuple(parameter.shape) == shape else None

        return find

    def check(self, state: Any) -> None:
        """Checks that the parameters are the same in name and order."""
        saved = [list(group["params"]) for group in state["param_groups"]]
        now = [list(named) for _, named in self._groups()]
        if saved == now:
            return
        missing = sorted({name for names in now for name in names} - {name for names in saved for name in names})
        extra = sorted({name for names in saved for name in names} - {name for names in now for name in names})
        problems = [f"the checkpoint lacks {_some(missing)}"] if missing else []
        problems += [f"the optimizer lacks {_some(extra)}"] if extra else []
        problems = problems or [f"{len(now)} groups or their order differ from {len(saved)} groups"]
        raise ValueError(
            f"the optimizer {self.name!r} has other parameters than the checkpoint's: {'; '.join(problems)}"
        )

    def load(self, state: Any) -> None:
        """Loads through the optimizer's own load_state_dict, which expects numbers instead of names."""
        names = [name for group in state["param_groups"] for name in group["params"]]
        numbers = {name: number for number, name in enumerate(names)}
        self.thing.load_state_dict(
            {
                "state": {
                    **{numbers[name]: dict(values) for name, values in state["state"].items()},
                    **state.get("other", {}),
                },
                "param_groups": [
                    {**group, "params": [numbers[name] for name in group["params"]]} for group in state["param_groups"]
                ],
            }
        )
        # load_state_dict converts all state to the parameter's type; state that was float32 must stay float32.
        parameters = self._parameters()
        for name, values in state["state"].items():
            loaded = self.thing.state[parameters[name]]
            for key, value in values.items():
                now = loaded.get(key)
                if isinstance(value, torch.Tensor) and isinstance(now, torch.Tensor) and now.dtype != value.dtype:
                    loaded[key] = value.to(now.device)

    def _parameters(self) -> dict[str, torch.Tensor]:
        return {name: parameter for _, named in self._groups() for name, parameter in named.items()}

    def _groups(self) -> Iterator[tuple[dict[str, Any], dict[str, torch.Tensor]]]:
        for number, group in enumerate(self.thing.param_groups):
            named = {
                self._names.get(id(parameter), f"group{number}.{place}"): parameter
                for place, parameter in enumerate(group["params"])
            }
            yield group, named


def make_parts(things: Mapping[str, Any]) -> list[Part]:
    """Creates a part for each object. Raises TypeError for an object that cannot be saved."""
    names: dict[int, str] = {}
    modules = {name: thing for name, thing in things.items() if isinstance(thing, nn.Module)}
    for name, module in modules.items():
        prefix = f"{name}." if len(modules) > 1 else ""
        for path, parameter in named_parameters(module):
            names.setdefault(id(parameter), prefix + path)
    return [_make(name, thing, names) for name, thing in things.items()]


def _make(name: str, thing: Any, names: Mapping[int, str]) -> Part:
    if isinstance(thing, nn.Module):
        if any("_fsdp_wrapped_module" in child._modules for child in thing.modules()):
            raise TypeError(
                f"Checkpoint({name}=...) was given a module inside of FullyShardedDataParallel, whose shards have no "
                "names of parameters: shard it by torch.distributed.fsdp.fully_shard (FSDP2) instead"
            )
        return ModulePart(name, thing)
    if isinstance(thing, torch.optim.Optimizer):
        return _make_optimizer(name, thing, names)
    if _is_stateful_loader(thing) and callable(getattr(getattr(thing, "batch_sampler", None), "advance", None)):
        raise TypeError(
            f"Checkpoint({name}=...): this StatefulDataLoader has a sampler that remembers the position too, and with "
            "workers the two would differ: give the sampler as the part and not the loader, or let the loader have a "
            "sampler of torch's"
        )
    if callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None)):
        return Part(name, thing)
    if isinstance(thing, MutableMapping):
        return DictPart(name, thing)
    if callable(getattr(thing, "set_epoch", None)):
        return EpochPart(name, thing)
    raise TypeError(
        f"Checkpoint({name}=...) takes something with state_dict() and load_state_dict(), a generator of random "
        f"numbers, or a dict, but was given a {type(thing).__module__}.{type(thing).__qualname__}"
    )


def _make_optimizer(name: str, thing: torch.optim.Optimizer, names: Mapping[int, str]) -> Part:
    if any(base.__name__ == "ZeroRedundancyOptimizer" for base in type(thing).__mro__):
        raise TypeError(
            f"Checkpoint({name}=...) was given a ZeroRedundancyOptimizer, whose state is on other ranks than its "
            "parameters: shard the model and the state by torch.distributed.fsdp.fully_shard (FSDP2) instead"
        )
    # An optimizer that wraps another optimizer keeps state outside its own `state`.
    is_plain = thing.state_dict().keys() == {"state", "param_groups"}
    return OptimizerPart(name, thing, names) if is_plain else Part(name, thing)


def replicated(module: nn.Module) -> nn.Module:
    """Returns the module inside DDP or DataParallel. Torch's state functions unwrap only DDP."""
    return module.module if isinstance(module, _REPLICATED) else module


def unwrapped(module: nn.Module) -> nn.Module:
    """Returns the module inside wrappers that prefix parameter names."""
    for wrapped in ("_orig_mod", "_checkpoint_wrapped_module"):
        if module._modules.get(wrapped) is not None:
            return unwrapped(getattr(module, wrapped))
    if isinstance(module, _REPLICATED):
        return unwrapped(module.module)
    return module


def named_parameters(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yields names and parameters, without the prefixes of wrappers."""
    module = unwrapped(module)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield prefix + name, parameter
    for name, child in module._modules.items():
        if child is not None:
            yield from named_parameters(child, f"{prefix}{name}.")


def check_tensor(path: str, value: torch.Tensor) -> None:
    """Raises TypeError for a tensor that is not a plain, dense block of numbers."""
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    inner = value.to_local() if isinstance(value, DTensor) else value
    what = ""
    if inner.layout is not torch.strided:
        what = f"its layout is {inner.layout}"
    elif inner.is_quantized:
        what = "it is quantized"
    elif inner.device.type == "meta":
        what = "it is on the meta device and has no data"
    elif is_traceable_wrapper_subclass(inner):
        what = f"it is a {type(inner).__name__}, which is made of other tensors"
    if what:
        raise TypeError(f"{path} cannot be kept in a checkpoint: {what}")


def _is_stateful_loader(thing: Any) -> bool:
    return any(base.__name__ == "StatefulDataLoader" for base in type(thing).__mro__)


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
