"""Writes plain data as YAML that parsers of versions 1.1 and 1.2 read as the same values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from windlass.spec.yamltext import plain_scalar

_PLAIN = re.compile(r"[A-Za-z/._](?:[\w/.+@=-]|:(?=[\w/.]))*(?: (?:[\w/.+@=-]|:(?=[\w/.]))+)*", re.ASCII)
_QUANTITY = re.compile(r"[1-9][0-9]*[A-Za-z]+(?:[0-9]+[a-z]+)*")
_OLD_WORDS = frozenset(("y", "n", "yes", "no", "on", "off"))
"""Words that are text in YAML 1.2 and booleans in YAML 1.1."""
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff\ufffe\uffff]|[^\x00-\uffff]")


def scalar(value: Any) -> str:
    """Formats one value for YAML 1.1 and 1.2; quotes text that would have another type in either version."""
    if not isinstance(value, str):
        return repr(int(value)) if isinstance(value, float) and value.is_integer() else json.dumps(value)
    is_plain = _PLAIN.fullmatch(value) or _QUANTITY.fullmatch(value)
    if is_plain and isinstance(plain_scalar(value), str) and value.lower() not in _OLD_WORDS:
        return value
    # A JSON string is also a YAML string, once characters are escaped that YAML does not allow.
    return _UNPRINTABLE.sub(_escape, json.dumps(value, ensure_ascii=False))


def block_lines(value: Any, indent: str = "") -> Iterator[str]:
    """Formats plain data as lines of YAML with the same values in versions 1.1 and 1.2."""
    if not value or not isinstance(value, Mapping | list | tuple):
        yield indent + _inline(value)
        return
    entries = value.items() if isinstance(value, Mapping) else ((None, one) for one in value)
    for key, one in entries:
        lead = f"{indent}- " if key is None else f"{indent}{scalar(key)}:"
        if isinstance(one, Mapping | list | tuple) and one:
            if key is not None:
                yield lead
                yield from block_lines(one, f"{indent}  ")
            else:  # the first line of a list entry follows the dash
                first, *rest = block_lines(one, f"{indent}  ")
                yield f"{lead}{first.lstrip(' ')}"
                yield from rest
        elif isinstance(one, str) and "\n" in one and _fits_block(one) and key is not None:
            yield f"{lead} |"
            yield from (f"{indent}  {line}" if line else "" for line in one[:-1].split("\n"))
        else:
            yield f"{lead}{'' if key is None else ' '}{_inline(one)}"


def literal(text: str, indent: str) -> list[str] | None:
    """Formats text of several lines as a block after `key: ` or `- `; None if only a quoted scalar preserves the
    text.
    """
    whole = text if text.endswith("\n") else f"{text}\n"
    if "\n" not in text.rstrip("\n") or not _fits_block(whole):
        return None
    lines = [f"{indent}{line}" if line else "" for line in whole[:-1].split("\n")]
    return ["|" if text.endswith("\n") else "|-", *lines]


def _inline(value: Any) -> str:
    return "{}" if isinstance(value, Mapping) else "[]" if isinstance(value, list | tuple) else scalar(value)


def _fits_block(text: str) -> bool:
    """Whether a block scalar preserves this text."""
    is_plain = all(line.isprintable() and line.isascii() for line in text.split("\n"))
    return is_plain and text.endswith("\n") and not text.endswith("\n\n") and not text.startswith((" ", "\n"))


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\U{code:08X}" if code > 0xFFFF else f"\\u{code:04X}"
