"""Turns lines of a node's events file into node events, and leaves out whatever does not have the shape of one.

A line may come from anywhere: a power cut leaves zeros and half a line, and in a pod every process can write to the
stream that the events travel in. What passes here may be recorded, compared and added up without another check.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

TOKEN: Final = "k"
"""The field by which the process of a pod marks its events; see `worker/pod.py`."""
MAX_BYTES: Final = 16 << 20
"""Stacks of all ranks of a node come to a few megabytes at most."""
MAX_DEPTH: Final = 24
MAX_WHOLE: Final = 2**63
"""Of whole numbers: what a column of the record can hold."""
MAX_AHEAD_SECONDS: Final = 86400.0
"""How far a node's clock may be ahead of ours: an event of the far future would hide all that come after it."""
ACTIONS: Final = ("saved", "restored", "refused", "failed", "skipped", "missing", "none-verified")

Check = Callable[[Any], bool]


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _one_of(*values: str) -> Check:
    return lambda value: isinstance(value, str) and value in values


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _mapping(needed: Mapping[str, Check], **known: Check) -> Check:
    def check(value: Any) -> bool:
        return (
            isinstance(value, dict)
            and all(name in value and is_well(value[name]) for name, is_well in needed.items())
            and all(is_well(value[name]) for name, is_well in known.items() if name in value)
        )

    return check


_FAILURE: Final = _mapping(
    {"rank": _is_whole, "exit_code": _is_whole, "at": _is_number, "tail": _is_text},
    traceback_at=_or_none(_is_number), ended_by_us=_is_flag,
)  # fmt: skip
_STACK: Final = _mapping({"rank": _is_whole, "state": _is_text, "stack": _is_text}, flight=_is_mapping)
_PROGRESS: Final = _mapping({}, message=_or_none(_is_text), metrics=_or_none(_is_mapping))
_DROPPED: Final = _mapping({"rank": _is_whole, "bytes": _is_whole, "lines": _is_whole})
_SHAPES: Final[Mapping[str, Check]] = {
    "node": _mapping({"pid": _is_whole, "start_ticks": _is_whole, "boot": _is_text, "start": _is_text}),
    "rank": _mapping({"rank": _is_whole}, pid=_is_whole, exit_code=_is_whole),
    "output": _mapping({}),
    "progress": _mapping({"progress": _PROGRESS}),
    "checkpoint": _mapping({"action": _one_of(*ACTIONS)}, rank=_is_whole, step=_or_none(_is_whole),
                           name=_or_none(_is_text)),
    "unreachable": _mapping({"nodes": _list_of(_is_whole)}),
    "failing": _mapping({}, rank=_is_whole, waited=_is_flag),
    "notice": _mapping({"source": _is_text, "action": _is_text}, time=_or_none(_is_text)),
    "warning": _mapping({"message": _is_text}, missing=_is_mapping, dropped=_DROPPED),
    "hang": _mapping({"ranks": _list_of(_STACK)}),
    "first-step": _mapping({}, rank=_is_whole, step=_or_none(_is_number)),
    "loss": _mapping({"rank": _is_whole}, step=_or_none(_is_number), last=_or_none(_is_mapping)),
    "alone": _mapping({"ranks": _list_of(_is_whole)}),
    "end": _mapping({"failures": _list_of(_FAILURE)}, ended_by=_is_text, facts=_is_mapping,
                    alone=_list_of(_is_whole)),
    "count": _mapping({"lines": _is_mapping, "attempt": _is_whole}),
}  # fmt: skip
"""What an event of each kind has to carry; more may be there. See the table in `worker/node.py`."""


def parse(line: bytes, now: float | None = None) -> dict[str, Any] | None:
    """The event in a line; None for what is none. Never raises.

    What no file or terminal takes, half characters, is replaced, and a number that no column holds becomes text.
    """
    if len(line) > MAX_BYTES:
        return None
    try:
        event = _cleaned(json.loads(line), MAX_DEPTH)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("kind"), str):
        return None
    at: Any = event.get("at")
    check = _SHAPES.get(event["kind"])
    if check is None or not _is_number(at) or not check(event):
        return None
    latest = (time.time() if now is None else now) + MAX_AHEAD_SECONDS
    return event if 0 <= float(at) <= latest else None


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The events in a file, of the node that the file is of, in order; none where it cannot be read."""
    sieve = Sieve()
    try:
        with open(path, "rb") as file:
            for line in file:
                event = sieve.take(line) if line.endswith(b"\n") else None
                if event is not None:
                    yield event
    except OSError:
        return


class Sieve:
    """Lets the events of one node through, and none that another process has written where they are read.

    The process of a pod makes up a token before any rank starts and puts it into each event, its first included. Those
    of nodes that do not (files of their own, earlier versions) are told by their shape alone. It keeps accidents out
    and no attacker: a process of the same user can read the memory of that of the pod.
    """

    def __init__(self) -> None:
        self.token: str | None = None
        self.num_ignored = 0
        """Lines that were no event of this node."""

    def take(self, line: bytes) -> dict[str, Any] | None:
        """The event in a line, without its token; None for what is none of this node's. Never raises."""
        event = parse(line)
        if event is None:
            self.num_ignored += bool(line.strip(b"\0 \r\n"))
            return None
        token = event.pop(TOKEN, None)
        if self.token is None and event["kind"] == "node" and isinstance(token, str):
            self.token = token
        if self.token is not None and token != self.token:
            self.num_ignored += 1
            return None
        return event


def _cleaned(value: Any, depth: int) -> Any:
    """The value as the record can keep it: an event is not lost for one number in it that means nothing."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict | list) and depth == 0:
        return None
    if isinstance(value, dict):
        return {_cleaned(name, depth): _cleaned(one, depth - 1) for name, one in value.items()}
    if isinstance(value, list):
        return [_cleaned(one, depth - 1) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # as the worker itself writes it
    if _is_whole(value) and not -MAX_WHOLE <= value < MAX_WHOLE:
        return str(value)
    return value
