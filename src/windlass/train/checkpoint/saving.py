"""Copies what this rank has to write into shared memory: at once, or the large tensors beside the training."""

from __future__ import annotations

import ctypes
import json
import mmap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from windlass.train.checkpoint import rng
from windlass.train.checkpoint.agreement import World
from windlass.train.checkpoint.beside import CopyBeside, Piece, pages_of, watched
from windlass.train.checkpoint.encoding import Encoder
from windlass.train.checkpoint.parts import ModulePart, Part, check_tensor
from windlass.train.checkpoint.plan import Chunk, Layout, lay_out, local_chunks, resolve, share
from windlass.train.checkpoint.watch import Watch
from windlass.train.checkpoint.writing import SharedMemory

_ROOM_FOR_OWN_STATE = 64 << 10


class Snapshot:
    """The state of one moment: trees that are JSON already, and tensors that are still the script's."""

    def __init__(self, parts: Sequence[Part], progress: dict[str, Any], rank: int, *, allow_pickle: bool) -> None:
        """Raises TypeError that names what cannot be kept."""
        self.begun_at = (time.time(), time.perf_counter())
        """Since when the training is held for it: by the calendar, and by the clock that only goes forward."""
        self.tensors: dict[str, torch.Tensor] = {}
        self._rank = rank
        common = Encoder(self._keep_common, allow_pickle=allow_pickle)
        own = Encoder(self._keep_own, allow_pickle=allow_pickle)
        self.common: dict[str, Any] = {
            **progress,
            "kinds": {part.name: part.per_rank for part in parts},
            "parts": {part.name: self._encode(part, common) for part in parts if not part.per_rank},
        }
        self.own: dict[str, Any] = {
            "parts": {part.name: own.encode(part.state(), part.name) for part in parts if part.per_rank},
            "rng": own.encode(rng.take(), "rng"),
        }

    def _encode(self, part: Part, encoder: Encoder) -> Any:
        state = part.state()
        if not isinstance(part, ModulePart):
            return encoder.encode(state, part.name)
        # A module's tensors are found by their names alone, so that a model may be spread over ranks in any way.
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                self._keep_common(f"{part.name}.{name}", value)
        others = {name: value for name, value in state.items() if not isinstance(value, torch.Tensor)}
        return encoder.encode(others, part.name)

    def _keep_common(self, path: str, tensor: torch.Tensor) -> str:
        return self._keep(path, tensor)

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

    def signature(self) -> list[Any]:
        """What the plan depends on."""
        return [(name, tensor.dtype, tensor.shape, _placement(tensor)) for name, tensor in self.tensors.items()]


def _placement(tensor: torch.Tensor) -> Any:
    return (tensor.placements, id(tensor.device_mesh)) if isinstance(tensor, DTensor) else None


class Copier:
    """Keeps the plan, and the shared memory laid out by it, for as long as the names and shapes stay the same."""

    def __init__(self, world: World, memory: SharedMemory) -> None:
        self._world = world
        self._memory = memory
        self._signature: list[Any] | None = None
        self._layout: Layout | None = None
        self._views: list[torch.Tensor] = []
        self._proved = False
        self._cannot_watch = False

    def is_planned(self, snapshot: Snapshot) -> bool:
        """Whether the plan at hand is for what the snapshot has."""
        return self._layout is not None and snapshot.signature() == self._signature

    def plan(self, snapshot: Snapshot) -> None:
        """Make the plan, all ranks together, and have memory for it. Raises OSError, ValueError."""
        chunks = local_chunks(snapshot.tensors)
        if self._world.talks:
            mine = share(self._world.gather(chunks))[self._world.rank]
        else:
            mine = _alone(chunks, self._world.rank)
        self._layout = lay_out(mine)
        self._proved = self._cannot_watch = False
        self._signature = snapshot.signature()
        self._reserve(self._layout.end + _ROOM_FOR_OWN_STATE, again=True)

    def _reserve(self, num_bytes: int, *, again: bool = False) -> None:
        if not self._memory.grow(num_bytes) and not again:
            return
        layout, mapped = self._layout, self._memory.mapped
        assert layout is not None
        assert mapped is not None
        mapped[: len(layout.header)] = layout.header
        self._views = [_view(mapped, chunk, begin) for chunk, begin in zip(layout.chunks, layout.begins, strict=True)]

    def copy(self, snapshot: Snapshot, *, beside: bool = False) -> Copied:
        """Copy it all, or with `beside` all but what can be copied while the training goes on. Raises OSError."""
        layout = self._layout
        assert layout is not None
        own = {"rank": self._world.rank, "tensors": layout.index, "own": snapshot.own}
        if self._world.rank == 0:
            own["common"] = snapshot.common
        text = json.dumps(own, separators=(",", ":")).encode()
        self._reserve(layout.end + len(text))
        data = [resolve(snapshot.tensors[chunk.name], chunk) for chunk in layout.chunks]
        later, watch = self._put_off(data) if beside else ([], None)
        with torch.no_grad():
            for view, tensor, piece in zip(self._views, data, later or [None] * len(data), strict=True):
                copy_into(view, tensor, piece)
            if _uses_gpu():
                torch.cuda.synchronize()  # the script too may have begun copies to the CPU
            for device in {tensor.device for tensor in data if copies_without_waiting(tensor.device)}:
                torch.cuda.synchronize(device)
        mapped = self._memory.mapped
        assert mapped is not None
        mapped[layout.end : layout.end + len(text)] = text
        where = {"tensors_end": layout.end, "own_begin": layout.end, "end": layout.end + len(text)}
        return Copied(where, [piece for piece in later if piece is not None], watch, mapped)

    def _put_off(self, data: Sequence[torch.Tensor]) -> tuple[list[Piece | None], Watch | None]:
        """What of each tensor may be copied later, now watched; nothing where the kernel cannot watch it."""
        layout = self._layout
        assert layout is not None
        if _uses_gpu() or self._cannot_watch or any(tensor.device.type != "cpu" for tensor in data):
            return [], None  # a device writes to memory of the host unseen
        later = [
            pages_of(tensor, chunk.num_bytes, begin) if _is_plain(tensor, view) else None
            for tensor, view, chunk, begin in zip(data, self._views, layout.chunks, layout.begins, strict=True)
        ]
        watch = watched([piece for piece in later if piece is not None], prove=not self._proved)
        self._proved = True
        self._cannot_watch = watch is None
        return (later, watch) if watch is not None else ([], None)


@dataclass(frozen=True)
class Copied:
    """A state that is in shared memory, or is getting there."""

    where: dict[str, int]
    """For the writer: where in the memory it is."""
    _later: list[Piece]
    _watch: Watch | None
    _memory: mmap.mmap

    def go_on(self, then: Callable[[float], None]) -> CopyBeside | None:
        """Copy the rest on a thread and call `then` on it; None where there is no rest."""
        return CopyBeside(self._later, self._watch, self._memory, then) if self._watch is not None else None


def _uses_gpu() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


def copies_without_waiting(device: torch.device) -> bool:
    """Whether a copy from this device may be begun without waiting for it: `Copier.copy` synchronizes CUDA alone.

    On MPS and XPU such a copy would still be under way when the memory is hashed and written: a torn checkpoint whose
    checksum is that of the torn bytes.
    """
    return device.type == "cuda"


def _is_plain(data: torch.Tensor, view: torch.Tensor) -> bool:
    plain = data.is_contiguous() and data.dtype == view.dtype and not (data.is_neg() or data.is_conj())
    return plain and data.device.type == "cpu"


def copy_into(view: torch.Tensor, data: torch.Tensor, later: Piece | None) -> None:
    """Copy a tensor; of what `later` covers, nothing. From CUDA the copy is only begun: it must be awaited.

    The C library's copy passes the cache by for large blocks, and takes 0.6 of the time of torch's.
    """
    if not _is_plain(data, view):
        view.copy_(data, non_blocking=copies_without_waiting(data.device))
        return
    begin, end = data.data_ptr(), data.data_ptr() + view.numel() * view.dtype.itemsize
    edges = [(begin, end)] if later is None else [(begin, later.begin), (later.end, end)]
    for first, last in edges:
        ctypes.memmove(view.data_ptr() + first - begin, first, last - first)


def _view(mapped: Any, chunk: Chunk, begin: int) -> torch.Tensor:
    from windlass.train.checkpoint.plan import dtype_named

    dtype = dtype_named(chunk.dtype)
    if chunk.num_bytes == 0:
        return torch.empty(chunk.sizes, dtype=dtype)
    return torch.frombuffer(mapped, dtype=dtype, count=chunk.num_bytes // dtype.itemsize, offset=begin).view(
        chunk.sizes
    )


def _alone(chunks: list[Chunk], rank: int) -> list[Chunk]:
    """Where ranks cannot talk: rank 0 writes what is common, each what is its own."""
    return [chunk for chunk in chunks if rank == 0 or chunk.name.startswith(f"rank{rank}:")]
