"""Writes a module in a format for other programs: `model.pt` or `model.safetensors`.

`windlass checkpoints export` calls `python -m windlass.train.checkpoint.export IN.safetensors OUT.pt` with the job's
interpreter, because the command line itself has no torch. The safetensors package is not required.
"""

from __future__ import annotations

import json
import mmap
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from windlass.train.checkpoint.chunks import SAFETENSORS, full_chunk, lay_out
from windlass.train.checkpoint.parts import replicated
from windlass.train.checkpoint.storage import replacing


def full_state(modules: Mapping[str, nn.Module], part: str | None, path: Path) -> dict[str, Any]:
    """Returns the state of one module, assembled on rank 0. A collective. Raises ValueError as `Checkpoint.export`."""
    if path.suffix not in (".pt", ".safetensors"):
        raise ValueError(f"export({str(path)!r}): takes a name that ends in .pt or .safetensors")
    if part is None and len(modules) != 1:
        raise ValueError(f"export(part=...): which of {', '.join(modules) or 'no modules'}?")
    name = part if part is not None else next(iter(modules))
    if name not in modules:
        raise ValueError(f"export(part={name!r}): there are {', '.join(modules) or 'no modules'}")
    is_distributed = dist.is_available() and dist.is_initialized()
    options = StateDictOptions(full_state_dict=True, cpu_offload=True) if is_distributed else None
    return get_model_state_dict(replicated(modules[name]), options=options)


def write(state: Mapping[str, Any], path: Path) -> None:
    """Writes the state in the format of the file extension; the file appears only once complete. Raises OSError,
    TypeError.
    """
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(str(path)) as file:
        if path.suffix == ".safetensors":
            file.writelines(_safetensors(state))
        else:
            torch.save({key: _own(value) for key, value in state.items()}, file)


def _own(value: Any) -> Any:
    """Returns the tensor with its own storage on the CPU, since torch.save writes the whole storage behind a view."""
    return value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value


def _safetensors(state: Mapping[str, Any]) -> Iterator[bytes | memoryview]:
    """Yields the pieces of a safetensors file with these tensors. Raises TypeError for a value that is not a tensor."""
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{name} is a {type(value).__name__}, and safetensors holds tensors only; export to .pt")
    layout = lay_out(
        [full_chunk(name, str(value.dtype).removeprefix("torch."), value.shape) for name, value in state.items()]
    )
    yield layout.header
    for chunk in layout.chunks:
        data = state[chunk.name].detach().cpu().contiguous()
        if chunk.num_bytes:
            yield memoryview(data.reshape(-1).view(torch.uint8).numpy())


def read_tensors(path: str) -> dict[str, torch.Tensor]:
    """Reads the tensors of a safetensors file in file order. Raises OSError, ValueError for other files."""
    with open(path, "rb") as file:
        # The pages are private to this process, because torch requires writable memory.
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    length = int.from_bytes(data[:8], "little")
    if length > len(data) - 8:
        raise ValueError(f"{path} is no safetensors file")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    dtypes = {kind: getattr(torch, name) for name, kind in SAFETENSORS.items()}
    tensors = {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"][0]):
        if entry["dtype"] not in dtypes:
            raise ValueError(f"this version of Windlass does not know the type {entry['dtype']}")
        begin, end = entry["data_offsets"]
        flat = torch.empty(0, dtype=torch.uint8)
        if end > begin:
            flat = torch.frombuffer(data, dtype=torch.uint8, count=end - begin, offset=8 + length + begin)
        tensors[name] = flat.view(dtypes[entry["dtype"]]).reshape(entry["shape"])
    return tensors


if __name__ == "__main__":
    write(read_tensors(sys.argv[1]), Path(sys.argv[2]))
