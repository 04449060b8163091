"""Saves a training while it runs, and restores the newest verified checkpoint.

    saved = Checkpoint(model=model, optimizer=optimizer, sampler=sampler)
    for epoch in saved.epochs(10):
        for batch in saved.batches(loader):
            ...

Importing this package does not import torch; `files` and `chunks` work without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windlass.train.checkpoint.checkpoint import Checkpoint
    from windlass.train.checkpoint.reader import FolderReader
    from windlass.train.checkpoint.stop_signal import Preempted

_MODULES = {"Checkpoint": "checkpoint", "FolderReader": "reader", "Preempted": "stop_signal"}

__all__ = ["Checkpoint", "FolderReader", "Preempted"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    import importlib

    if name not in _MODULES:
        raise AttributeError(f"module 'windlass.train.checkpoint' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
