"""Reads the hyperparameters of a training job: the training toolkit's script, its launcher and its arguments."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from typing import Any, Final

from windlass.importers.draft import Draft
from windlass.importers.source import View

PREFIX: Final = "sagemaker_"
"""Prefix of hyperparameters that the toolkit reads itself."""
PROGRAM: Final = "sagemaker_program"
FOLDER: Final = "sagemaker_submit_directory"
TORCHRUN: Final = "sagemaker_torch_distributed_enabled"
MPI: Final = "sagemaker_mpi_enabled"
MPI_OPTIONS: Final = "sagemaker_mpi_custom_mpi_options"
MPI_PROCS: Final = "sagemaker_mpi_num_of_processes_per_host"
NOTED: Final = ("container_log_level", "job_name", "region", "instance_type", "enable_cloudwatch_metrics")
"""Hyperparameters of the toolkit, without their prefix, that do not affect training."""
SMDDP: Final = "sagemaker_distributed_dataparallel_enabled"


@dataclass
class Script:
    """The script that the toolkit starts on each host, with launcher and arguments."""

    program: str
    launcher: str = "python"
    """`python`, `torchrun` or `mpirun`."""
    procs: int | str | None = None
    arguments: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    """Additional options of mpirun."""

    def words(self, num_nodes: int) -> list[str]:
        """Returns the command line of each node, for this number of nodes."""
        if self.launcher == "mpirun":
            return ["mpirun", *self.options, "python", self.program, *self.arguments]
        if self.program.endswith(".sh"):
            return ["bash", self.program, *self.arguments]
        counted = [f"--nnodes={num_nodes}"] if self.launcher == "torchrun" else []
        return [self.launcher, *counted, self.program, *self.arguments]

    def read(self, view: View, draft: Draft) -> None:
        """Adds the hyperparameters as arguments, as the toolkit does: `--name value`, or `-n value`."""
        for name, value in view.items():
            if name.startswith(PREFIX):
                continue
            self.add(name, decoded(value.value), value, draft)

    def add(self, name: str, given: Any, view: View, draft: Draft) -> None:
        """Adds one argument; one that looks like a secret is reported without its value."""
        text = json.dumps(given) if isinstance(given, dict | list) else str(given)
        if draft.is_secret(name, text):
            draft.secret = draft.secret or view
            view.report(
                f"{name} looks like a secret, and its value is not carried", f"let the script read ${name.upper()}"
            )
            return
        view.take()
        self.arguments += [f"-{name}" if len(name) == 1 else f"--{name}", text]


def script_of_toolkit(view: View, draft: Draft) -> Script | None:
    """Returns the script that the training toolkit starts; None if no hyperparameter names one."""
    program = decoded(view.at(PROGRAM).value)
    if not isinstance(program, str) or not program:
        return None
    view.at(PROGRAM).take()
    script = Script(program)
    if _is_on(view.at(TORCHRUN)):
        script.launcher, script.procs = "torchrun", "auto"
    elif _is_on(view.at(MPI)):
        script.launcher, script.procs = "mpirun", _procs(view.at(MPI_PROCS))
        script.options = _options(view.at(MPI_OPTIONS))
    elif _is_on(view.at(SMDDP)):
        script.launcher, script.procs = "torchrun", "auto"
        view.at(SMDDP).remark(
            "SageMaker's own library of collectives", "torchrun with the script's backend starts here"
        )
    _settings(view)
    script.read(view, draft)
    return script


def _settings(view: View) -> None:
    """Reports the other settings of the toolkit."""
    folder = view.at(FOLDER)
    source = decoded(folder.value)
    if isinstance(source, str) and source.endswith(".tar.gz"):
        folder.report("the code, packed", f"aws s3 cp {source} - | tar xz copies it next to the job file")
    else:
        folder.report("the folder of the code", "put the script next to the job file, or set code: to its folder")
    for name, value in view.items():
        if name.removeprefix(PREFIX) in NOTED:
            value.report("what the SDK notes for itself, and Windlass sets", "nothing to do", is_handled=True)
        elif name.startswith(PREFIX) and name not in (PROGRAM, FOLDER, TORCHRUN, MPI, MPI_PROCS, MPI_OPTIONS, SMDDP):
            value.report("a setting of the training toolkit, which is not used here", "let the script do what it does")


def _is_on(view: View) -> bool:
    is_on = decoded(view.value) in (True, "true", "True")
    if view:
        view.take()
    return is_on


def _options(view: View) -> list[str]:
    """Returns options of mpirun; reports options that a shell could not split."""
    try:
        options = shlex.split(str(decoded(view.value) or ""))
    except ValueError:
        view.report("options of mpirun, whose quotes are not closed", "write them as env:, such as OMPI_MCA_btl")
        return []
    view.take()
    return options


def _procs(view: View) -> int | None:
    found = decoded(view.value)
    if isinstance(found, int) and not isinstance(found, bool):
        view.take()
        return found
    return None


def decoded(value: Any) -> Any:
    """Returns a hyperparameter as the script receives it: the SDK encodes hyperparameters as JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value
