"""Assigns the tensors of all ranks to the ranks that write them, so that all ranks write about as many bytes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.tensor import DTensor

from windlass.train.checkpoint.chunks import Chunk

SLACK_BYTES = 1 << 20
"""Minimum bytes to move between ranks that justify splitting a tensor."""


def dtype_named(name: str) -> torch.dtype:
    """Returns the torch type with this name. Raises ValueError."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is no type of a tensor")
    return found


def local_chunks(tensors: Mapping[str, torch.Tensor]) -> list[Chunk]:
    """Returns the chunks that this rank holds, as DCP's planner does: a whole plain tensor, or its shard of a
    DTensor.
    """
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(tensors), None, True)
    chunks = []
    for item in planner.create_local_plan().items:
        data = item.tensor_data
        assert data is not None
        chunk = Chunk(
            item.index.fqn,
            str(data.properties.dtype).removeprefix("torch."),
            tuple(data.size),
            tuple(data.chunk.offsets),
            tuple(data.chunk.sizes),
        )
        if chunk.is_full or chunk.num_bytes:
            chunks.append(chunk)
    return chunks


def share(held: Sequence[Sequence[Chunk]], differing: Collection[str] = ()) -> list[list[Chunk]]:
    """Decides which rank writes which chunks, given the chunks that each rank holds. Deterministic on all ranks.

    Chunks that only one rank holds are written by that rank. Tensors named in `differing`, whose values may differ
    between ranks, are written by the first rank that holds them. All others are assigned, largest first, to the rank
    with the fewest bytes; a whole tensor held by several ranks is split along its first dimension if that balances the
    ranks better.
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
            ranks = holders.setdefault(index, [])
            if not ranks or chunk.name not in differing:
                ranks.append(rank)
    plan: list[list[Chunk]] = [[] for _ in held]
    load = [0] * len(held)
    for index, ranks in holders.items():
        if len(ranks) == 1:
            plan[ranks[0]].append(chunks[index])
            load[ranks[0]] += chunks[index].num_bytes
    goal = sum(chunk.num_bytes for chunk in chunks.values()) / len(held)
    for index in sorted(holders, key=lambda index: (-chunks[index].num_bytes, index)):
        if len(holders[index]) > 1:
            _assign(chunks[index], holders[index], goal, plan, load)
    return plan


def _assign(chunk: Chunk, ranks: list[int], goal: float, plan: list[list[Chunk]], load: list[int]) -> None:
    rest: Chunk | None = chunk
    while rest is not None:
        rank = min(ranks, key=lambda rank: (load[rank], rank))
        given, rest = _cut(chunk, rest, goal - load[rank])
        plan[rank].append(given)
        load[rank] += given.num_bytes


def _cut(chunk: Chunk, rest: Chunk, space: float) -> tuple[Chunk, Chunk | None]:
    """Splits `rest` for a rank with `space` bytes left; returns its piece and the remainder."""
    if not chunk.is_full or not chunk.shape or rest.num_bytes <= space + SLACK_BYTES:
        return rest, None
    rows = rest.sizes[0]
    taken = int(space // (rest.num_bytes / rows))
    if not 0 < taken < rows or taken * (rest.num_bytes // rows) < SLACK_BYTES:
        return rest, None
    begin = rest.offsets[0]
    cut = begin + taken
    return _rows(chunk, begin, cut), _rows(chunk, cut, begin + rows)


def _rows(chunk: Chunk, begin: int, end: int) -> Chunk:
    offsets, sizes = (begin, *chunk.offsets[1:]), (end - begin, *chunk.sizes[1:])
    return Chunk(chunk.name, chunk.dtype, chunk.shape, offsets, sizes)


def resolve(tensor: torch.Tensor, chunk: Chunk) -> torch.Tensor:
    """Returns a chunk's data from the tensor of a rank that holds the chunk."""
    if isinstance(tensor, DTensor):
        local = tensor.to_local()
        return local.wait() if hasattr(local, "wait") else local
    if chunk.is_full:
        return tensor
    return tensor.narrow(0, chunk.offsets[0], chunk.sizes[0])
