"""Notes of a plan, and those that every engine has: ranks that train alone, a time limit, missing packages. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from windlass.stores.gs_az import INSTALL

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


@dataclass(frozen=True, slots=True)
class Note:
    """Something to know before the run."""

    code: str
    """Stable name: `ranks-exceed-cores`."""
    message: str
    """What was asked and what was found."""
    fix: str
    """What the user can do about it; empty where there is nothing to do."""
    blocks: bool = False
    """Whether the plan cannot be carried out as it is."""


def blocker(code: str, message: str, fix: str) -> Note:
    """A note that blocks the plan."""
    return Note(code, message, fix, blocks=True)


def lone_ranks(
    job: Job, num_ranks: int, imports: Collection[str], env: Collection[str], *, no_gpus: str
) -> Iterator[Note]:
    """Warnings of ranks that a library lets train alone, because it does not know of the others.

    `no_gpus` says why ranks find no GPU, if they find none; `env` has the names of their variables.
    """
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


def time_limit(job: Job, saves_at_end: str) -> Iterator[Note]:
    """A warning of a time limit that ends a run before its script saves anything.

    `saves_at_end` is where the script saves for the first time, after its loops; else empty.
    """
    if job.timeout is not None and saves_at_end:
        yield Note(
            "timeout-unsaved",
            f"timeout: the script saves only after its loops have ended ({saves_at_end}), so that a run that reaches "
            f"the limit of {job.timeout:g} s leaves no result",
            "save in the loop too (windlass.train.Checkpoint also saves on SIGTERM), or raise timeout:",
        )


def image_notes(job: Job) -> Iterator[Note]:
    """A note on the package that the image of the job needs so that its ranks reach the stores that the job names."""
    if address := next(job.obstore_addresses(), ""):
        message = f"ranks access {address} with obstore, which the job's image must contain"
        yield Note("ranks-obstore", message, f"{INSTALL} in it, or by setup:")
