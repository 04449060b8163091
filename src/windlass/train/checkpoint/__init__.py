"""Saves a training beside itself, and restores the newest verified checkpoint.

    saved = Checkpoint(model=model, optimizer=optimizer, sampler=sampler)
    for epoch in saved.epochs(10):
        for batch in saved.batches(loader):
            ...

Importing this package imports no torch; `files` works without it altogether.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windlass.train.checkpoint.checkpoint import Checkpoint, Preempted
    from windlass.train.checkpoint.reader import FolderReader

_HOMES = {
    "Checkpoint": "windlass.train.checkpoint.checkpoint",
    "FolderReader": "windlass.train.checkpoint.reader",
    "Preempted": "windlass.train.checkpoint.checkpoint",
}

__all__ = ["Checkpoint", "FolderReader", "Preempted"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    import importlib

    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'windlass.train.checkpoint' has no attribute '{name}'")
    return getattr(importlib.import_module(home), name)
