"""Parses Terraform output into typed events: JSON lines (`-json`), and text errors of commands without JSON.

Format: https://developer.hashicorp.com/terraform/internals/machine-readable-ui
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_BOX: Final = re.compile(r"^[│╷╵] ?", re.MULTILINE)
_HEAD: Final = re.compile(r"^(Error|Warning): (.*)$", re.MULTILINE)
_PLACE: Final = re.compile(r"^\s*(?:with (?P<address>\S+),)?\s*on (?P<file>\S+) line (?P<line>\d+)", re.MULTILINE)
_ADDRESS: Final = re.compile(r"^\s*with (?P<address>\S+),$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CommandStarted:
    """A Terraform command started."""

    command: str
    log: Path


@dataclass(frozen=True, slots=True)
class ResourceStarted:
    """Terraform started an operation on a resource; `action` is `create`, `update`, `delete`, `read` or `import`."""

    address: str
    action: str


@dataclass(frozen=True, slots=True)
class ResourceProgress:
    """An operation on a resource is still running (every 10 seconds)."""

    address: str
    action: str
    elapsed_seconds: float


@dataclass(frozen=True, slots=True)
class ResourceDone:
    """An operation on a resource finished as planned."""

    address: str
    action: str
    elapsed_seconds: float


@dataclass(frozen=True, slots=True)
class ResourceFailed:
    """An operation on a resource failed; a Diagnostic with its address follows."""

    address: str
    action: str


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """An error or a warning from Terraform or a provider."""

    severity: str
    """`error` or `warning`."""
    summary: str
    detail: str = ""
    address: str = ""
    """Address of the affected resource; empty for the configuration as a whole."""
    file: str = ""
    line: int = 0

    @property
    def is_error(self) -> bool:
        """Whether the diagnostic makes the command fail."""
        return self.severity == "error"

    @property
    def where(self) -> str:
        """Position in the configuration, such as `vpc.tf:12`; empty if Terraform reports none."""
        return f"{self.file}:{self.line}" if self.file else ""


@dataclass(frozen=True, slots=True)
class Counted:
    """Number of resources in a plan, or in a finished apply or destroy."""

    operation: str
    """`plan`, `apply` or `destroy`."""
    add: int
    change: int
    destroy: int


@dataclass(frozen=True, slots=True)
class TerraformNote:
    """A message from Terraform or Windlass, such as waiting for a lock, or stopping."""

    text: str


Event = (
    CommandStarted
    | ResourceStarted
    | ResourceProgress
    | ResourceDone
    | ResourceFailed
    | Diagnostic
    | Counted
    | TerraformNote
)
OnEvent = Callable[[Event], None]


def ignore(_event: Event) -> None:
    """Event callback for callers that show no progress."""


COLOR: Final = re.compile(r"\x1b\[[0-9;]*m")


def parse_line(line: str) -> Event | None:
    """Parses one line of output into an event; None for a line without an event.

    A line that is not JSON becomes a TerraformNote: Terraform prints panics and problems of its CLI configuration as
    text.
    """
    text = COLOR.sub("", line).strip()
    if not text:
        return None
    try:
        message = json.loads(text)
    except ValueError:
        return TerraformNote(text)
    if not isinstance(message, dict):
        return TerraformNote(text)
    parse = _PARSERS.get(str(message.get("type", "")))
    try:
        return parse(message) if parse else None
    except (KeyError, TypeError, ValueError, AttributeError):
        return TerraformNote(str(message.get("@message", text)))


def _started(message: Mapping[str, Any]) -> Event:
    return ResourceStarted(*_hook(message))


def _progress(message: Mapping[str, Any]) -> Event:
    return ResourceProgress(*_hook(message), _elapsed(message))


def _done(message: Mapping[str, Any]) -> Event:
    return ResourceDone(*_hook(message), _elapsed(message))


def _errored(message: Mapping[str, Any]) -> Event:
    return ResourceFailed(*_hook(message))


def _hook(message: Mapping[str, Any]) -> tuple[str, str]:
    return message["hook"]["resource"]["addr"], message["hook"]["action"]


def _elapsed(message: Mapping[str, Any]) -> float:
    return float(message["hook"].get("elapsed_seconds", 0))


def _diagnostic(message: Mapping[str, Any]) -> Event:
    found = message["diagnostic"]
    place = found.get("range") or {}
    return Diagnostic(
        severity=str(found.get("severity", "error")),
        summary=str(found.get("summary", "")),
        detail=str(found.get("detail", "")),
        address=str(found.get("address", "")),
        file=str(place.get("filename", "")),
        line=int((place.get("start") or {}).get("line", 0)),
    )


def _counted(message: Mapping[str, Any]) -> Event:
    changes = message["changes"]
    numbers = (int(changes.get(name, 0)) for name in ("add", "change", "remove"))
    return Counted(str(changes["operation"]), *numbers)


def _log(message: Mapping[str, Any]) -> Event:
    return TerraformNote(str(message["@message"]))


_PARSERS: Final[Mapping[str, Callable[[Mapping[str, Any]], Event]]] = {
    "apply_start": _started,
    "apply_progress": _progress,
    "apply_complete": _done,
    "apply_errored": _errored,
    "diagnostic": _diagnostic,
    "change_summary": _counted,
    "log": _log,
}


def text_diagnostics(text: str) -> list[Diagnostic]:
    """Parses the diagnostics in a command's text output, in order."""
    plain = _BOX.sub("", COLOR.sub("", text))
    heads = list(_HEAD.finditer(plain))
    ends = [*(head.start() for head in heads), len(plain)][1:]
    return [_text_diagnostic(head[1], head[2], plain[head.end() : end]) for head, end in zip(heads, ends, strict=True)]


def _text_diagnostic(severity: str, summary: str, detail: str) -> Diagnostic:
    place, address = _PLACE.search(detail), _ADDRESS.search(detail)
    return Diagnostic(
        severity.lower(),
        summary.strip(),
        detail.strip(),
        address["address"] if address else "",
        place["file"] if place else "",
        int(place["line"]) if place else 0,
    )
