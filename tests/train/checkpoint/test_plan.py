from __future__ import annotations

import itertools
import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windlass.train.checkpoint.chunks import Chunk, full_chunk, item_bytes, lay_out
from windlass.train.checkpoint.plan import SLACK_BYTES, local_chunks, share


def tensor(name: str, *shape: int, dtype: str = "float32") -> Chunk:
    return full_chunk(name, dtype, shape)


REPLICATED = st.lists(
    st.lists(st.integers(0, 3000), min_size=0, max_size=3).map(tuple).filter(lambda shape: math.prod(shape) < 3e7),
    max_size=12,
)


@given(REPLICATED, st.integers(1, 7))
def test_replicated_tensors_are_written_once_and_evenly_by_all_ranks(
    shapes: list[tuple[int, ...]], world_size: int
) -> None:
    chunks = [tensor(f"t{number}", *shape) for number, shape in enumerate(shapes)]
    plan = share([chunks] * world_size)
    elements = {chunk.name: 0 for chunk in chunks}
    boxes = [(chunk.name, chunk.offsets) for own in plan for chunk in own]
    assert len(boxes) == len(set(boxes))
    for own in plan:
        for chunk in own:
            elements[chunk.name] += math.prod(chunk.sizes)
    assert elements == {chunk.name: math.prod(chunk.shape) for chunk in chunks}
    loads = [sum(chunk.num_bytes for chunk in own) for own in plan]
    widest = max((chunk.num_bytes // max(1, chunk.shape[0]) for chunk in chunks if chunk.shape), default=0)
    # A remainder that is too small to be cut is assigned to a single rank.
    assert max(loads) - min(loads) <= (world_size + 1) * (SLACK_BYTES + widest)


def test_largest_tensor_is_cut_among_the_ranks() -> None:
    chunks = [tensor("embedding", 100_000, 256), tensor("small", 10)]
    loads = [sum(chunk.num_bytes for chunk in own) for own in share([chunks] * 4)]
    assert max(loads) / min(loads) < 1.01


def test_tensors_of_single_ranks_are_balanced_by_replicated_ones() -> None:
    shard = Chunk("sharded", "float32", (1024, 4096), (0, 0), (1024, 4096))
    plan = share([[tensor("a", 1024, 4096), shard], [tensor("a", 1024, 4096)]])
    assert plan[0] == [shard]
    assert [chunk.name for chunk in plan[1]] == ["a"]


def test_differing_tensors_are_taken_from_the_first_rank() -> None:
    held = [[tensor("seen", 4), tensor("w", 4)], [tensor("late", 4), tensor("seen", 4), tensor("w", 4)]]
    plan = share([*held, held[1]], {"seen", "late"})
    assert [[chunk.name for chunk in own] for own in plan] == [["seen"], ["late"], ["w"]]


def test_different_tensors_of_one_name_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"w is float32 \[3\] on rank 0, and float32 \[4\] on rank 1"):
        share([[tensor("w", 3)], [tensor("w", 4)]])


def test_file_conforms_to_the_safetensors_format() -> None:
    layout = lay_out(
        [
            tensor("bytes", 3, dtype="uint8"),
            tensor("none", 0, 4),
            tensor("wide", 2, dtype="float64"),
            tensor("strange", 2, dtype="complex128"),
            tensor("scalar", dtype="bfloat16"),
        ]
    )
    length = int.from_bytes(layout.header[:8], "little")
    header = json.loads(layout.header[8:])
    assert len(layout.header) == 8 + length
    assert len(layout.header) % 4096 == 0
    begins = sorted(entry["data_offsets"] for entry in header.values())
    assert begins[0][0] == 0
    assert all(before[1] == after[0] for before, after in itertools.pairwise(begins)), "no holes"
    assert layout.end == len(layout.header) + begins[-1][1]
    assert header["strange"] == {"dtype": "U8", "shape": [2, 16], "data_offsets": [0, 32]}
    assert header["scalar"]["shape"] == []
    for chunk, begin in zip(layout.chunks, layout.begins, strict=True):
        assert begin % getattr(torch, chunk.dtype).itemsize == 0
        assert layout.index[chunk.key]["dtype"] == chunk.dtype


def test_the_plan_of_a_rank_has_all_its_tensors() -> None:
    held = local_chunks({"a": torch.zeros(2, 3), "b": torch.zeros(()), "c": torch.zeros(0, 5, dtype=torch.int8)})
    assert held == [tensor("a", 2, 3), tensor("b"), tensor("c", 0, 5, dtype="int8")]


def test_the_size_of_every_type_follows_from_its_name() -> None:
    dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    assert {dtype: item_bytes(str(dtype).removeprefix("torch.")) for dtype in dtypes} == {
        dtype: dtype.itemsize for dtype in dtypes
    }
