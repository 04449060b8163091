"""Warns of ranks that Hugging Face accelerate would let train alone: there is no GPU, and it is not told so. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final

from windlass.plan.plan import Note

if TYPE_CHECKING:
    from windlass.spec.job import Job

USE_CPU: Final = "ACCELERATE_USE_CPU"
"""Without it, and without a GPU, accelerate makes a process group and reduces nothing over it (accelerate/state.py)."""


def lone_ranks(
    job: Job, num_ranks: int, imports: Collection[str], env: Collection[str], *, no_gpus: str
) -> Iterator[Note]:
    """The warning, for ranks that find no GPU; `no_gpus` says why, and `env` has the names of their variables."""
    has_variables = job.launcher in ("torchrun", "pytorch")
    if num_ranks > 1 and has_variables and "accelerate" in imports and USE_CPU not in env:
        yield Note(
            "accelerate-alone", f"{no_gpus}, so accelerate lets each of the {num_ranks} ranks train alone",
            f"env: {{{USE_CPU}: 'true'}}; accelerate launch --cpu; or Accelerator(cpu=True) in the script",
        )  # fmt: skip
