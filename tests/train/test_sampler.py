"""The sampler returns each sample once, whatever the world sizes, and the same order everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from windlass.train.checkpoint import Checkpoint
from windlass.train.checkpoint.parts import make_parts
from windlass.train.sampler import BatchSampler, Permutation

WORLDS = st.integers(1, 7)
ORDER_OF_TEN = [6, 3, 8, 0, 9, 7, 4, 5, 1, 2]
ORDER_OF_MANY = [11018609, 55067174, 85712684, 40700769, 10320048, 35406381, 5432349, 11693917, 93132824, 71930862]


def world_of(size: int, num_samples: int, **settings: Any) -> list[BatchSampler]:
    return [BatchSampler(num_samples, rank=rank, world_size=size, **settings) for rank in range(size)]


def train(world: list[BatchSampler], most_steps: int | None = None) -> list[list[int]]:
    """Draws batches on every rank in lockstep, and returns the samples of each step, rank by rank."""
    steps = []
    left = len(world[0])
    assert {len(sampler) for sampler in world} == {left}
    for batches in zip(*(iter(sampler) for sampler in world), strict=True):
        assert all(batches), "a rank had no sample in a step"
        assert max(map(len, batches)) - min(map(len, batches)) <= 1
        steps.append([sample for batch in batches for sample in batch])
        for sampler in world:
            sampler.advance()
        left -= 1
        assert {len(sampler) for sampler in world} == {left}
        if len(steps) == most_steps:
            return steps
    assert left == 0
    return steps


@given(
    num_samples=st.integers(1, 300),
    batch=st.integers(1, 40),
    fixed_global=st.booleans(),
    shuffle=st.booleans(),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 5),
    moves=st.lists(st.tuples(WORLDS, st.integers(0, 12)), max_size=5),
    last=WORLDS,
)
def test_epoch_has_each_sample_once_in_changing_world_sizes(
    num_samples: int,
    batch: int,
    fixed_global: bool,
    shuffle: bool,
    seed: int,
    epoch: int,
    moves: list[tuple[int, int]],
    last: int,
) -> None:
    settings: dict[str, Any] = {"shuffle": shuffle, "seed": seed}
    settings |= {"global_batch_size": max(batch, 7)} if fixed_global else {"batch_size": batch}
    state: dict[str, Any] = {}
    seen: Counter[int] = Counter()
    repeated = 0
    for size, most_steps in [*moves, (last, None)]:
        world = world_of(size, num_samples, **settings)
        for sampler in world:
            if state:
                sampler.load_state_dict(state)
            sampler.set_epoch(epoch)
        steps = train(world, most_steps) if most_steps != 0 else []
        seen.update(sample for step in steps for sample in step)
        states = [json.loads(json.dumps(sampler.state_dict())) for sampler in world]
        assert all(other == states[0] for other in states)
        state = states[0]
    repeated = state["repeated"]
    assert set(seen) == set(range(num_samples))
    assert sum(seen.values()) == num_samples + repeated
    assert repeated < 7, "only one step of an epoch can be smaller than the world"
    if not moves and num_samples >= last:
        assert repeated == 0
    assert state["consumed"] == num_samples


@given(num_samples=st.integers(1, 300), batch=st.integers(1, 40), size=WORLDS, more=WORLDS, after=st.integers(1, 9))
def test_drop_last_yields_full_steps_without_repeated_samples(
    num_samples: int, batch: int, size: int, more: int, after: int
) -> None:
    world = world_of(size, num_samples, batch_size=batch, drop_last=True)
    steps = train(world, after)
    assert all(len(step) == batch * size for step in steps)
    bigger = world_of(more, num_samples, batch_size=batch, drop_last=True)
    for sampler in bigger:
        sampler.load_state_dict(world[0].state_dict())
    others = train(bigger)
    assert all(len(step) == batch * more for step in others)
    seen = Counter(sample for step in [*steps, *others] for sample in step)
    assert set(seen.values()) <= {1}
    assert num_samples - len(seen) < batch * max(more, size)


@given(num_samples=st.integers(1, 200), sizes=st.tuples(WORLDS, WORLDS), batch=st.integers(7, 30))
def test_fixed_global_batch_has_the_same_samples_in_every_world_size(
    num_samples: int, sizes: tuple[int, int], batch: int
) -> None:
    one, other = (train(world_of(size, num_samples, global_batch_size=batch)) for size in sizes)
    # the last step may include samples that form a separate step in the other world
    shared = min(len(one), len(other)) - 1
    assert [sorted(step) for step in one[:shared]] == [sorted(step) for step in other[:shared]]


@given(num_samples=st.integers(1, 2000), key=st.text(max_size=5), start=st.integers(0, 2000), count=st.integers(0, 50))
def test_permutation_has_each_number_once_and_random_access(num_samples: int, key: str, start: int, count: int) -> None:
    whole = Permutation(num_samples, key)[:]
    assert sorted(whole) == list(range(num_samples))
    assert Permutation(num_samples, key)[start : start + count] == whole[start : start + count]


def test_the_order_is_the_same_on_every_machine_and_in_every_version() -> None:
    # Recorded once; changing these numbers would invalidate every checkpoint of an unfinished epoch.
    assert Permutation(10, "0/0")[:] == ORDER_OF_TEN
    assert Permutation(100_000_000, "7/3")[99_999_990:] == ORDER_OF_MANY


def test_orders_of_a_few_samples_are_equally_frequent() -> None:
    num_orders, counts = 6000, Counter[tuple[int, ...]]()
    for epoch in range(num_orders):
        counts[tuple(Permutation(4, f"0/{epoch}")[:])] += 1
    expected = num_orders / 24
    chi_squared = sum((counts[order] - expected) ** 2 / expected for order in counts)
    assert len(counts) == 24
    assert chi_squared < 49.7  # 23 degrees of freedom: one in a thousand fair orders exceeds this


def test_each_epoch_has_a_different_order_reproduced_by_the_seed() -> None:
    def orders(seed: int) -> list[list[list[int]]]:
        sampler = BatchSampler(50, 10, seed=seed)
        found = []
        for epoch in range(3):
            sampler.set_epoch(epoch)
            found.append(list(sampler))
        return found

    assert orders(1) == orders(1)
    assert orders(1) != orders(2)
    assert orders(1)[0] != orders(1)[1]


def loader_of(sampler: BatchSampler, **settings: Any) -> DataLoader[Any]:
    dataset: Any = list(range(sampler.num_samples))
    return DataLoader(dataset, batch_sampler=sampler, **settings)


def test_prefetched_samples_are_not_consumed() -> None:
    sampler = BatchSampler(100, 5)
    batches = iter(loader_of(sampler, num_workers=2, prefetch_factor=4))
    first = [next(batches).tolist() for _ in range(3)]
    for _ in first:
        sampler.advance()
    assert sampler.state_dict()["consumed"] == 15
    resumed = BatchSampler(100, 5)
    resumed.load_state_dict(sampler.state_dict())
    rest = [batch.tolist() for batch in loader_of(resumed)]
    assert [*first, *rest] == [batch.tolist() for batch in loader_of(BatchSampler(100, 5))]
    assert len(rest) == 17


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 calls it
def test_two_objects_with_a_position_are_refused() -> None:
    sampler = BatchSampler(100, 5)
    loader = StatefulDataLoader(list(range(100)), batch_sampler=sampler)
    with pytest.raises(TypeError, match="remembers the position too"):
        make_parts({"sampler": sampler, "loader": loader})
    assert make_parts({"sampler": sampler})


@pytest.mark.parametrize("is_part", [True, False])
def test_sampler_missing_in_the_checkpoint_causes_a_warning(tmp_path: Path, is_part: bool) -> None:
    sampler = BatchSampler(10, 5)
    parts: dict[str, Any] = {"sampler": sampler} if is_part else {}
    saved = Checkpoint(folder=tmp_path, **parts)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches = [batch for _ in saved.epochs(1) for batch in saved.batches(loader_of(sampler))]
    assert len(batches) == 2
    assert ["is no part of the Checkpoint" in str(one.message) for one in caught] == [True] * (not is_part)


def test_iterating_a_finished_epoch_raises_an_error() -> None:
    sampler = BatchSampler(10, 5)
    for _ in sampler:
        sampler.advance()
    with pytest.raises(RuntimeError, match=r"epoch 0 of the sampler is over: call sampler.set_epoch\(1\)"):
        iter(sampler)
    with pytest.raises(RuntimeError, match="after the last step of epoch 0"):
        sampler.advance()
    sampler.set_epoch(1)
    assert len(list(sampler)) == 2


def test_run_saved_after_the_last_step_of_an_epoch_resumes_with_no_batches() -> None:
    sampler = BatchSampler(10, 5)
    for _ in sampler:
        sampler.advance()
    resumed = BatchSampler(10, 5)
    resumed.load_state_dict(sampler.state_dict())
    resumed.set_epoch(0)
    assert (len(resumed), list(resumed)) == (0, [])
    assert list(loader_of(resumed, num_workers=1)) == []  # the loader creates the iterator twice


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"num_samples": 9, "batch_size": 3}, "num_samples=10, this one has 9"),
        ({"num_samples": 10, "batch_size": 3, "seed": 4}, "seed=0, this one has 4"),
        ({"num_samples": 10, "batch_size": 3, "shuffle": False}, "shuffle=True, this one has False"),
    ],
)
def test_a_position_in_another_order_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        BatchSampler(**settings).load_state_dict(BatchSampler(10, 3).state_dict())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "either batch_size"),
        ({"batch_size": 2, "global_batch_size": 2}, "either batch_size"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"global_batch_size": 3, "world_size": 4}, "fewer samples in a step than the 4 ranks"),
        ({"batch_size": 1, "rank": 2, "world_size": 2}, "rank=2"),
        ({"batch_size": 1, "num_samples": 0}, "num_samples=0"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        BatchSampler(**{"num_samples": 10, **settings})


def test_global_batch_follows_the_world_size_only_with_batch_size() -> None:
    assert BatchSampler(100, 8, rank=0, world_size=3).global_batch == 24
    assert BatchSampler(100, global_batch_size=8, rank=0, world_size=3).global_batch == 8


def test_rank_and_world_size_come_from_the_launcher_without_torch() -> None:
    program = (
        "from windlass.train.sampler import BatchSampler; import sys; s = BatchSampler(10, 2, shuffle=False);"
        "print(list(s), 'torch' in sys.modules)"
    )
    environ = {**os.environ, "RANK": "1", "WORLD_SIZE": "2"}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[[2, 3], [6, 7], [9]] False"
