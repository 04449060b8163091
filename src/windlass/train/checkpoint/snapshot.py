"""Captures the training state at one step, and copies this rank's share into memory shared with the writer process."""

from __future__ import annotations

import ctypes
import json
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from windlass.train.checkpoint.chunks import Chunk, Layout, lay_out
from windlass.train.checkpoint.consensus import World
from windlass.train.checkpoint.encoding import Encoder
from windlass.train.checkpoint.parts import ModulePart, Part, check_tensor
from windlass.train.checkpoint.plan import dtype_named, local_chunks, resolve, share
from windlass.train.checkpoint.writer_process import SharedMemory

_OWN_STATE_BYTES = 64 << 10
"""Bytes reserved for the rank's JSON state, so that new memory is rarely needed."""


class Snapshot:
    """The training state at one step: trees already encoded as JSON, and tensors that still belong to the script."""

    def __init__(
        self,
        parts: Sequence[Part],
        progress: dict[str, Any],
        rank: int,
        rng: dict[str, Any],
        *,
        allow_pickle: bool,
    ) -> None:
        """`rng` is the state of the random number generators. Raises TypeError with the path of a value that cannot be
        saved.
        """
        self.began_at, self.began = time.time(), time.perf_counter()
        """When the save began to pause the training: in Unix seconds, and in seconds of the monotonic clock."""
        self.progress = progress
        self.tensors: dict[str, torch.Tensor] = {}
        self._rank, self._parts = rank, parts
        common = Encoder(self._keep, allow_pickle=allow_pickle)
        own = Encoder(self._keep_own, allow_pickle=allow_pickle)
        self.common: dict[str, Any] = {
            **progress,
            "kinds": {part.name: part.per_rank for part in parts},
            "parts": {part.name: self._encode(part, common) for part in parts if not part.per_rank},
        }
        self.own: dict[str, Any] = {
            "parts": {part.name: own.encode(part.state(), part.name) for part in parts if part.per_rank},
            "rng": own.encode(rng, "rng"),
        }

    def _encode(self, part: Part, encoder: Encoder) -> Any:
        state = part.state()
        if not isinstance(part, ModulePart):
            return encoder.encode(state, part.name)
        # Module tensors are identified by name alone, so that a checkpoint can be loaded with any sharding of the
        # model.
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                self._keep(f"{part.name}.{name}", value)
        others = {name: value for name, value in state.items() if not isinstance(value, torch.Tensor)}
        return encoder.encode(others, part.name)

    def _keep_own(self, path: str, tensor: torch.Tensor) -> str:
        return self._keep(f"rank{self._rank}:{path}", tensor)

    def _keep(self, path: str, tensor: torch.Tensor) -> str:
        check_tensor(path, tensor)
        name, number = path, 1
        while name in self.tensors:
            number += 1
            name = f"{path}#{number}"
        self.tensors[name] = tensor.detach()
        return name

    def differing(self) -> list[str]:
        """Names of the tensors that all ranks hold, possibly with different values."""
        found = []
        for part in self._parts:
            prefix = f"{part.name}."
            names = [name[len(prefix) :] for name in self.tensors if name.startswith(prefix)]
            found += [prefix + name for name in part.differing(names)]
        return sorted(found)

    def signature(self) -> list[Any]:
        """Returns the names and shapes that determine the plan."""
        return [
            (name, tensor.dtype, tensor.shape)
            + ((tensor.placements, id(tensor.device_mesh)) if isinstance(tensor, DTensor) else ())
            for name, tensor in self.tensors.items()
        ]


class Copier:
    """The write plan and the shared memory laid out by it, valid while names and shapes stay the same."""

    def __init__(self, world: World, memory: SharedMemory) -> None:
        self._world = world
        self._memory = memory
        self._signature: list[Any] | None = None
        self._layout: Layout
        self._views: list[torch.Tensor] = []
        self._gpu: torch.device | None = None

    def is_planned(self, snapshot: Snapshot) -> bool:
        """Whether the current plan fits the snapshot."""
        return snapshot.signature() == self._signature

    def plan(self, snapshot: Snapshot) -> None:
        """Plans the save and allocates memory. A collective. Raises OSError, ValueError, TypeError."""
        chunks, rank = local_chunks(snapshot.tensors), self._world.rank
        if self._world.can_communicate:
            held, differing = zip(*self._world.gather((chunks, snapshot.differing())), strict=True)
            mine = share(held, set().union(*differing))[rank]
        else:  # rank 0 writes the common state, and each rank its own state
            if sharded := [chunk.name for chunk in chunks if not chunk.is_full]:
                raise TypeError(
                    f"{sharded[0]} cannot be kept in a checkpoint: it is sharded, and Checkpoint was made before "
                    "torch.distributed.init_process_group; make it after that"
                )
            mine = [chunk for chunk in chunks if rank == 0 or chunk.name.startswith(f"rank{rank}:")]
        self._layout = lay_out(mine)
        self._signature = snapshot.signature()
        devices = (tensor.device for tensor in snapshot.tensors.values())
        self._gpu = next((device for device in devices if device.type == "cuda"), None)
        self._memory.grow(self._layout.end + _OWN_STATE_BYTES)
        self._use_memory()

    def _use_memory(self) -> None:
        layout, mapped = self._layout, self._memory.mapped
        mapped[: len(layout.header)] = layout.header
        self._views = [_view(mapped, chunk, begin) for chunk, begin in zip(layout.chunks, layout.begins, strict=True)]
        self._memory.prepare(self._gpu)

    def copy(self, snapshot: Snapshot) -> dict[str, int]:
        """Copies this rank's share; returns its positions in the memory for the writer. Raises OSError."""
        layout = self._layout
        own = {"rank": self._world.rank, "tensors": layout.index, "own": snapshot.own}
        if self._world.rank == 0:
            own["common"] = snapshot.common
        text = json.dumps(own, separators=(",", ":")).encode()
        end = layout.end + len(text)
        if self._memory.grow(end):
            self._use_memory()
        self._memory.await_prepared()
        devices = set()
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()  # waits for copies to CPU tensors that the script may have started
        with torch.no_grad():
            for view, chunk in zip(self._views, layout.chunks, strict=True):
                data = resolve(snapshot.tensors[chunk.name], chunk)
                copy_into(view, data)
                devices.add(data.device)
        for device in devices:
            if copies_without_waiting(device):
                torch.cuda.synchronize(device)
        self._memory.mapped[layout.end : end] = text
        return {"tensors_end": layout.end, "end": end}


def copies_without_waiting(device: torch.device) -> bool:
    """Whether `Copier.copy` can wait for a copy from this device: `Copier.copy` synchronizes CUDA only.

    On MPS and XPU the copy could still be running while the memory is hashed and written, which would give a torn
    checkpoint with a matching checksum.
    """
    return device.type == "cuda"


def copy_into(view: torch.Tensor, data: torch.Tensor) -> None:
    """Copies a tensor. A copy from CUDA is only started and must be awaited.

    The C library's copy bypasses the cache for large blocks and takes 0.6 of the time of torch's.
    """
    is_plain = data.is_contiguous() and data.dtype == view.dtype and not (data.is_neg() or data.is_conj())
    if is_plain and data.device.type == "cpu":
        ctypes.memmove(view.data_ptr(), data.data_ptr(), view.numel() * view.dtype.itemsize)
    else:
        view.copy_(data, non_blocking=copies_without_waiting(data.device))


def _view(mapped: memoryview, chunk: Chunk, begin: int) -> torch.Tensor:
    dtype = dtype_named(chunk.dtype)
    if chunk.num_bytes == 0:
        return torch.empty(chunk.sizes, dtype=dtype)
    flat = torch.frombuffer(mapped, dtype=dtype, count=chunk.num_bytes // dtype.itemsize, offset=begin)
    return flat.view(chunk.sizes)
