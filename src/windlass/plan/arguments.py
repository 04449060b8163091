"""Fills the run's folders into the words of a job: `$WINDLASS_CHECKPOINT_DIR` stands for the folder. Pure.

So a script that knows nothing of Windlass can be told by its own options where to write. No other name is filled in,
and no shell is asked: `$HOME` arrives as it was written.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping, Sequence
from typing import Any

from windlass.plan.plan import Note
from windlass.spec.job import Job

FILLED_IN = re.compile(r"WINDLASS_(CHECKPOINT_DIR|OUTPUT_DIR|DATA_[A-Z0-9_]+)")
_NAME = re.compile(r"\$(?:\{(WINDLASS_[A-Z0-9_]+)\}|(WINDLASS_[A-Z0-9_]+))")


def fill_in(words: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """The words with the folders in place of their names, `$NAME` or `${NAME}`; `env` has what the names stand for."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        return env[name] if FILLED_IN.fullmatch(name) and name in env else match[0]

    return [_NAME.sub(value, word) for word in words]


def left_over(words: Sequence[str], env: Mapping[str, str]) -> list[Note]:
    """What to know of names that look as if they would be filled in, and are not."""
    names = {match[1] or match[2] for word in words for match in _NAME.finditer(word)}
    known = sorted(f"${name}" for name in env if FILLED_IN.fullmatch(name))
    return [
        Note(
            "name-unknown", f"${name} stands in the job's words, and is not filled in", f"known are {', '.join(known)}"
        )
        for name in sorted(names)
        if not (FILLED_IN.fullmatch(name) and name in env)
    ]


def resume_request(job: Job, env: Mapping[str, str], code_dir: str) -> dict[str, Any]:
    """How an attempt goes on from what the script has saved by itself, for `worker/resume.py`.

    Empty where the job does not say.
    """
    if job.checkpoint.find is None:
        return {}
    [find] = fill_in([job.checkpoint.find], {name: glob.escape(value) for name, value in env.items()})
    folder = env["WINDLASS_CHECKPOINT_DIR"]
    request = {"find": find, "words": fill_in(job.resume_argv, env), "folder": folder, "code": code_dir}
    return {"resume": {**request, "own": [folder, env["WINDLASS_OUTPUT_DIR"]]}}
