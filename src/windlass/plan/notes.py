"""Notes of a plan, and the notes of all engines: ranks that train alone, a time limit, missing packages. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from windlass.stores.gs_az import INSTALL

if TYPE_CHECKING:
    from windlass.spec.job import Job

USE_CPU: Final = "ACCELERATE_USE_CPU"
"""Variable that accelerate needs on machines without a GPU; without it, gradients are not reduced over the process
group (accelerate/state.py)."""
OF_LAUNCHERS: Final = {
    "tensorflow": ("TF_CONFIG", "TF_CONFIG"),
    "jax": ("the address of rank 0", "JAX_COORDINATOR_ADDRESS"),
}
"""Libraries with a launcher of the same name; for each, the information that only this launcher passes to ranks, and
the variable that holds it."""
BY_OTHER_MEANS: Final = frozenset({"torch", "horovod", "mpi4py", "ray", "lightning", "pytorch_lightning"})
"""Modules that connect the ranks of a script, whichever other modules the script imports."""


@dataclass(frozen=True, slots=True)
class Note:
    """A condition of a plan that the user should know before the run."""

    code: str
    """Stable name, such as `ranks-exceed-cores`."""
    message: str
    """The requested value and the value that was found."""
    fix: str
    """How the user can fix the condition; empty if there is nothing to do."""
    blocks: bool = False
    """Whether the condition prevents the run."""


def blocker(code: str, message: str, fix: str) -> Note:
    """Returns a note that prevents the run."""
    return Note(code, message, fix, blocks=True)


def lone_ranks(
    job: Job, num_ranks: int, imports: Collection[str], env: Collection[str], *, no_gpus: str
) -> Iterator[Note]:
    """Yields warnings about ranks that train alone because a library does not know of the other ranks.

    `no_gpus` is the reason why ranks find no GPU, or empty; `env` contains the names of the ranks' variables.
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
    """Yields a warning if a time limit may end the run before its script saves anything.

    `saves_at_end` is the line at which the script first saves, if it saves only after its loops; otherwise empty.
    """
    if job.timeout is not None and saves_at_end:
        yield Note(
            "timeout-unsaved",
            f"timeout: the script saves only after its loops have ended ({saves_at_end}), so that a run that reaches "
            f"the limit of {job.timeout:g} s leaves no result",
            "save in the loop too (windlass.train.Checkpoint also saves on SIGTERM), or raise timeout:",
        )


def image_notes(job: Job) -> Iterator[Note]:
    """Yields a note on the package that the job's image needs for access to the stores of the job."""
    if address := next(job.obstore_addresses(), ""):
        message = f"ranks access {address} with obstore, which the job's image must contain"
        yield Note("ranks-obstore", message, f"{INSTALL} in it, or by setup:")
