"""Defines field types for names, labels, lines of text and environment variables, with their validators."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, StrictStr, WithJsonSchema
from pydantic_core import PydanticCustomError

from windlass.spec.positions import Path, found
from windlass.spec.problems import refuse, refuse_all
from windlass.spec.secret_text import SECRET_VALUE, URL_PASSWORD, has_secret

MAX_NAME = 40
"""Maximum length of a job name: names of Kubernetes objects have at most 63 characters, and add a suffix and a role."""
MAX_TEXT = 128 * 1024
"""Maximum bytes of one text: the Linux limit for a single argument or variable of a new process."""

_NAME = r"[a-z](?:[-a-z0-9]{0,38}[a-z0-9])?"
_DATA_NAME = r"[a-z][-_a-z0-9]{0,39}"
_ENV_NAME = r"[A-Za-z_][A-Za-z0-9_]{0,254}"
_LABEL = r"[A-Za-z0-9](?:[-._A-Za-z0-9]{0,251}[A-Za-z0-9])?"
_LABEL_KEY = r"(?:[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[-._A-Za-z0-9]{0,61}[A-Za-z0-9])?"
_LABEL_VALUE = r"(?:[A-Za-z0-9](?:[-._A-Za-z0-9]{0,61}[A-Za-z0-9])?)?"
_MODULE = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*"

CONTRACT_ENV = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")
"""Variables that Windlass sets for each rank, in addition to `WINDLASS_…`."""

_SECRET_NAME = re.compile(
    r"(?:^|_)(?P<sure>PASSWORD|PASSWD|PASSPHRASE|SECRET|SECRET_ACCESS_KEY|PRIVATE_KEY|CREDENTIALS?)$"
    r"|(?:^|_)(?:TOKEN|API_?KEY|ACCESS_KEY|SECRET_KEY|AUTH_KEY)$"
)


def legal_name(text: str) -> str:
    """Returns the nearest valid job name: `my-run-2-py` for `My Run/2.py`; `job` if no character is valid."""
    plain = unicodedata.normalize("NFKD", text[:400]).encode("ascii", "ignore").decode().lower()
    name = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    if name[:1].isdigit():
        name = f"job-{name}"
    return name[:MAX_NAME].rstrip("-") or "job"


def clean_text(text: str) -> str:
    """Checks that a text can be an argument or variable of a process: Unicode without NUL, at most `MAX_TEXT` bytes."""
    if "\0" in text:
        raise refuse("holds a NUL character")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise refuse("holds characters that are not Unicode text") from None
    if size > MAX_TEXT:
        raise refuse(f"is {size} bytes long; a process can be given {MAX_TEXT} at most")
    return text


def _line(text: str) -> str:
    """Checks that a text is one line, not empty, and without spaces at its ends."""
    clean_text(text)
    if not text.strip():
        raise refuse("is empty")
    if not text.isprintable():
        raise refuse(f"holds a line break or a control character: {found(text)}")
    if text != text.strip():
        raise refuse(f"begins or ends with a space: {found(text)}", f"write {text.strip()}")
    return text


def _secret_name(text: str) -> str:
    if re.fullmatch(_LABEL, text) and not SECRET_VALUE.search(text):
        return text
    # The message does not show the text, because the user may have written the secret in place of its name.
    raise refuse("is not a legal name", "write the name under which the target keeps the secret, never its value")


def _location(text: str) -> str:
    if URL_PASSWORD.match(text):
        raise refuse("holds a password inside the address", "take it out; give it to the target as a secret")
    scheme, is_url, rest = text.partition("://")
    if is_url and scheme != "file":
        bucket, *parts = rest.split("/")
        if not bucket:
            raise refuse(f"is {text}, which names no bucket", f"write {scheme}://BUCKET/PREFIX")
        if not {".", ".."}.isdisjoint(parts):
            raise refuse(f"is {text}, and a prefix has no . and no ..")
    return text


def location(text: str) -> str:
    """Checks the text of a folder or an address; for validators of fields that also accept a mapping."""
    return _location(_line(text))


def _no_spaces(text: str) -> str:
    if re.search(r"\s", text):
        raise refuse(f"holds a space: {found(text)}")
    return text


def _only_list(given: object) -> object:
    """Refuses text, which would become a list of characters, and sets, which have no order."""
    if isinstance(given, list | tuple):
        return given
    is_word = isinstance(given, str) and re.fullmatch(r"[\w./-]{1,40}", given)
    hint = (
        f"write [{given}]"
        if is_word
        else "a list is written in brackets: [ITEM, …]"
        if isinstance(given, Mapping)
        else ""
    )
    raise refuse(f"expected a list, found {'text' if isinstance(given, str) else found(given)}", hint)


def _pattern(pattern: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": f"^{pattern}$"})


def matching(pattern: str, what: str, hint: str | Callable[[str], str] = "") -> AfterValidator:
    """Returns a validator that refuses text that does not match; the error says that the text is not `what`, and
    `hint`.
    """

    def check(text: str) -> str:
        if re.fullmatch(pattern, text):
            return text
        raise refuse(f"{found(text)} is not {what}", hint if isinstance(hint, str) else hint(text))

    return AfterValidator(check)


Text = Annotated[StrictStr, AfterValidator(clean_text)]
Line = Annotated[StrictStr, AfterValidator(_line), WithJsonSchema({"type": "string", "minLength": 1})]
Name = Annotated[
    StrictStr,
    _pattern(_NAME),
    matching(
        _NAME,
        f"a legal name: a name is at most {MAX_NAME} lower-case letters, digits and '-', and begins with a letter",
        lambda text: f"try {legal_name(text)}",
    ),
]
DataName = Annotated[
    StrictStr,
    _pattern(_DATA_NAME),
    matching(
        _DATA_NAME,
        "a legal name: it has lower-case letters, digits, '-' and '_', and begins with a letter",
        lambda text: f"try {legal_name(text)}",
    ),
]
SecretName = Annotated[StrictStr, AfterValidator(_secret_name), _pattern(_LABEL)]
Label = Annotated[
    StrictStr,
    _pattern(_LABEL),
    matching(_LABEL, "a legal name: it has letters, digits, '-', '_' and '.', no spaces or slashes"),
]
LabelKey = Annotated[
    StrictStr,
    _pattern(_LABEL_KEY),
    matching(_LABEL_KEY, "the name of a label", "write for example team or example.com/team"),
]
LabelValue = Annotated[
    StrictStr,
    _pattern(_LABEL_VALUE),
    matching(_LABEL_VALUE, "the value of a label: it has 63 letters, digits, '-', '_' and '.' at most"),
]
Module = Annotated[
    StrictStr,
    _pattern(_MODULE),
    matching(_MODULE, "the name of a Python module", "write for example torch or my_package.models"),
]
Location = Annotated[Line, AfterValidator(_location)]
Word = Annotated[Line, AfterValidator(_no_spaces)]
OnlyList = BeforeValidator(_only_list)


def check_env(given: Any) -> Any:
    """Checks environment variables. Raises one error for all invalid variables, which shows no values."""
    if not isinstance(given, Mapping):
        raise refuse(f"expected a mapping, found {found(given)}", "write for example {NCCL_DEBUG: WARN}")
    checked: dict[str, str] = {}
    errors: list[tuple[Path, PydanticCustomError]] = []
    for name, value in given.items():
        try:
            checked[_env_name(name)] = _env_value(name, value)
        except PydanticCustomError as error:
            errors.append(((str(name),), error))
    if errors:
        raise refuse_all(errors)
    return checked


def _env_name(name: object) -> str:
    if not isinstance(name, str) or not re.fullmatch(_ENV_NAME, name):
        raise refuse("not a name for a variable", "letters, digits and '_', and no digit in front")
    if name in CONTRACT_ENV or name.startswith("WINDLASS_"):
        raise refuse("set by Windlass", "leave it out")
    return name


def _env_value(name: str, value: object) -> str:
    if isinstance(value, bool):
        raise refuse("expected text, found true or false", "quote it")
    if isinstance(value, int | float):
        return str(value)
    if not isinstance(value, str):
        raise refuse(f"expected text, found {found(value)}", 'write "" for an empty one' if value is None else "")
    clean_text(value)
    if looks_secret(name, value):
        raise refuse(
            "looks like a secret, which a job file does not hold", "use secrets: with a name that the target resolves"
        )
    return value


def looks_secret(name: str, value: str) -> bool:
    """Whether name and value of a variable suggest a secret; paths, flags and numbers are no secrets."""
    if SECRET_VALUE.search(value) or URL_PASSWORD.match(value):
        return True
    match = _SECRET_NAME.search(name.upper())
    if match is None or not value or value.startswith(("/", "./", "~/", "$")):
        return False
    return value.lower() not in ("true", "false", "none", "null") and (bool(match["sure"]) or not value.isdigit())


def is_surely_secret(name: str) -> bool:
    """Whether a variable with this name holds a secret whatever its value: PASSWORD, unlike API_KEY and TOKEN."""
    match = _SECRET_NAME.search(name.upper())
    return match is not None and match["sure"] is not None


def unfit_for_pods(given: object, path: Path = ()) -> Iterator[tuple[Path, str, str]]:
    """Yields path, message and hint for each value that no field of a pod may have: what looks like a secret, and
    values that JSON lacks. No message shows a value.
    """
    secret = "looks like a secret, which a job file does not hold", "use secrets:, or valueFrom"
    if isinstance(given, Mapping):
        name, value = given.get("name"), given.get("value")
        if isinstance(name, str) and isinstance(value, str) and looks_secret(name, value):
            yield path, *secret
            return
        for key, one in given.items():
            variable = re.sub(r"(?<=[a-z])(?=[A-Z])|\W", "_", str(key))
            if isinstance(one, str) and looks_secret(variable, one):
                yield (*path, str(key)), *secret
            else:
                yield from unfit_for_pods(one, (*path, str(key)))
    elif isinstance(given, list | tuple):
        for at, one in enumerate(given):
            yield from unfit_for_pods(one, (*path, at))
    elif isinstance(given, str) and has_secret(given):
        yield path, *secret
    elif isinstance(given, float) and not math.isfinite(given):
        yield path, f"expected a finite number, found {found(given)}", ""
    elif given is not None and not isinstance(given, str | int | float):
        yield path, f"expected a value that JSON has, found {found(given)}", "write text, a number, a list or a mapping"


Env = Annotated[
    dict[str, str],
    BeforeValidator(check_env),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {
                "pattern": f"^{_ENV_NAME}$",
                "not": {"anyOf": [{"enum": sorted(CONTRACT_ENV)}, {"pattern": "^WINDLASS_"}]},
            },
            "additionalProperties": {"type": ["string", "number"]},
        }
    ),
]
