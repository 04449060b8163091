"""GPU counts of SageMaker's instance types for training."""

from __future__ import annotations

from typing import Final

from windlass.pricing.instances import instance_type, near_misses

OLD_GPUS: Final = {"p3.2xlarge": 1, "p3.8xlarge": 4, "p3.16xlarge": 8}
"""GPU counts of types that EC2 no longer lists but SageMaker still offers."""


def num_gpus(kind: str) -> int | None:
    """Returns the number of GPUs of a type such as `ml.g5.12xlarge`; None for types with Neuron devices and unknown GPU
    types.
    """
    plain = kind.removeprefix("ml.")
    if plain.startswith(("trn", "inf")) or "." not in plain:
        return None
    if (found := instance_type(kind)) is not None:
        return found.gpus
    if plain in OLD_GPUS:
        return OLD_GPUS[plain]
    return None if plain.startswith(("g", "p")) else 0


def misspelt(kind: str) -> str:
    """Returns a hint such as `did you mean g5.xlarge?` for an unknown type that resembles a known one; else ""."""
    is_known = instance_type(kind) is not None or kind.removeprefix("ml.") in OLD_GPUS
    return "" if is_known else near_misses(kind)
