"""Warns of ranks that a library would let train alone, since it is not told of the others. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final

from windlass.plan.plan import Note

if TYPE_CHECKING:
    from windlass.spec.job import Job

USE_CPU: Final = "ACCELERATE_USE_CPU"
"""Without it, and without a GPU, accelerate makes a process group and reduces nothing over it (accelerate/state.py)."""
OF_LAUNCHERS: Final = {
    "tensorflow": ("TF_CONFIG", "TF_CONFIG"),
    "jax": ("the address of rank 0", "JAX_COORDINATOR_ADDRESS"),
}
"""Libraries that have a launcher of their name, what it alone tells their ranks, and the variable with it."""
BY_OTHER_MEANS: Final = frozenset({"torch", "horovod", "mpi4py", "ray", "lightning", "pytorch_lightning"})
"""Modules of scripts whose ranks meet by these, whatever else they import."""


def lone_ranks(
    job: Job, num_ranks: int, imports: Collection[str], env: Collection[str], *, no_gpus: str
) -> Iterator[Note]:
    """The warnings. `no_gpus` says why ranks find no GPU, if they do not; `env` has the names of their variables."""
    if num_ranks == 1 or job.launcher not in ("torchrun", "pytorch"):
        return
    for library in sorted({"mpi4py", "horovod"} & set(imports)):
        yield Note(
            "mpi-alone",
            f"the script imports {library}, and launcher: {job.launcher} starts no MPI: each of the {num_ranks} ranks "
            "is alone in its world",
            "launcher: mpi",
        )
    if no_gpus and "accelerate" in imports and USE_CPU not in env:
        yield Note(
            "accelerate-alone",
            f"{no_gpus}, so accelerate lets each of the {num_ranks} ranks train alone",
            f"env: {{{USE_CPU}: 'true'}}; accelerate launch --cpu; or Accelerator(cpu=True) in the script",
        )
    for library, (needed, variable) in OF_LAUNCHERS.items():
        if library in imports and variable not in env and not BY_OTHER_MEANS & set(imports):
            yield Note(
                f"{library}-alone",
                f"the script uses {library}, and launcher: {job.launcher} does not give its ranks {needed}: each of "
                f"the {num_ranks} trains alone, unless the script finds its peers itself",
                f"launcher: {library}",
            )
