"""Copies from a device to the CPU are complete before their bytes are hashed, whatever the device."""

from __future__ import annotations

import contextlib
import gc
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from windlass.engines.local.facts import find_gpus
from windlass.train.checkpoint import Checkpoint
from windlass.train.checkpoint.snapshot import copy_into
from windlass.train.checkpoint.writer_process import SharedMemory


@dataclass
class OnDevice:
    """Fake tensor on a device that this machine lacks."""

    device: torch.device
    dtype: torch.dtype = torch.float32

    def is_contiguous(self) -> bool:
        return True

    def is_neg(self) -> bool:
        return False

    def is_conj(self) -> bool:
        return False


@dataclass
class Memory:
    """View of the shared memory that records how it was copied into."""

    dtype: torch.dtype = torch.float32
    asked: list[bool] = field(default_factory=list)

    def copy_(self, _data: object, *, non_blocking: bool) -> None:
        self.asked.append(non_blocking)


@pytest.mark.parametrize("device", ["mps", "xpu", "hpu", "privateuseone", "meta"])
def test_only_copies_from_cuda_are_asynchronous(device: str) -> None:
    memory: Any = Memory()
    copy_into(memory, cast(torch.Tensor, OnDevice(torch.device(device))))
    copy_into(memory, cast(torch.Tensor, OnDevice(torch.device("cuda", 1))))
    assert memory.asked == [False, True]


class Runtime:
    """Emulated CUDA runtime that records which memory is pinned."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.pinned: list[int] = []
        self._refuses = refuses

    def cudaHostRegister(self, address: int, _size: int, flags: int) -> int:
        assert flags == 1
        assert address not in self.pinned
        if not self._refuses:
            self.pinned.append(address)
        return int(self._refuses)

    def cudaHostUnregister(self, address: int) -> int:
        self.pinned.remove(address)
        return 0


@pytest.mark.parametrize("ends", ["closed", "dropped"])
def test_only_used_memory_is_pinned_with_emulated_cuda(monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "device", lambda _device: contextlib.nullcontext())
    memory = SharedMemory()
    addresses = set()
    for size in (10, 10_000, 10_000, 100_000):
        memory.grow(size)
        memory.prepare(torch.device("cuda", 1))
        (address,) = runtime.pinned
        addresses.add(address)
    assert len(addresses) == 3
    if ends == "closed":
        memory.close()
        memory.close()
        assert runtime.pinned == []
    del memory
    gc.collect()
    assert runtime.pinned == []


def test_memory_that_emulated_cuda_cannot_pin_is_used_unpinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "cudart", lambda: Runtime(refuses=True))
    monkeypatch.setattr(torch.cuda, "device", lambda _device: contextlib.nullcontext())
    memory = SharedMemory()
    memory.grow(10)
    memory.prepare(torch.device("cuda"))
    memory.mapped[:2] = b"ab"
    memory.close()


@pytest.mark.gpu
@pytest.mark.skipif(not find_gpus(), reason="there is no GPU")
def test_grown_memory_for_gpu_copies_is_pinned(tmp_path: Path) -> None:
    model = torch.nn.Linear(64, 64, device="cuda")
    more: dict[str, torch.Tensor] = {"kept": torch.zeros(10, device="cuda")}
    saved = Checkpoint(model=model, more=more, folder=tmp_path, every=10**6)
    memory = saved._saver._memory
    for size in (10, 1 << 20, 1 << 20, 5 << 20):
        more["kept"] = torch.full((size,), float(size), device="cuda")
        saved.step()
        assert saved.save(wait=True)
        memory.await_prepared()
        assert torch.frombuffer(memory.mapped, dtype=torch.uint8).is_pinned()
    more["kept"] = torch.zeros(5 << 20, device="cuda")
    saved.restore()
    assert bool((more["kept"] == 5 << 20).all())
    assert torch.ones(3, device="cuda").sum().item() == 3, "no error of CUDA is left"
    saved.close()
    assert not torch.frombuffer(memory.mapped, dtype=torch.uint8).is_pinned()
