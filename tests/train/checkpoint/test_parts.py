"""Modules in a checkpoint are restored as they were saved."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from windlass.train.checkpoint import Checkpoint
from windlass.train.checkpoint.consensus import FileWorld
from windlass.train.checkpoint.parts import make_parts
from windlass.train.checkpoint.snapshot import Copier, Snapshot
from windlass.train.checkpoint.writer_process import SharedMemory


class Copying(nn.Linear):
    """Module whose state is a copy, like a model that keeps tensors on a GPU and returns them on the CPU."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {name: value.clone() for name, value in super().state_dict(*args, **kwargs).items()}


def save(folder: Path, **parts: Any) -> None:
    saved = Checkpoint(folder=folder, **parts)
    saved.step()
    assert saved.save(wait=True)
    saved.close()


def restore(folder: Path, **parts: Any) -> None:
    saved = Checkpoint(folder=folder, **parts)
    assert saved.restore() == 1
    saved.close()


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(4, 3),
        lambda: Copying(4, 3),
        lambda: nn.DataParallel(nn.Linear(4, 3)),
        lambda: nn.Sequential(nn.DataParallel(nn.Linear(4, 3))),
        lambda: nn.Sequential(Copying(4, 3)),
    ],
    ids=["plain", "copies", "DataParallel", "DataParallel inside", "copies inside"],
)
def test_a_module_is_restored_as_it_was_saved(tmp_path: Path, make: Callable[[], nn.Module]) -> None:
    before, after = make(), make()
    save(tmp_path, model=before)
    restore(tmp_path, model=after)
    for old, new in zip(before.parameters(), after.parameters(), strict=True):
        assert torch.equal(old, new)


def test_shards_of_ranks_that_cannot_communicate_are_refused(tmp_path: Path) -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        weights = distribute_tensor(torch.zeros(4), init_device_mesh("cpu", (2,)), [Shard(0)])
    finally:
        dist.destroy_process_group()
    world = FileWorld(0, 2, {}, str(tmp_path), 1)
    snapshot = Snapshot(make_parts({"own": {"w": weights}}), {}, 0, {}, allow_pickle=False)
    with pytest.raises(TypeError, match=r"own\.w .* is sharded, .* make it after"):
        Copier(world, SharedMemory()).plan(snapshot)


def test_tensors_of_a_dict_are_sharded_like_existing_ones(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        ema: dict[str, Any] = {"weights": {"w": distribute_tensor(torch.arange(4.0), mesh)}, "best": torch.ones(())}
        save(tmp_path / "checkpoints", ema=ema)
        ema["weights"]["w"] = distribute_tensor(torch.zeros(4), mesh)
        restore(tmp_path / "checkpoints", ema=ema)
        assert isinstance(ema["weights"]["w"], DTensor)
        assert ema["weights"]["w"].full_tensor().tolist() == [0.0, 1.0, 2.0, 3.0]
    finally:
        dist.destroy_process_group()


class Observer(nn.Linear):
    """Module with extra state besides its tensors, like quantization modules."""

    seen: Any = None

    def get_extra_state(self) -> Any:
        return self.seen

    def set_extra_state(self, state: Any) -> None:
        self.seen = state


@pytest.mark.parametrize("seen", [None, 3, torch.ones(2), {"scale": torch.ones(2), "count": 1}], ids=type)
def test_extra_state_of_a_module_is_restored_including_tensors(tmp_path: Path, seen: Any) -> None:
    before, after = Observer(4, 3), Observer(4, 3)
    before.seen, after.seen = seen, torch.zeros(2) if isinstance(seen, torch.Tensor) else None
    save(tmp_path, model=before)
    restore(tmp_path, model=after)
    assert repr(after.seen) == repr(seen)


class Counting(torch.optim.SGD):
    """Optimizer with state that belongs to no parameter."""

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        self.state["calls"] = self.state.get("calls", 0) + 1  # type: ignore[call-overload, index]
        return loss


class Lookahead(torch.optim.Optimizer):
    """Optimizer that wraps another one and has its own `state_dict`."""

    def __init__(self, base: torch.optim.Optimizer) -> None:
        super().__init__(base.param_groups, {})
        self.base, self.calls = base, 0

    def step(self, closure: Any = None) -> Any:
        self.calls += 1
        return self.base.step(closure)

    def state_dict(self) -> dict[str, Any]:
        return {"base": self.base.state_dict(), "calls": self.calls}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.base.load_state_dict(state_dict["base"])
        self.calls = state_dict["calls"]


@pytest.mark.parametrize(
    "make",
    [
        lambda weights: Counting(weights, momentum=0.9),
        lambda weights: Lookahead(torch.optim.Adam(weights)),
    ],
    ids=["state of no parameter", "around another"],
)
def test_whole_state_dict_of_an_optimizer_is_restored(
    tmp_path: Path, make: Callable[[Any], torch.optim.Optimizer]
) -> None:
    model, other = nn.Linear(4, 3), nn.Linear(4, 3)
    before, after = make(model.parameters()), make(other.parameters())
    model(torch.ones(2, 4)).sum().backward()
    before.step()
    save(tmp_path, model=model, optimizer=before)
    restore(tmp_path, model=other, optimizer=after)
    assert repr(after.state_dict()) == repr(before.state_dict())


@pytest.mark.parametrize("kind", ["FullyShardedDataParallel", "ZeroRedundancyOptimizer"])
def test_unnamed_sharded_state_is_refused_with_an_alternative(tmp_path: Path, kind: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = nn.Linear(4, 3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that this class is no longer developed
            if kind == "FullyShardedDataParallel":
                part: Any = nn.Sequential(FullyShardedDataParallel(model, device_id=torch.device("cpu")))
            else:
                part = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
        with pytest.raises(TypeError, match=rf"Checkpoint\(part=\.\.\.\).* {kind}, .*fully_shard"):
            Checkpoint(folder=tmp_path, part=part)
    finally:
        dist.destroy_process_group()


def test_only_buffers_and_custom_state_may_differ_between_ranks() -> None:
    model: Any = torch.compile(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    parts = make_parts({"model": model, "optimizer": optimizer, "own": {"seen": torch.zeros(1)}})
    assert Snapshot(parts, {}, 0, {}, allow_pickle=False).differing() == [
        "model.1.num_batches_tracked",
        "model.1.running_mean",
        "model.1.running_var",
        "own.seen",
    ]


def test_loss_function_without_state_is_accepted(tmp_path: Path) -> None:
    save(tmp_path, model=nn.Linear(4, 3), loss=nn.CrossEntropyLoss())
    restore(tmp_path, model=nn.Linear(4, 3), loss=nn.CrossEntropyLoss())


def test_data_parallel_is_exported_under_names_of_the_wrapped_module(tmp_path: Path) -> None:
    saved = Checkpoint(folder=tmp_path / "checkpoints", model=nn.DataParallel(nn.Linear(4, 3)))
    saved.export(tmp_path / "model.pt")
    saved.close()
    assert list(torch.load(tmp_path / "model.pt")) == ["weight", "bias"]
