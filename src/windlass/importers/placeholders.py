"""Refuses manifests with unfilled placeholders, such as `${IMAGE_URI}` or `<account>`, and names each of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from windlass.errors import JobFileError, Problem
from windlass.importers.secret_words import is_blank
from windlass.importers.shell import SHELLS
from windlass.importers.source import STDIN, ImportSource, argument
from windlass.spec.names import looks_secret
from windlass.spec.positions import Path

_ENVSUBST: Final = re.compile(r"\$\{([A-Za-z_]\w*)\}|(?<![\w$])\$([A-Za-z_]\w*)")
_BRACED: Final = re.compile(r"\$\{[A-Za-z_]\w*\}")
_HELM: Final = re.compile(r"\{\{-?\s*([^{}]*?)\s*-?\}\}")
_BLANK: Final = re.compile(r"<([A-Za-z][\w .-]{0,38})>|\{([A-Z][A-Z0-9_]{2,})\}")
"""`<account>` and `{TAG}`, placeholders that documentation asks its readers to replace."""
_SCRIPT_ARGUMENTS: Final = ("command", "args")
_TEMPLATED: Final = frozenset(("data", "stringData", "annotations"))
"""Fields whose text other programs expand: files in a ConfigMap, templates in annotations."""
_OF_SHELLS: Final = frozenset(("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "HOME", "USER", "PWD"))
"""Not placeholders: authors expect a shell to expand these variables, and Kubernetes keeps them as text."""
_MOST: Final = 8


def refuse_placeholders(source: ImportSource) -> None:
    """Raises JobFileError, with each placeholder and its first line, if a manifest is a template."""
    found: dict[str, tuple[str, Path]] = {}
    for path, name, kind in _placeholders(source.value, ()):
        found.setdefault(name, (kind, path))
    if not found:
        return
    problems = [
        Problem(
            f"{source.where}:{source.line(path)}",
            source.spelled(path),
            f"{name} is a placeholder of {kind}",
            _hint(kind, found, source.where) if at == 0 else "",
        )
        for at, (name, (kind, path)) in enumerate(list(found.items())[:_MOST])
    ]
    if len(found) > _MOST:
        rest = ", ".join(list(found)[_MOST:])
        problems.append(Problem(source.where, "", f"and {len(found) - _MOST} more placeholders: {rest}"))
    raise JobFileError(problems)


def placeholders_of_text(text: str, where: str) -> list[Problem]:
    """Returns the placeholders in text that is not valid YAML because of them, each with its first line."""
    pattern, by = (_HELM, "Helm or Jinja") if _HELM.search(text) else (_BRACED, "envsubst")
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        for match in pattern.finditer("" if line.lstrip().startswith("#") else line):
            found.setdefault(match[0], number)
    hint = "render it first; a template of Helm: helm template . > manifest.yaml"
    if pattern is _BRACED:
        hint = _hint("envsubst", dict.fromkeys(found, ("envsubst", ())), where)
    names = list(found.items())
    problems = [
        Problem(f"{where}:{line}", "", f"{name} is a placeholder of {by}", "" if at else hint)
        for at, (name, line) in enumerate(names[:_MOST])
    ]
    if len(names) > _MOST:
        problems.append(Problem(where, "", f"and {len(names) - _MOST} more placeholders"))
    return problems


def _hint(kind: str, found: dict[str, tuple[str, Path]], where: str) -> str:
    if kind == "envsubst":
        names = [name.strip("${}") for name, (by, _) in found.items() if by == "envsubst"]
        given, named = " ".join(f"{name}=…" for name in names), " ".join(f"${{{name}}}" for name in names)
        source = "" if where == STDIN else f" < {argument(where)}"
        return f"fill them in first: export {given}; envsubst '{named}'{source} | windlass import -"
    if kind == "Helm":
        return "render it first: helm template . > manifest.yaml"
    return "write the value into the file"


def _placeholders(value: Any, path: Path, *, is_command: bool = False) -> Iterator[tuple[Path, str, str]]:
    """Yields path, name and kind of each placeholder below a value."""
    if isinstance(value, dict):
        container = _is_shell(value)
        for key, below in value.items():
            for match in _ENVSUBST.finditer(str(key)):  # `${GPU_RESOURCE}: 8`
                yield (*path, key), f"${{{match[1] or match[2]}}}", "envsubst"
            is_secret = key == "value" and is_blank(str(below)) and looks_secret(str(value.get("name")), "value")
            if key not in _TEMPLATED and not (container and key in _SCRIPT_ARGUMENTS) and not is_secret:
                yield from _placeholders(below, (*path, key), is_command=key in _SCRIPT_ARGUMENTS)
    elif isinstance(value, list):
        for place, below in enumerate(value):
            yield from _placeholders(below, (*path, place), is_command=is_command)
    elif isinstance(value, str) and "\n" not in value:
        for match in _HELM.finditer(value):
            yield path, match[0], "Helm"
        for match in _ENVSUBST.finditer(value):
            if (name := match[1] or match[2]) not in _OF_SHELLS:
                yield path, f"${{{name}}}", "envsubst"
        if not is_command:  # `<` and `{` are valid in the arguments of a program
            for match in _BLANK.finditer(_ENVSUBST.sub("", value)):
                yield path, match[0], "the page that it comes from"


def _is_shell(container: dict[str, Any]) -> bool:
    """Whether the command of a container is a shell script, which defines variables itself."""
    words = [word for key in _SCRIPT_ARGUMENTS for word in _listed(container.get(key))]
    return any(str(word).rpartition("/")[2] in SHELLS for word in words[:3])


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
