"""What a script gives `Checkpoint` to keep: modules, optimizers, dicts, and other objects with state_dict.

Each part turns its object into a tree of state and back. Tensors that exist already (a module's) are loaded in place,
so that no second copy of a model is ever needed.
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
    """Anything with `state_dict` and `load_state_dict`: a scheduler, a scaler, a sampler, a loader."""

    def __init__(self, name: str, thing: Any) -> None:
        self.name = name
        self.thing = thing
        self.per_rank = bool(getattr(thing, "state_is_per_rank", False)) or _is_stateful_loader(thing)
        """Whether each rank has a state of its own; else rank 0's is used by all."""

    def state(self) -> Any:
        """The tree to keep."""
        return self.thing.state_dict()

    def differing(self, names: Collection[str]) -> Collection[str]:
        """Those of its tensors `names` that may have other values on other ranks: rank 0's are kept."""
        return names

    def existing(self) -> dict[str, torch.Tensor]:
        """Tensors by path that are to be loaded in place."""
        return {}

    def templates(self) -> Template:
        """Finds, by path and shape, the tensor whose sharding and device a loaded one gets. None: all, on the CPU."""
        return lambda path, shape: None

    def check(self, state: Any) -> None:
        """Raises ValueError for a tree, its tensors still empty, that cannot be loaded."""

    def load(self, state: Any) -> None:
        """Load a tree."""
        self.thing.load_state_dict(state)


class EpochPart(Part):
    """Something that has `set_epoch` and no state, as torch's DistributedSampler."""

    def state(self) -> Any:
        """None."""
        return None

    def load(self, state: Any) -> None:
        """Does nothing."""


class DictPart(Part):
    """A dict of the script's own, changed in place."""

    def state(self) -> Any:
        """Its items."""
        return dict(self.thing)

    def templates(self) -> Template:
        """The tensor that is there already."""

        def find(path: Sequence[str], shape: tuple[int, ...]) -> torch.Tensor | None:
            found = self.thing
            for key in path:
                found = found.get(key) if isinstance(found, Mapping) else None
            return found if isinstance(found, torch.Tensor) and tuple(found.shape) == shape else None

        return find

    def load(self, state: Any) -> None:
        """The same dict with the kept items."""
        self.thing.clear()
        self.thing.update(state)


class ModulePart(Part):
    """A module, plain or wrapped by DDP, FSDP2 or torch.compile: its names are those of the plain one."""

    def state(self) -> Any:
        """Name to tensor; DTensors where it is sharded."""
        inside = replicated(self.thing)
        # Where nothing inside is wrapped, torch's function gives the same names, and takes a hundred times as long.
        is_plain = all(unwrapped(child) is child for child in inside.modules())
        return inside.state_dict() if is_plain else get_model_state_dict(inside)

    def differing(self, names: Collection[str]) -> Collection[str]:
        """All but parameters: DDP sends rank 0's buffers to the others before it uses them."""
        return set(names).difference(name for name, _ in named_parameters(replicated(self.thing)))

    def existing(self) -> dict[str, torch.Tensor]:
        """All its tensors."""
        return {name: value for name, value in self.state().items() if isinstance(value, torch.Tensor)}

    def load(self, state: Any) -> None:
        """The tensors of most modules are loaded in place already; this loads what else the module keeps, and those
        of which its `state_dict` gives copies."""
        if state:  # torch refuses an empty state, and a loss function has no other
            set_model_state_dict(replicated(self.thing), state)


class OptimizerPart(Part):
    """An optimizer, its state under the names of the parameters: their numbers depend on the order of groups.

    DCP's get_optimizer_state_dict is not used, since it steps a fresh optimizer to make it have state: that fails for
    some optimizers, and makes state for parameters that had none.
    """

    def __init__(self, name: str, thing: torch.optim.Optimizer, names: Mapping[int, str]) -> None:
        """`names` has the names of parameters by their id."""
        super().__init__(name, thing)
        self._names = names

    def state(self) -> Any:
        """`state` by parameter name, `param_groups` with names, and `other` state, which is of no parameter."""
        groups, state = [], {}
        other = {key: value for key, value in self.thing.state.items() if not isinstance(key, torch.Tensor)}
        for group, named in self._groups():
            groups.append({**{key: value for key, value in group.items() if key != "params"}, "params": list(named)})
            for name, parameter in named.items():
                if self.thing.state.get(parameter):
                    state[name] = dict(self.thing.state[parameter])
        return {"state": state, "param_groups": groups, **({"other": other} if other else {})}

    def differing(self, names: Collection[str]) -> Collection[str]:
        """None: replicated parameters have the same state on all ranks."""
        return ()

    def templates(self) -> Template:
        """State of the shape of its parameter is sharded as the parameter is."""
        parameters = self._parameters()

        def find(path: Sequence[str], shape: tuple[int, ...]) -> torch.Tensor | None:
            parameter = parameters.get(path[1]) if len(path) >= 3 and path[0] == "state" else None
            return parameter if parameter is not None and tuple(parameter.shape) == shape else None

        return find

    def check(self, state: Any) -> None:
        """Its parameters must be the same, by name and order."""
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
        """Goes through the optimizer's own load_state_dict, which needs numbers instead of names."""
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
        # It converts all state to its parameter's type; what was float32 must stay so.
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
    """A part for each thing. Raises TypeError for what cannot be kept."""
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
    # One that wraps another keeps state that is in no `state` of its own.
    is_plain = thing.state_dict().keys() == {"state", "param_groups"}
    return OptimizerPart(name, thing, names) if is_plain else Part(name, thing)


def replicated(module: nn.Module) -> nn.Module:
    """The module inside of DDP or DataParallel. Torch's functions for state know the first of them alone."""
    return module.module if isinstance(module, _REPLICATED) else module


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside of wrappers that add to the names of its parameters."""
    for wrapped in ("_orig_mod", "_checkpoint_wrapped_module"):
        if module._modules.get(wrapped) is not None:
            return unwrapped(getattr(module, wrapped))
    if isinstance(module, _REPLICATED):
        return unwrapped(module.module)
    return module


def named_parameters(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Names and parameters, without what wrappers add to the names."""
    module = unwrapped(module)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield prefix + name, parameter
    for name, child in module._modules.items():
        if child is not None:
            yield from named_parameters(child, f"{prefix}{name}.")


def check_tensor(path: str, value: torch.Tensor) -> None:
    """Raises TypeError for a tensor that is not a plain block of numbers."""
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
