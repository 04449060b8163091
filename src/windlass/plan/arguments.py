"""Replaces `$WINDLASS_CHECKPOINT_DIR` and the names of other folders in the arguments of a job. Pure.

So a script that knows nothing of Windlass can get its folders by its own options. No other name is replaced, and no
shell is involved: `$HOME` arrives as it was written.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from windlass.plan.plan import Note
from windlass.worker.protocol import ResumeSpec

if TYPE_CHECKING:
    from windlass.spec.job import Job

FILLED_IN = re.compile(r"WINDLASS_(CHECKPOINT_DIR|OUTPUT_DIR|DATA_[A-Z0-9_]+)")
_NAME = re.compile(r"\$(?:\{(WINDLASS_[A-Z0-9_]+)\}|(WINDLASS_[A-Z0-9_]+))")


def fill_in(words: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """The arguments with the folders in place of their names, `$NAME` or `${NAME}`; `env` has the folder of each."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        return env[name] if FILLED_IN.fullmatch(name) and name in env else match[0]

    return [_NAME.sub(value, word) for word in words]


def script_arguments(job: Job, env: Mapping[str, str]) -> tuple[str, ...]:
    """The arguments of every rank: of `run` with the folders filled in, of `command` as they are."""
    words = job.script_argv[1:] if job.script_kind == "program" else job.script_argv
    return tuple(words) if job.command is not None else tuple(fill_in(words, env))


def words_with_names(job: Job) -> list[str]:
    """All arguments of the job in which names are replaced."""
    return [*(() if job.run is None else job.script_argv), job.checkpoint.find or "", *job.resume_argv]


def left_over(words: Sequence[str], env: Mapping[str, str]) -> list[Note]:
    """Notes on names that look as if they would be replaced, and are not."""
    names = {match[1] or match[2] for word in words for match in _NAME.finditer(word)}
    known = sorted(f"${name}" for name in env if FILLED_IN.fullmatch(name))
    return [
        Note("name-unknown", f"${name} in the job's arguments is not replaced", f"known are {', '.join(known)}")
        for name in sorted(names)
        if not (FILLED_IN.fullmatch(name) and name in env)
    ]


def resume_spec(job: Job, env: Mapping[str, str], code_dir: str) -> ResumeSpec | None:
    """How a script that saves checkpoints for itself resumes; None where the job does not say."""
    if job.checkpoint.find is None:
        return None
    [find] = fill_in([job.checkpoint.find], {name: glob.escape(value) for name, value in env.items()})
    folder = env["WINDLASS_CHECKPOINT_DIR"]
    words = tuple(fill_in(job.resume_argv, env))
    return ResumeSpec(find, words, folder, code_dir, own=(folder, env["WINDLASS_OUTPUT_DIR"]))
