"""Turns the tensors of all ranks into a plan of which rank writes which piece, with each rank given as many bytes."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.tensor import DTensor

HEADER_MULTIPLE = 4096
"""The data of a file begins on a page, so that tensors of any type are aligned in memory."""
SLACK_BYTES = 1 << 20
"""A tensor is cut in two only to move more than this from one rank to another."""
_SAFETENSORS = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint64: "U64", torch.uint32: "U32",
    torch.uint16: "U16", torch.uint8: "U8", torch.bool: "BOOL", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2", torch.complex64: "C64",
}  # fmt: skip
"""Other types are kept as bytes, with one dimension more; their own type stands in the rank's JSON."""


@dataclass(frozen=True)
class Chunk:
    """A box of a tensor, written by one rank."""

    name: str
    dtype: str
    """As torch names it: `float32`."""
    shape: tuple[int, ...]
    """Of the whole tensor."""
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def whole(self) -> bool:
        """Whether it is all of the tensor."""
        return self.sizes == self.shape

    @property
    def key(self) -> str:
        """Its name in the file: `model.weight`, or `model.weight@128,0` where it is a part."""
        return self.name if self.whole else f"{self.name}@{','.join(map(str, self.offsets))}"

    @property
    def num_bytes(self) -> int:
        """Its size."""
        return count(self.sizes) * dtype_named(self.dtype).itemsize


def count(sizes: Sequence[int]) -> int:
    """How many elements a box of these sizes has."""
    return functools.reduce(operator.mul, sizes, 1)


def dtype_named(name: str) -> torch.dtype:
    """The type of this name. Raises ValueError."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is no type of a tensor")
    return found


def local_chunks(tensors: Mapping[str, torch.Tensor]) -> list[Chunk]:
    """What this rank holds, as DCP's planner sees it: all of a plain tensor, its shard of a DTensor."""
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(tensors), None, True)
    chunks = []
    for item in planner.create_local_plan().items:
        data = item.tensor_data
        assert data is not None
        chunk = Chunk(
            item.index.fqn, str(data.properties.dtype).removeprefix("torch."), tuple(data.size),
            tuple(data.chunk.offsets), tuple(data.chunk.sizes),
        )  # fmt: skip
        if chunk.whole or count(chunk.sizes):
            chunks.append(chunk)
    return chunks


def share(held: Sequence[Sequence[Chunk]]) -> list[list[Chunk]]:
    """Which rank writes what, out of what each holds. The same on every rank that computes it.

    What one rank alone holds it must write. The rest is dealt, the largest first, to whoever has least; a whole tensor
    that several hold is cut along its first dimension where that makes the ranks more equal.
    """
    holders: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    chunks: dict[tuple[str, tuple[int, ...]], Chunk] = {}
    for rank, own in enumerate(held):
        for chunk in own:
            index = (chunk.name, chunk.offsets)
            if chunks.setdefault(index, chunk) != chunk:
                other = chunks[index]
                raise ValueError(
                    f"{chunk.name} is {other.dtype} {list(other.shape)} on rank {holders[index][0]}, "
                    f"and {chunk.dtype} {list(chunk.shape)} on rank {rank}"
                )
            holders.setdefault(index, []).append(rank)
    plan: list[list[Chunk]] = [[] for _ in held]
    load = [0] * len(held)
    for index, ranks in holders.items():
        if len(ranks) == 1:
            plan[ranks[0]].append(chunks[index])
            load[ranks[0]] += chunks[index].num_bytes
    goal = sum(chunk.num_bytes for chunk in chunks.values()) / len(held)
    for index in sorted(holders, key=lambda index: (-chunks[index].num_bytes, index)):
        if len(holders[index]) > 1:
            _deal(chunks[index], holders[index], goal, plan, load)
    return plan


def _deal(chunk: Chunk, ranks: list[int], goal: float, plan: list[list[Chunk]], load: list[int]) -> None:
    rest: Chunk | None = chunk
    while rest is not None:
        rank = min(ranks, key=lambda rank: (load[rank], rank))
        given, rest = _cut(chunk, rest, goal - load[rank])
        plan[rank].append(given)
        load[rank] += given.num_bytes


def _cut(chunk: Chunk, rest: Chunk, room: float) -> tuple[Chunk, Chunk | None]:
    """What of `rest` to give to a rank that has `room`, and what is left."""
    if not chunk.whole or not chunk.shape or rest.num_bytes <= room + SLACK_BYTES:
        return rest, None
    rows = rest.sizes[0]
    taken = int(room // (rest.num_bytes / rows))
    if not 0 < taken < rows or taken * (rest.num_bytes // rows) < SLACK_BYTES:
        return rest, None
    begin = rest.offsets[0]
    cut = begin + taken
    return _rows(chunk, begin, cut), _rows(chunk, cut, begin + rows)


def _rows(chunk: Chunk, begin: int, end: int) -> Chunk:
    offsets, sizes = (begin, *chunk.offsets[1:]), (end - begin, *chunk.sizes[1:])
    return Chunk(chunk.name, chunk.dtype, chunk.shape, offsets, sizes)


def resolve(tensor: torch.Tensor, chunk: Chunk) -> torch.Tensor:
    """The data of a chunk on a rank that holds it."""
    if isinstance(tensor, DTensor):
        local = tensor.to_local()
        return local.wait() if hasattr(local, "wait") else local
    if chunk.whole:
        return tensor
    return tensor.narrow(0, chunk.offsets[0], chunk.sizes[0])


@dataclass(frozen=True)
class Layout:
    """How one rank's file is laid out: a safetensors header, then the data of its chunks in this order."""

    chunks: tuple[Chunk, ...]
    begins: tuple[int, ...]
    """Where the data of each begins, in bytes from the beginning of the file."""
    header: bytes
    end: int
    """Length of the file."""

    @property
    def index(self) -> dict[str, Any]:
        """What the rank's JSON says of each key of the file."""
        return {
            chunk.key: {
                "name": chunk.name, "dtype": chunk.dtype, "shape": list(chunk.shape), "offsets": list(chunk.offsets),
                "sizes": list(chunk.sizes), "begin": begin,
            }
            for chunk, begin in zip(self.chunks, self.begins, strict=True)
        }  # fmt: skip


def lay_out(chunks: Sequence[Chunk]) -> Layout:
    """The layout of a rank's chunks: those of the widest type first, so that each is aligned."""
    ordered = sorted(chunks, key=lambda chunk: (-dtype_named(chunk.dtype).itemsize, chunk.name, chunk.offsets))
    entries: dict[str, Any] = {}
    ends = []
    at = 0
    for chunk in ordered:
        begin, at = at, at + chunk.num_bytes
        dtype = dtype_named(chunk.dtype)
        kind, sizes = _SAFETENSORS.get(dtype), list(chunk.sizes)
        if kind is None:
            kind, sizes = "U8", [*sizes, dtype.itemsize]
        entries[chunk.key] = {"dtype": kind, "shape": sizes, "data_offsets": [begin, at]}
        ends.append(at)
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % HEADER_MULTIPLE)
    header = len(text).to_bytes(8, "little") + text
    begins = tuple(len(header) + end - chunk.num_bytes for chunk, end in zip(ordered, ends, strict=True))
    return Layout(tuple(ordered), begins, header, len(header) + at)
