"""Replaces names such as `$WINDLASS_CHECKPOINT_DIR` and `$WINDLASS_LOCAL_RANK` in the arguments of a job. Pure.

A script that does not read Windlass's variables can thus get folders and ranks as command-line options. Folders are
inserted when the plan is made. `compose` inserts numbers of ranks and group sizes. `spec/runline.py` has inserted
variables of the job's `env` before.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from windlass.plan.environment import NUMBERS
from windlass.plan.notes import Note
from windlass.worker.protocol import ResumeSpec

if TYPE_CHECKING:
    from windlass.spec.job import Job

_SHELL = re.compile(r"(ba|da|z|k|a|fi|c|tc)?sh")
_FOLDER = re.compile(r"WINDLASS_(CHECKPOINT_DIR|OUTPUT_DIR|DATA_[A-Z0-9_]+)")
_NAME = re.compile(r"\$(?:\{(WINDLASS_[A-Z0-9_]+)\}|(WINDLASS_[A-Z0-9_]+))")


def fill_in(words: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Replaces `$NAME` and `${NAME}` in arguments by the values of these names."""
    return [_NAME.sub(lambda match: values.get(match[1] or match[2], match[0]), word) for word in words]


def folders_in(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that contain a folder of the run."""
    return {name: value for name, value in env.items() if _FOLDER.fullmatch(name)}


def script_arguments(job: Job, env: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the arguments of every rank: from `run` with folders inserted, or from `command` unchanged."""
    words = job.script_argv[1:] if job.script_kind == "program" else job.script_argv
    return tuple(words) if job.command is not None else tuple(fill_in(words, folders_in(env)))


def differ_by_rank(job: Job) -> bool:
    """Whether `run` contains the number of a rank or the size of the group, which `compose` inserts."""
    return job.command is None and any(name in NUMBERS for name in _names(job.script_argv))


def left_over(job: Job, env: Mapping[str, str]) -> list[Note]:
    """Returns notes on `$WINDLASS_…` names in the arguments that will not be replaced."""
    of_run, of_checkpoint = {*folders_in(env), *NUMBERS}, set(folders_in(env))
    in_run = () if job.run is None else job.script_argv
    in_checkpoint = (job.checkpoint.find or "", *job.resume_argv)
    notes = [
        Note(
            "name-unknown",
            f"${name} in the job's arguments is not replaced",
            f"known are {', '.join(f'${one}' for one in sorted(known))}",
            blocks=words is in_run,
        )
        for words, known in ((in_run, of_run), (in_checkpoint, of_checkpoint))
        for name in _names(words)
        if name not in known
    ]
    if job.command is None or any(_is_shell(word) for word in job.command):
        return notes
    for name in _names(job.command):
        fix = "write run: in place of command:, or " if name in of_run else ""
        text = f"${name} in command: reaches the program as it is written: no shell reads it"
        notes.append(Note("name-not-read", text, f"{fix}let a shell read it: command: [sh, -c, …]"))
    return notes


def hidden_launchers(job: Job) -> list[Note]:
    """Returns a note if the program of the ranks is torchrun or another launcher, or an interpreter whose ranks do not
    meet.
    """
    if job.script_kind != "program":
        return []
    # imported here to keep the start of supervisors fast
    from windlass.spec.commandline import hidden_launcher
    from windlass.spec.pythonline import interpreter_by_path

    if (name := hidden_launcher(job.script_argv)) is not None:
        text = f"each rank starts {name} itself: its processes share one log, and meet no process of another rank"
        fix = f"write its script in run: and its number of processes in procs_per_node:, or windlass run -- {name} …"
        return [Note("launcher-inside", text, fix)]
    is_meant = job.run is None or "launcher" in job.model_fields_set or (job.nodes.max == 1 and job.procs_per_node == 1)
    if is_meant or (python := interpreter_by_path(job.script_argv)) is None:
        return []
    path, script = python
    text = f"each rank starts {path} without the variables of torchrun: the ranks do not train together"
    fix = f"write python: {path} and run: {script}, or launcher: plain for separate processes"
    return [Note("interpreter-inside", text, fix)]


def _names(words: Sequence[str]) -> list[str]:
    return sorted({match[1] or match[2] for word in words for match in _NAME.finditer(word)})


def _is_shell(word: str) -> bool:
    return bool(_SHELL.fullmatch(word.rpartition("/")[2]))


def resume_spec(job: Job, env: Mapping[str, str], code_dir: str) -> ResumeSpec | None:
    """Returns how a script with its own checkpoints resumes; None for a job without `checkpoint.find`."""
    if job.checkpoint.find is None:
        return None
    [find] = fill_in([job.checkpoint.find], {name: glob.escape(value) for name, value in folders_in(env).items()})
    folder = env["WINDLASS_CHECKPOINT_DIR"]
    words = tuple(fill_in(job.resume_argv, folders_in(env)))
    return ResumeSpec(find, words, folder, code_dir, own=(folder, env["WINDLASS_OUTPUT_DIR"]))
