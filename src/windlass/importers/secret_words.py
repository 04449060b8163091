"""Refuses jobs whose `run`, `command`, `setup` or `kubernetes.pod` contains a token or a password in plain text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from windlass.errors import JobFileError, Problem
from windlass.importers.field_hints import secret_name
from windlass.spec.job import Job
from windlass.spec.names import is_surely_secret, looks_secret
from windlass.spec.secret_text import has_secret

USUAL: Final = "HF_TOKEN"
"""Variable to suggest if a script does not name the one that holds its secret."""
_ASSIGNED: Final = re.compile(r"(?<![\w$-])([A-Za-z_]\w*)=[\"']?([^\s\"'`;&|()<>$]+)")
_OPTION: Final = re.compile(
    r"(?<![^\s\"'])--?([A-Za-z][\w-]*)(?:=|[ \t]+(?:\\\n\s*)?)(?:\"([^\"]+)|'([^']+)|([^\s\"'`;&|()]+))"
)
_NO_SECRET: Final = re.compile(r"-.*|(?:~|\.{0,2})/.*|[\w./-]+\.(?:json|ya?ml|toml|ini|env|txt|pem|key|cfg)|.*\$.*")
"""An option, a path, or text with a variable."""
_LOGIN: Final = re.compile(r"\blogin\s+(?:--[\w-]+\s+)*[\"']?([\w-]+)(?=[\"'\s;&|)]|$)")
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
    """Raises JobFileError, without the value, if a command or a script of a job from `text` contains a secret."""
    scripts = [("run", job.run), ("command", " ".join(job.command or ())), ("setup", job.setup)]
    scripts += (("kubernetes.pod", script) for script in _texts(job.kubernetes.pod))
    for field, said in scripts:
        for variable, value in secrets_in(said or ""):
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


def _texts(given: Any) -> Iterator[str]:
    """Yields the texts of a pod template; a list of words, such as `command`, is one text."""
    if isinstance(given, str):
        yield given
    elif isinstance(given, Mapping):
        for one in given.values():
            yield from _texts(one)
    elif isinstance(given, list | tuple):
        yield " ".join(one for one in given if isinstance(one, str))
        for one in given:
            yield from () if isinstance(one, str) else _texts(one)


def secrets_in(script: str) -> Iterator[tuple[str, str]]:
    """Yields the values of a command line or shell script that look like secrets, each with its variable."""
    for word in script.split():
        if has_secret(word):
            named = _NAMED.match(word)
            yield (named[1] if named else "URL_PASSWORD" if "://" in word else USUAL), word.strip("\"'")
    for match in _ASSIGNED.finditer(script):
        is_called = script[match.end() : match.end() + 1] == "(" or _EXPRESSION.match(match[2])
        if not is_called and looks_secret(match[1], match[2]):
            yield match[1].upper(), match[2]
    for match in _OPTION.finditer(script):
        name, value = re.sub(r"\W", "_", match[1]), match[2] or match[3] or match[4]
        if looks_secret(name, value) and _is_secret_option(name, value):
            yield (_of_login(script, match) if name == "token" else name.upper()), value
    for match in _LOGIN.finditer(script):
        if _TOKEN.fullmatch(match[1]) and looks_secret("token", match[1]):
            yield _of_login(script, match), match[1]


def _is_secret_option(name: str, value: str) -> bool:
    """Whether the value of an option is the secret itself: any text for `--password`, a long one for `--token`."""
    if is_surely_secret(name):
        return not is_blank(value) and _NO_SECRET.fullmatch(value) is None
    return re.fullmatch(r"[\w./+=-]+", value) is not None and _TOKEN.fullmatch(value) is not None


def _of_login(script: str, match: re.Match[str]) -> str:
    """Returns the variable to suggest for a token given to a program."""
    return "WANDB_API_KEY" if script[: match.start()].endswith("wandb ") else USUAL
