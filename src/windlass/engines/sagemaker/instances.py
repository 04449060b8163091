"""GPUs of SageMaker's instance types for training."""

from __future__ import annotations

from windlass.pricing.instances import instance_type


def num_gpus(kind: str) -> int | None:
    """GPUs of `ml.g5.12xlarge`; 0 for a type without any, None for one with Neuron devices or where it is not known."""
    plain = kind.removeprefix("ml.")
    if plain.startswith(("trn", "inf")) or "." not in plain:
        return None
    if (found := instance_type(kind)) is not None:
        return found.gpus
    return None if plain.startswith(("g", "p")) else 0
