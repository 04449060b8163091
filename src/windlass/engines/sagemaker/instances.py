"""GPUs of SageMaker's instance types for training, as AWS published them in August 2026."""

from __future__ import annotations

from typing import Final

_GPUS: Final = {
    "g4dn": {"": 1, "12xlarge": 4, "16xlarge": 1},
    "g5": {"": 1, "12xlarge": 4, "24xlarge": 4, "48xlarge": 8},
    "g6": {"": 1, "12xlarge": 4, "24xlarge": 4, "48xlarge": 8},
    "g6e": {"": 1, "12xlarge": 4, "24xlarge": 4, "48xlarge": 8},
    "g7e": {"": 1, "12xlarge": 2, "24xlarge": 4, "48xlarge": 8},
    "p3": {"2xlarge": 1, "8xlarge": 4, "16xlarge": 8},
    "p3dn": {"24xlarge": 8},
    "p4d": {"24xlarge": 8},
    "p4de": {"24xlarge": 8},
    "p5": {"4xlarge": 1, "48xlarge": 8},
    "p5e": {"48xlarge": 8},
    "p5en": {"48xlarge": 8},
    "p6-b200": {"48xlarge": 8},
    "p6-b300": {"48xlarge": 8},
}
"""By family that has any, GPUs by size; those of sizes that are not named stand under the empty name."""
ACCELERATORS: Final = ("g", "p", "trn", "inf")


def num_gpus(kind: str) -> int | None:
    """GPUs of `ml.g5.12xlarge`; 0 for a type without any, None where that is not known."""
    _, _, rest = kind.partition("ml.")
    family, _, size = rest.partition(".")
    if family in _GPUS:
        return _GPUS[family].get(size, _GPUS[family].get(""))
    return None if not size or family.startswith(ACCELERATORS) else 0
