"""Replaces `$WINDLASS_CHECKPOINT_DIR`, `$WINDLASS_LOCAL_RANK` and names like them in the arguments of a job. Pure.

So a script that knows nothing of Windlass can get its folders and its rank by its own options. Folders are filled in
when the plan is made, the numbers of a rank and of the group by `compose`; the variables of the job's `env` are in the
words already: see `spec/runline.py`.
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
    """The arguments with these values in place of their names, `$NAME` or `${NAME}`."""
    return [_NAME.sub(lambda match: values.get(match[1] or match[2], match[0]), word) for word in words]


def folders_in(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that name a folder of the run."""
    return {name: value for name, value in env.items() if _FOLDER.fullmatch(name)}


def script_arguments(job: Job, env: Mapping[str, str]) -> tuple[str, ...]:
    """The arguments of every rank: of `run` with the folders filled in, of `command` as they are."""
    words = job.script_argv[1:] if job.script_kind == "program" else job.script_argv
    return tuple(words) if job.command is not None else tuple(fill_in(words, folders_in(env)))


def differ_by_rank(job: Job) -> bool:
    """Whether `run` names a number of the rank or of the group, which `compose` fills in."""
    return job.command is None and any(name in NUMBERS for name in _names(job.script_argv))


def left_over(job: Job, env: Mapping[str, str]) -> list[Note]:
    """Notes on names of Windlass in the arguments that look as if they would be replaced, and are not."""
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
    """A note on torchrun or another launcher that the ranks of a job would start as their program."""
    if job.script_kind != "program":
        return []
    from windlass.spec.commandline import hidden_launcher  # only here: supervisors import this module

    if (name := hidden_launcher(job.script_argv)) is None:
        return []
    text = f"each rank starts {name} itself: its processes share one log, and meet no process of another rank"
    fix = f"write its script in run: and its number of processes in procs_per_node:, or windlass run -- {name} …"
    return [Note("launcher-inside", text, fix)]


def _names(words: Sequence[str]) -> list[str]:
    return sorted({match[1] or match[2] for word in words for match in _NAME.finditer(word)})


def _is_shell(word: str) -> bool:
    return bool(_SHELL.fullmatch(word.rpartition("/")[2]))


def resume_spec(job: Job, env: Mapping[str, str], code_dir: str) -> ResumeSpec | None:
    """How a script that saves checkpoints for itself resumes; None where the job does not say."""
    if job.checkpoint.find is None:
        return None
    [find] = fill_in([job.checkpoint.find], {name: glob.escape(value) for name, value in folders_in(env).items()})
    folder = env["WINDLASS_CHECKPOINT_DIR"]
    words = tuple(fill_in(job.resume_argv, folders_in(env)))
    return ResumeSpec(find, words, folder, code_dir, own=(folder, env["WINDLASS_OUTPUT_DIR"]))
