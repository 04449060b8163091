"""Sets the variables that Kubernetes operators set in their pods, for commands that use these variables."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final, Literal

from windlass.importers.shell import script_of

OperatorVariables = Literal["torchrun", "index"]
"""Variables that an operator sets in each pod: torchrun's options (PyTorchJob, TrainJob), or the index of a
Job's pod."""
RANKS_OF_A_NODE: Final = "PET_NPROC_PER_NODE"
VALUES: Final[dict[OperatorVariables, dict[str, str]]] = {
    "torchrun": {
        "PET_NNODES": '"$WINDLASS_NUM_NODES"',
        "PET_NODE_RANK": '"$WINDLASS_NODE_RANK"',
        "PET_MASTER_ADDR": '"$WINDLASS_MASTER_ADDR"',
        "PET_MASTER_PORT": '"$WINDLASS_MASTER_PORT"',
    },
    "index": {"JOB_COMPLETION_INDEX": '"$WINDLASS_NODE_RANK"'},
}
"""The value of each variable in a run of Windlass, in shell syntax."""
_OF_OPERATORS: Final = re.compile(r"\b(?:(?:PET|OMPI_COMM|VC)_[A-Z_0-9]+|JOB_COMPLETION_INDEX)\b")
_TORCHRUN: Final = re.compile(r"\b(?:torchrun|torch\.distributed\.(?:run|launch))\b")
_MEETS: Final = re.compile(r"--(?:rdzv|master)[-_](?:endpoint|addr)|--standalone\b")


def with_variables(
    command: Sequence[str], given: Sequence[OperatorVariables], ranks: int | str | None
) -> tuple[list[str], list[str], list[str]]:
    """Returns the command with the operator's variables that it uses set, their names, and the names of those that
    cannot be set.

    `given` is what the operator of the manifest sets; `ranks` is the number of ranks per node that it passes to
    torchrun.
    """
    text = " ".join(command)
    known = {name: value for one in given for name, value in VALUES[one].items()}
    if "torchrun" in given and ranks is not None:
        known[RANKS_OF_A_NODE] = shlex.quote(str(ranks))
    used = set(_OF_OPERATORS.findall(text))
    if "torchrun" in given and _TORCHRUN.search(text):
        used |= set() if _MEETS.search(text) else {*VALUES["torchrun"]}
        used |= set() if re.search(r"--nproc[-_]per[-_]node", text) or ranks is None else {RANKS_OF_A_NODE}
    names = [name for name in known if name in used]
    missing = sorted(used - {*names})
    if not names:
        return list(command), [], missing
    exports = "".join(f"export {name}={known[name]}\n" for name in names)
    script = script_of(command)
    if script is not None and command[-1] == script:
        return [*command[:-1], f"{exports}{script}"], names, missing
    return ["sh", "-c", f'{exports}exec "$0" "$@"', *command], names, missing
