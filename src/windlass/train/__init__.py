"""Public API for training scripts; it works the same under Windlass, under plain torchrun and without a launcher."""

from windlass.train.report import report
from windlass.train.stream import stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from windlass.train.checkpoint import Checkpoint
    from windlass.train.sampler import BatchSampler

__all__ = ["BatchSampler", "Checkpoint", "report", "stream"]


def __getattr__(name: str) -> "Any":
    """Imports a public name on first use, because `report` alone must not load the checkpoint modules (PEP 562)."""
    import importlib

    home = {"BatchSampler": "sampler", "Checkpoint": "checkpoint"}.get(name)
    if home is None:
        raise AttributeError(f"module 'windlass.train' has no attribute '{name}'")
    return getattr(importlib.import_module(f"windlass.train.{home}"), name)


def __dir__() -> list[str]:
    """Returns the public names."""
    return sorted(__all__)
