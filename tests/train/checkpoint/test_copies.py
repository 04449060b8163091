"""Copies from a device to the CPU: done before their bytes are hashed, whatever the device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import torch

from windlass.train.checkpoint.snapshot import copy_into


@dataclass
class OnDevice:
    """A tensor of a device that this machine lacks, as far as a copy asks for it."""

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
    """A view of the shared memory, which remembers how it was copied into."""

    dtype: torch.dtype = torch.float32
    asked: list[bool] = field(default_factory=list)

    def copy_(self, _data: object, *, non_blocking: bool) -> None:
        self.asked.append(non_blocking)


@pytest.mark.parametrize("device", ["mps", "xpu", "hpu", "privateuseone", "meta"])
def test_only_cuda_is_copied_from_without_waiting(device: str) -> None:
    memory: Any = Memory()
    copy_into(memory, cast(torch.Tensor, OnDevice(torch.device(device))))
    copy_into(memory, cast(torch.Tensor, OnDevice(torch.device("cuda", 1))))
    assert memory.asked == [False, True]
