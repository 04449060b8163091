"""Refuses a job whose command or `setup` holds a token or a password, as text that a job file would keep."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from windlass.errors import JobFileError, Problem
from windlass.importers.draft import Draft
from windlass.spec.job import Job
from windlass.spec.names import has_secret

_ASSIGNED: Final = re.compile(r"(?<![\w$-])([A-Za-z_]\w*)=[\"']?([^\s\"'`;&|()<>$]+)")
_OPTION: Final = re.compile(r"(?<!\S)--?([A-Za-z][\w-]*)(?:=|\s+)[\"']?([\w./+=-]+)")
_LOGIN: Final = re.compile(r"\blogin\s+(?:--[\w-]+\s+)*()[\"']?([\w-]+)(?=[\"'\s;&|)]|$)")
_TOKEN: Final = re.compile(r"(?=.*\d)(?=.*[A-Za-z]).{16,}", re.DOTALL)
"""What a token looks like: `--eos-token END` has a value that is none."""


def refuse_secrets(job: Job, text: str, where: str) -> None:
    """Raises JobFileError, without the value, where `run`, `command` or `setup` of a job from `text` has a secret."""
    for field, said in (("run", job.run), ("command", " ".join(job.command or ())), ("setup", job.setup)):
        for value in _secrets(said or ""):
            found = text.find(value)
            line = f":{text.count(chr(10), 0, found) + 1}" if found >= 0 else ""
            message = "holds what looks like a secret, which a job file does not hold"
            hint = "write a variable in its place, such as $HF_TOKEN, import it again, and name it in secrets:"
            raise JobFileError([Problem(f"{where}{line}", field, message, hint)])


def _secrets(script: str) -> Iterator[str]:
    """The values in a command line or in a script of a shell that look like secrets."""
    for word in script.split():
        if has_secret(word):
            yield word.strip("\"'")
    for match in _ASSIGNED.finditer(script):
        if Draft.is_secret(match[1], match[2]):
            yield match[2]
    for match in (*_OPTION.finditer(script), *_LOGIN.finditer(script)):
        if _TOKEN.fullmatch(match[2]) and Draft.is_secret(match[1] or "token", match[2]):
            yield match[2]
