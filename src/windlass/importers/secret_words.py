"""Refuses jobs whose `run`, `command` or `setup` contains a token or a password in plain text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from windlass.errors import JobFileError, Problem
from windlass.importers.field_hints import secret_name
from windlass.spec.job import Job
from windlass.spec.names import looks_secret
from windlass.spec.secret_text import has_secret

USUAL: Final = "HF_TOKEN"
"""Variable to suggest if a script does not name the one that holds its secret."""
_ASSIGNED: Final = re.compile(r"(?<![\w$-])([A-Za-z_]\w*)=[\"']?([^\s\"'`;&|()<>$]+)")
_OPTION: Final = re.compile(r"(?<!\S)--?([A-Za-z][\w-]*)(?:=|\s+)[\"']?([\w./+=-]+)")
_LOGIN: Final = re.compile(r"\blogin\s+(?:--[\w-]+\s+)*()[\"']?([\w-]+)(?=[\"'\s;&|)]|$)")
_NAMED: Final = re.compile(r"([A-Z][A-Z0-9_]*)=")
_EXPRESSION: Final = re.compile(r"[A-Za-z_][\w.]*\[")
"""`os.environ[` in a Python program."""
_BLANK: Final = re.compile(
    r"\$\w+|\$?\{[^{}]*\}|\[[^\]]*\]|<[^>]*>|(?:your|insert|replace|todo|change[-_ ]?me)[-_ \w]*|x{3,}|\.{3,}|…|\*{3,}",
    re.IGNORECASE,
)
"""Placeholders: `[YOUR-KEY]`, `<token>`, `your_api_key`, `xxx`."""
_TOKEN: Final = re.compile(r"(?=.*\d)(?=.*[A-Za-z]).{16,}", re.DOTALL)
"""Shape of a token, which excludes values such as END in `--eos-token END`."""


def is_blank(value: str) -> bool:
    """Whether the value of a secret is blank: empty, or a placeholder such as `[YOUR-KEY]`."""
    return not value or _BLANK.fullmatch(value) is not None


def refuse_secrets(job: Job, text: str, where: str) -> None:
    """Raises JobFileError, without the value, if `run`, `command` or `setup` of a job from `text` contains a secret."""
    for field, said in (("run", job.run), ("command", " ".join(job.command or ())), ("setup", job.setup)):
        for variable, value in _secrets(said or ""):
            found = text.find(value)
            line = f":{text.count(chr(10), 0, found) + 1}" if found >= 0 else ""
            message = "holds what looks like a secret, which a job file does not hold"
            if is_blank(value):
                message = f"gives {variable} a blank to be filled in with a secret, which a job file does not hold"
            hint = (
                f"write ${variable} in its place, or take it out; import it again, and add "
                f"secrets: [{secret_name(variable)}]"
            )
            raise JobFileError([Problem(f"{where}{line}", field, message, hint)])


def _secrets(script: str) -> Iterator[tuple[str, str]]:
    """Yields the values of a command line or shell script that look like secrets, each with its variable."""
    for word in script.split():
        if has_secret(word):
            named = _NAMED.match(word)
            yield (named[1] if named else "URL_PASSWORD" if "://" in word else USUAL), word.strip("\"'")
    for match in _ASSIGNED.finditer(script):
        is_called = script[match.end() : match.end() + 1] == "(" or _EXPRESSION.match(match[2])
        if not is_called and looks_secret(match[1], match[2]):
            yield match[1].upper(), match[2]
    for match in (*_OPTION.finditer(script), *_LOGIN.finditer(script)):
        name = re.sub(r"\W", "_", match[1] or "token")
        if _TOKEN.fullmatch(match[2]) and looks_secret(name, match[2]):
            variable = "WANDB_API_KEY" if script[: match.start()].endswith("wandb ") else USUAL
            yield (variable if not match[1] or name == "token" else name.upper()), match[2]
