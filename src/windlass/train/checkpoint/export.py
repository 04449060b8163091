"""Writes a module whole, for those who know nothing of Windlass: `model.pt`, `model.safetensors`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from windlass.train.checkpoint.agreement import World
from windlass.train.checkpoint.plan import Chunk, lay_out
from windlass.train.checkpoint.storage import Folder


def export(modules: Mapping[str, nn.Module], part: str | None, path: Path, world: World) -> None:
    """Write one of the modules; see `Checkpoint.export`."""
    if path.suffix not in (".pt", ".safetensors"):
        raise ValueError(f"export({str(path)!r}): takes a name that ends in .pt or .safetensors")
    if part is None and len(modules) != 1:
        raise ValueError(f"export(part=...): which of {', '.join(modules) or 'no modules'}?")
    name = part if part is not None else next(iter(modules))
    if name not in modules:
        raise ValueError(f"export(part={name!r}): there are {', '.join(modules) or 'no modules'}")
    together = dist.is_available() and dist.is_initialized()
    options = StateDictOptions(full_state_dict=True, cpu_offload=True) if together else None
    state = get_model_state_dict(modules[name], options=options)
    if world.rank == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder, inner = path.absolute().parent.parent, path.absolute().parent.name
        place = Folder(str(folder))
        if path.suffix == ".pt":
            _save_pt(state, path)
        else:
            place.put(inner, path.name, safetensors(state))
    world.now([0] * 8)


def _save_pt(state: Mapping[str, Any], path: Path) -> None:
    partial = path.with_name(f".{path.name}.partial")
    try:
        with open(partial, "wb") as file:
            torch.save({key: _plain(value) for key, value in state.items()}, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _plain(value: Any) -> Any:
    """A tensor of its own on the CPU: a view would be saved with all that it is a view of."""
    return value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value


def safetensors(state: Mapping[str, Any]) -> Iterator[bytes | memoryview]:
    """A safetensors file of these tensors, piece by piece. Raises TypeError for what is no tensor."""
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{name} is a {type(value).__name__}, and safetensors holds tensors only; export to .pt")
    layout = lay_out(
        [
            Chunk(name, str(value.dtype).removeprefix("torch."), tuple(value.shape), (0,) * value.dim(),
                  tuple(value.shape))
            for name, value in state.items()
        ]
    )  # fmt: skip
    yield layout.header
    for chunk in layout.chunks:
        data = state[chunk.name].detach().cpu().contiguous()
        if chunk.num_bytes:
            yield memoryview(data.reshape(-1).view(torch.uint8).numpy())
