"""Parses YAML text into plain values with the line of each, or into problems.

The reader consumes the events of the YAML parser and constructs no objects. So every value has a line, no code is
executed, and reading stops at a limit before a YAML bomb expands. Aliases are expanded only in documents of other
systems. Scalars follow YAML 1.2: `on` and `no` are text, `2024-01-01` is text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from windlass.errors import JobFileError, Problem
from windlass.spec.positions import Path, Positions, in_order, spell

MAX_CHARACTERS = 1024 * 1024
"""Maximum characters of a file, checked before parsing. A job file has a few hundred characters."""
MAX_VALUES = 20_000
"""Maximum number of values in a file, which limits the parse time of files within `MAX_CHARACTERS`."""
MAX_DEPTH = 12
"""Maximum nesting depth of a file; a job file needs a depth of five."""
MAX_FOREIGN_DEPTH = 40
"""Maximum nesting depth of manifests from other systems. Pod affinity in a TrainingRuntime in a `List` reaches depth
21."""

_FORBIDDEN = re.compile("[\0-\x08\v\f\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufeff\ufffe\uffff]")
_LONG_TAG = re.compile(r"(?:^|[\s\[{,])!\S{300}")
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_DIGITLESS = re.compile(r"[-+]?\.[iInN]")
_WORDS: Final = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_REFUSED: Final = object()
TEXTS: Final = ("env",)
"""Names of mappings whose values stay text, as written in the file: 1.10 must not become 1.1, nor 0644 become 644."""
FOREIGN_TEXTS: Final = ("env", "envs", "secrets", "data", "stringData")
"""Names of mappings in documents of other systems whose values stay text, as written in the file."""

FOREIGN_BOOLEANS: Final = (
    "hostNetwork",
    "hostPID",
    "hostIPC",
    "hostUsers",
    "shareProcessNamespace",
    "automountServiceAccountToken",
    "enableServiceLinks",
    "runAsNonRoot",
    "privileged",
    "allowPrivilegeEscalation",
    "readOnlyRootFilesystem",
    "readOnly",
    "optional",
)
"""Fields of pods for which kubectl, which reads YAML 1.1, takes an unquoted `yes` or `off` as a boolean."""
_BOOLEANS: Final = {"yes": True, "on": True, "no": False, "off": False}


def plain_scalar(text: str) -> Any:
    """Returns the value of an unquoted scalar in YAML 1.2 (core schema); a number of more than 400 characters
    is text.
    """
    if text in _WORDS:
        return _WORDS[text]
    if len(text) <= 400:
        if _INT.fullmatch(text):
            return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
        if _FLOAT.fullmatch(text):
            return float(text.replace(".", "") if _DIGITLESS.match(text) else text)
    return text


def read_yaml(text: str, where: str, hint: str, may_be_empty: bool = False) -> tuple[dict[str, Any], Positions]:
    """Parses a YAML mapping with the line of each value; `Positions.problems` contains the problems of omitted values.

    `hint` says how such a file begins. Raises `JobFileError` if the text is not one YAML mapping.
    """
    reader = _Reader(where)
    found = reader.read(text)
    value = found[0] if found else None
    if value is None and may_be_empty:
        value = {}
    if not isinstance(value, dict):
        if value is None:
            reader.problem(1, (), "the file is empty", hint)
        elif value is not _REFUSED:
            kind = "a list" if isinstance(value, list) else "one value"
            reader.problem(reader.marks[()][0], (), f"expected a mapping, found {kind}", hint)
        raise reader.error()
    return value, Positions(where, reader.marks, refused=frozenset(reader.refused), problems=tuple(reader.problems))


def read_documents(text: str, where: str) -> tuple[list[Any], dict[Path, int]]:
    """Parses the YAML documents of other systems, with the line of each value; each path begins with the document's
    index.

    As strict as `read_yaml`, but aliases and merged mappings (`<<`) are expanded. Raises JobFileError with all
    problems.
    """
    reader = _Reader(where, is_foreign=True)
    found = reader.read(text)
    if reader.problems:
        raise reader.error()
    return found, {path: line for path, (line, _) in reader.marks.items()}


def _refuse_strange(text: str, where: str) -> None:
    """Raises JobFileError, before parsing, for text that is too long or not YAML."""
    if len(text) > MAX_CHARACTERS:
        message = f"the file has {len(text)} characters; {MAX_CHARACTERS} are read at most"
        raise JobFileError([Problem(where, "", message, "is this the right file?")])
    text = text.removeprefix("\ufeff")
    if bad := _FORBIDDEN.search(text):
        line = text.count("\n", 0, bad.start()) + 1
        raise JobFileError([Problem(f"{where}:{line}", "", f"holds the character U+{ord(bad[0]):04X}, not YAML text")])
    if tag := _LONG_TAG.search(text):
        # Refused because the parser takes 15 s for a tag of a megabyte; tags have no effect anyway.
        line = text.count("\n", 0, tag.start() + 1) + 1
        raise JobFileError(
            [Problem(f"{where}:{line}", "", "a very long tag begins here, and only plain values are read")]
        )


def _events(text: str) -> Iterator[Any]:
    from ruamel.yaml import YAML

    return iter(YAML(typ="safe", pure=True).parse(text))


def _expanded(events: Iterator[Any]) -> Iterator[Any]:
    """Yields parser events, with each alias replaced by the events of the value that it refers to. An alias of an
    enclosing or unknown value is kept. The caller limits the number of values.
    """
    known: dict[str, list[Any]] = {}
    begun: list[tuple[int, str, list[Any]]] = []
    """Values with an anchor whose end is not reached: depth, anchor, and events so far."""
    depth = 0
    for event in events:
        kind = type(event).__name__
        if kind == "DocumentStartEvent":
            known = {}
        anchor = str(getattr(event, "anchor", None) or "")
        if anchor and kind != "AliasEvent":
            begun.append((depth, anchor, []))
        depth += kind.endswith("StartEvent") - kind.endswith("EndEvent")
        for one in known.get(anchor, [event]) if kind == "AliasEvent" else [event]:
            for _, _, kept in begun:
                kept.append(one)
            yield one
        while begun and begun[-1][0] == depth:
            _, name, kept = begun.pop()
            known[name] = kept


class _Reader:
    """Builds values from parser events, and collects their lines and problems."""

    def __init__(self, where: str, *, is_foreign: bool = False) -> None:
        self.where = where
        self.is_foreign = is_foreign
        """Whether the file is of another system. Such a file may have several documents, and paths begin with the index
        of the document."""
        self.max_depth = MAX_FOREIGN_DEPTH if is_foreign else MAX_DEPTH
        self.texts_below = FOREIGN_TEXTS if is_foreign else TEXTS
        self.marks: dict[Path, tuple[int, int]] = {}
        self.refused: set[Path] = set()
        self.problems: list[tuple[int, Problem]] = []
        self.count = 0

    def problem(self, line: int, path: Path, message: str, hint: str = "") -> None:
        rank = self.marks[path][1] if path and path in self.marks else self.count
        shown = spell(path[1:] if self.is_foreign else path)
        self.problems.append((rank, Problem(f"{self.where}:{line}", shown, message, hint)))

    def stop(self, line: int, path: Path, message: str, hint: str = "") -> JobFileError:
        """Returns the error for a problem after which the rest of the file cannot be read."""
        self.problem(line, path, message, hint)
        return self.error()

    def read(self, text: str) -> list[Any]:
        """Returns the documents of a text, at most one unless `is_foreign`. Raises JobFileError for text that is not
        YAML.
        """
        _refuse_strange(text, self.where)
        text = text.removeprefix("\ufeff")
        try:
            events = _events(text)
            return self.documents(_expanded(events) if self.is_foreign else events)
        except JobFileError:
            raise
        except Exception as error:
            # For text that is not YAML, the parser raises its own errors, but also arbitrary exceptions caused by its
            # bugs.
            raise self.stop(_line_of(error), (), *_syntax(error, text)) from error

    def error(self) -> JobFileError:
        """Returns an error with all problems, in the order of the file."""
        return in_order(self.problems)

    def documents(self, events: Iterator[Any]) -> list[Any]:
        found: list[Any] = []
        for event in events:
            kind = type(event).__name__
            if kind == "DocumentStartEvent" and found and not self.is_foreign:
                line = event.start_mark.line + 1
                raise self.stop(line, (), "a second document begins here", "one file holds one document")
            if kind not in ("DocumentStartEvent", "StreamStartEvent", "StreamEndEvent", "DocumentEndEvent"):
                found.append(self.value(event, events, (len(found),) if self.is_foreign else ()))
        return found

    def value(self, event: Any, events: Iterator[Any], path: Path) -> Any:
        line = event.start_mark.line + 1
        self.marks.setdefault(path, (line, self.count))
        self.count += 1
        if self.count > MAX_VALUES:
            raise self.stop(line, (), f"the file has more than {MAX_VALUES} values", "is this the right file?")
        if len(path) > self.max_depth:
            raise self.stop(line, (), f"values are nested more than {self.max_depth} levels deep")
        kind = type(event).__name__
        if kind == "AliasEvent":
            what = "an alias of no value before it" if self.is_foreign else "an alias"
            return self.refuse(line, path, f"*{event.anchor[:40]} is {what}", "write the value out")
        tag = getattr(event, "tag", None)
        value: Any
        if kind == "MappingStartEvent":
            value = self.mapping(events, path)
        elif kind == "SequenceStartEvent":
            value = self.sequence(events, path)
        else:
            value = plain_scalar(event.value) if event.implicit[0] and tag is None else event.value
            is_text = len(path) > 1 and path[-2] in self.texts_below
            if is_text and isinstance(value, int | float) and not isinstance(value, bool):
                value = event.value
            elif self.is_foreign and not is_text and event.implicit[0] and path[-1] in FOREIGN_BOOLEANS:
                value = _BOOLEANS.get(event.value.lower(), value)
        if tag is not None:
            return self.refuse(
                line, path, f"{tag[:60]} is a tag", "write the value without it, in quotes if it is text"
            )
        return value

    def refuse(self, line: int, path: Path, message: str, hint: str) -> Any:
        self.problem(line, path, f"{message}, and only plain values are read", hint)
        self.refused.add(path)
        return _REFUSED

    def sequence(self, events: Iterator[Any], path: Path) -> Any:
        values: list[Any] = []
        for event in events:
            if type(event).__name__ == "SequenceEndEvent":
                break
            values.append(self.value(event, events, (*path, len(values))))
        if any(value is _REFUSED for value in values):
            self.refused.add(path)
            return _REFUSED
        return values

    def mapping(self, events: Iterator[Any], path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        first_line: dict[str, int] = {}
        for event in events:
            if type(event).__name__ == "MappingEndEvent":
                break
            line = event.start_mark.line + 1
            if type(event).__name__ != "ScalarEvent" or event.tag is not None:
                raise self.stop(line, path, "a field name must be one word", "put a text with { [ * & or ! in quotes")
            key: str = event.value
            if key == "<<" and self.is_foreign and event.implicit[0]:
                merged = {**self.merged(next(events), events, path), **merged}
                continue
            here = (*path, key)
            if key in first_line:
                self.value(next(events), events, (*here, -1))
                self.problem(line, here, f"given twice, first in line {first_line[key]}", "leave one out")
                continue
            first_line[key] = line
            self.marks[here] = (line, self.count)
            value = self.value(next(events), events, here)
            if value is not _REFUSED:
                values[key] = value
        return {**merged, **values}

    def merged(self, event: Any, events: Iterator[Any], path: Path) -> dict[str, Any]:
        """Returns the fields merged from one mapping or from a list of mappings; earlier mappings take precedence."""
        line, value = event.start_mark.line + 1, self.value(event, events, path)
        several = value if isinstance(value, list) else [value]
        if value is not _REFUSED and not all(isinstance(one, dict) for one in several):
            self.refuse(line, path, "<< takes no mapping", "write its fields out")
        return {name: found for one in reversed(several) if isinstance(one, dict) for name, found in one.items()}


def _line_of(error: Exception) -> int:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    return int(mark.line) + 1 if mark is not None else 1


def _syntax(error: Exception, text: str) -> tuple[str, str]:
    """Returns the parser's message on one line, and a hint."""
    said = getattr(error, "problem", None) or getattr(error, "context", None) or type(error).__name__
    said = " ".join(str(said).split())[:120]
    lines = text.splitlines()
    line = lines[_line_of(error) - 1] if _line_of(error) <= len(lines) else ""
    hint = ""
    if r"\t" in said or "\t" in line[: len(line) - len(line.lstrip())]:
        hint = "indent with spaces, not with a tab"
    elif "mapping values are not allowed" in said:
        hint = "indent all fields alike, and put a value that holds ': ' in quotes"
    elif "could not find expected ':'" in said:
        hint = "write a field as `name: value`"
    return f"not YAML: {said if said.isprintable() else ascii(said)}", hint
