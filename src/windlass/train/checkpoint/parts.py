"""What a script gives to keep: modules, optimizers, dicts, and whatever else has state_dict and load_state_dict.

Each part turns its object into a tree of state and back. Where a tree is loaded into, tensors that exist already (a
module's) are loaded in place, so that no second copy of a model is ever needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.tensor import DTensor

from windlass.train.checkpoint.encoding import TensorName

Target = Callable[[str, TensorName], torch.Tensor]
"""Given a tensor's path within its part, and its name: where it is to be loaded to."""


class Part:
    """Anything with `state_dict` and `load_state_dict`: a scheduler, a scaler, a sampler, a loader."""

    def __init__(self, name: str, thing: Any) -> None:
        self.name = name
        self.thing = thing
        self.per_rank = bool(getattr(thing, "state_is_per_rank", False)) or _is_stateful_loader(thing)
        """Whether each rank has a state of its own; else rank 0's is everyone's."""

    def state(self) -> Any:
        """The tree to keep."""
        return self.thing.state_dict()

    def existing(self) -> dict[str, torch.Tensor]:
        """Tensors by path that are to be loaded in place."""
        return {}

    def template(self, path: tuple[str, ...], shape: tuple[int, ...]) -> torch.Tensor | None:
        """A tensor like which the loaded one is to be: sharded as it, and where it is. None: on the CPU, whole."""
        return None

    def check(self, state: Any) -> None:
        """Whether a tree can be loaded, its tensors still names. Raises ValueError."""

    def load(self, state: Any) -> None:
        """Go on from a tree."""
        self.thing.load_state_dict(state)


class OnlyEpochs(Part):
    """Something that is told the epoch and has no state, as torch's DistributedSampler."""

    def state(self) -> Any:
        """There is none."""
        return None

    def load(self, state: Any) -> None:
        """There is nothing to load."""


class DictPart(Part):
    """A dict of the script's own, changed in place."""

    def state(self) -> Any:
        """Its items."""
        return dict(self.thing)

    def load(self, state: Any) -> None:
        """The same dict with the kept items."""
        self.thing.clear()
        self.thing.update(state)


class ModulePart(Part):
    """A module, plain or wrapped by DDP, FSDP2 or torch.compile: its names are those of the plain one."""

    def state(self) -> Any:
        """Name to tensor; DTensors where it is sharded."""
        return get_model_state_dict(self.thing)

    def existing(self) -> dict[str, torch.Tensor]:
        """All its tensors."""
        return {name: value for name, value in self.state().items() if isinstance(value, torch.Tensor)}

    def load(self, state: Any) -> None:
        """The tensors are in place already; what else the module keeps is given to it."""
        set_model_state_dict(self.thing, state)


class OptimizerPart(Part):
    """An optimizer, its state under the names of the parameters: their numbers depend on the order of groups.

    Written out here rather than by DCP's get_optimizer_state_dict, which steps a fresh optimizer to make it have state:
    that fails for some optimizers, and makes state for parameters that had none.
    """

    def __init__(self, name: str, thing: torch.optim.Optimizer, names: Mapping[int, str]) -> None:
        """`names` has the names of parameters by their id."""
        super().__init__(name, thing)
        self._names = names

    def state(self) -> Any:
        """`state` by parameter name, and `param_groups` with names."""
        groups, state = [], {}
        for group, named in self._groups():
            groups.append({**{key: value for key, value in group.items() if key != "params"}, "params": list(named)})
            for name, parameter in named.items():
                if self.thing.state.get(parameter):
                    state[name] = dict(self.thing.state[parameter])
        return {"state": state, "param_groups": groups}

    def template(self, path: tuple[str, ...], shape: tuple[int, ...]) -> torch.Tensor | None:
        """State of the shape of its parameter is sharded as the parameter is."""
        if len(path) < 3 or path[0] != "state":
            return None
        parameter = self._parameters().get(path[1])
        return parameter if parameter is not None and tuple(parameter.shape) == shape else None

    def check(self, state: Any) -> None:
        """Its parameters must be the same, by name and order."""
        self._check_groups([group["params"] for group in state["param_groups"]])

    def load(self, state: Any) -> None:
        """Goes through the optimizer's own load_state_dict."""
        number = 0
        plain: dict[str, Any] = {"state": {}, "param_groups": []}
        numbers: dict[str, int] = {}
        for saved in state["param_groups"]:
            for name in saved["params"]:
                numbers[name], number = number, number + 1
            plain["param_groups"].append({**saved, "params": [numbers[name] for name in saved["params"]]})
        plain["state"] = {numbers[name]: dict(values) for name, values in state["state"].items()}
        self.thing.load_state_dict(plain)
        self._keep_types(state["state"])

    def _check_groups(self, saved: list[list[str]]) -> None:
        now = [list(named) for _, named in self._groups()]
        if saved == now:
            return
        missing = sorted({name for names in now for name in names} - {name for names in saved for name in names})
        extra = sorted({name for names in saved for name in names} - {name for names in now for name in names})
        raise ValueError(
            f"the optimizer {self.name!r} has other parameters than the checkpoint's: "
            + "; ".join(
                text for text in (
                    f"the checkpoint lacks {_some(missing)}" if missing else "",
                    f"the optimizer lacks {_some(extra)}" if extra else "",
                    "" if missing or extra else f"{len(now)} groups or their order differ from {len(saved)} groups",
                ) if text
            )
        )  # fmt: skip

    def _keep_types(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """load_state_dict converts all state to its parameter's type; what was float32 is to stay so."""
        parameters = self._parameters()
        for name, values in saved.items():
            loaded = self.thing.state[parameters[name]]
            for key, value in values.items():
                now = loaded.get(key)
                if isinstance(value, torch.Tensor) and isinstance(now, torch.Tensor) and now.dtype != value.dtype:
                    loaded[key] = value.to(now.device)

    def _parameters(self) -> dict[str, torch.Tensor]:
        return {name: parameter for _, named in self._groups() for name, parameter in named.items()}

    def _groups(self) -> Iterator[tuple[dict[str, Any], dict[str, torch.Tensor]]]:
        for number, group in enumerate(self.thing.param_groups):
            yield (
                group,
                {
                    self._names.get(id(parameter), f"group{number}.{place}"): parameter
                    for place, parameter in enumerate(group["params"])
                },
            )


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
        return ModulePart(name, thing)
    if isinstance(thing, torch.optim.Optimizer):
        return OptimizerPart(name, thing, names)
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
        return OnlyEpochs(name, thing)
    raise TypeError(
        f"Checkpoint({name}=...) takes something with state_dict() and load_state_dict(), or a dict, "
        f"but was given a {type(thing).__module__}.{type(thing).__qualname__}"
    )


def named_parameters(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Names and parameters, without what wrappers add to the names."""
    for wrapped in ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"):
        if wrapped in module._modules:
            inner = module._modules[wrapped]
            assert inner is not None
            yield from named_parameters(inner, prefix)
            return
    if isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        yield from named_parameters(module.module, prefix)
        return
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
