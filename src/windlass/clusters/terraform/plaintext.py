"""Reads the errors that Terraform prints as text, for commands that have no JSON output (import, untaint, …)."""

from __future__ import annotations

import re
from typing import Final

from windlass.clusters.terraform.events import COLOR, Diagnostic

_BOX: Final = re.compile(r"^[│╷╵] ?", re.MULTILINE)
_HEAD: Final = re.compile(r"^(Error|Warning): (.*)$", re.MULTILINE)
_PLACE: Final = re.compile(r"^\s*(?:with (?P<address>\S+),)?\s*on (?P<file>\S+) line (?P<line>\d+)", re.MULTILINE)
_ADDRESS: Final = re.compile(r"^\s*with (?P<address>\S+),$", re.MULTILINE)


def text_diagnostics(text: str) -> list[Diagnostic]:
    """The diagnostics in the output of a command, in order."""
    plain = _BOX.sub("", COLOR.sub("", text))
    heads = list(_HEAD.finditer(plain))
    ends = [*(head.start() for head in heads), len(plain)][1:]
    return [_diagnostic(head[1], head[2], plain[head.end() : end]) for head, end in zip(heads, ends, strict=True)]


def _diagnostic(severity: str, summary: str, detail: str) -> Diagnostic:
    place, address = _PLACE.search(detail), _ADDRESS.search(detail)
    return Diagnostic(
        severity.lower(),
        summary.strip(),
        detail.strip(),
        address["address"] if address else "",
        place["file"] if place else "",
        int(place["line"]) if place else 0,
    )
