"""GPUs of SageMaker's instance types for training."""

from __future__ import annotations

from typing import Final

from windlass.pricing.instances import instance_type, near_misses

OLD_GPUS: Final = {"p3.2xlarge": 1, "p3.8xlarge": 4, "p3.16xlarge": 8}
"""Of types that EC2 no longer lists, and SageMaker still starts."""


def num_gpus(kind: str) -> int | None:
    """GPUs of `ml.g5.12xlarge`; 0 for a type without any, None for one with Neuron devices or where it is not known."""
    plain = kind.removeprefix("ml.")
    if plain.startswith(("trn", "inf")) or "." not in plain:
        return None
    if (found := instance_type(kind)) is not None:
        return found.gpus
    if plain in OLD_GPUS:
        return OLD_GPUS[plain]
    return None if plain.startswith(("g", "p")) else 0


def misspelt(kind: str) -> str:
    """`did you mean g5.xlarge?` for a type that is not known, and most like one that is; empty for others."""
    is_known = instance_type(kind) is not None or kind.removeprefix("ml.") in OLD_GPUS
    return "" if is_known else near_misses(kind)
