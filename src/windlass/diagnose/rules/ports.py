"""Rule on a port that a rank cannot listen on because it is in use: names the process that holds the port."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from windlass.diagnose.observations import Observations
from windlass.diagnose.reading import LIBRARY, last_lines
from windlass.diagnose.verdict import Verdict
from windlass.worker.port_listeners import IN_USE
from windlass.worker.protocol import Listener

EPHEMERAL_FROM: Final = 32768
"""First ephemeral port (ip_local_port_range). Ports from here on were mostly chosen by the kernel, not by the rank."""
_SAID: Final = (
    re.compile(r"port:? ?(\d{2,5})\b", re.IGNORECASE),
    re.compile(r"\('[^']*', (\d{1,5})\)"),
    re.compile(r"(?:\d+\.\d+\.\d+\.\d+|localhost|\]|\*):(\d{2,5})\b"),
)
_WRITTEN: Final = re.compile(r"(?<![\w.])(\d{4,5})(?![\w.])")


def taken(case: Observations) -> Iterator[Verdict]:
    """Explains that a port is used by a process of the rank, another rank, Windlass (which reserves MASTER_PORT) or
    another program.
    """
    first = case.first
    if first is None:
        return
    error = case.raised
    said = f"{error.line}\n{error.message}" if error is not None else ""
    if error is None and case.signal is None:
        said = "\n".join(last_lines(case.text, 20))
    if not IN_USE.search(said):
        return
    held = case.host.reserved_port
    port = _wanted(case, said)
    evidence = [next(line for line in said.splitlines() if IN_USE.search(line))[:400]]
    evidence += [case.where] if case.where else []
    named = f"port {port}" if port else "a port"
    in_use = f"{named} that {case.who} wants to listen on is in use"
    if (child := _child(case, port)) is not None:
        summary = f"{in_use} by {child.name} (pid {child.pid}), which {case.who} has started"
        evidence.append(f"pid {child.pid} listened on port {port} at that moment, in the group of {case.who}")
        fix = "close the first socket, or end that process, before it listens again; or give them different ports"
    elif (sibling := _sibling(case, port)) is not None:
        rank, one = sibling
        summary = f"{in_use}: {case.name(rank)} listens on port {one.port}"
        evidence.append(f"{case.name(rank)} (pid {one.pid}) listened on port {one.port} at that moment")
        fix = "give each rank a port of its own (a base plus LOCAL_RANK), or let only one rank listen; port 0 takes any"
    elif held is not None and port == held:
        summary = f"{case.who} could not bind MASTER_PORT ({held}): Windlass keeps it for the process group"
        evidence.append("MASTER_PORT is held by a socket that is bound and does not listen; binding needs SO_REUSEADDR")
        fix = "launcher: plain leaves MASTER_PORT free; or let the script listen on port 0, or set SO_REUSEADDR"
    else:
        other = next((one for one in case.host.listeners if port and one.port == port), None)
        who = f"{other.name} (pid {other.pid})" if other and other.pid else "another program"
        summary = f"{in_use} by {who}"
        if port is None and held is not None:
            evidence.append(f"MASTER_PORT ({held}) is kept by Windlass: binding it needs SO_REUSEADDR")
        see = f"ss -ltnp 'sport = :{port}'" if port else "ss -ltnp"
        fix = f"let the script take MASTER_PORT as it is given, or port 0; see which process has it: {see}"
        fix += "; launcher: plain leaves MASTER_PORT free" if port is None and held is not None else ""
    yield Verdict("port-taken", summary, first.rank, tuple(evidence), fix, 94)


def _wanted(case: Observations, said: str) -> int | None:
    """Returns the port that the rank requested, from its error or the source lines of the traceback."""
    for pattern in _SAID:
        if match := pattern.search(said):
            return int(match[1])
    frames = case.raised.frames if case.raised is not None else ()
    sources = [case.sources.get(frame.key, "") for frame in reversed(frames) if not LIBRARY.search(frame.file)]
    held = case.host.reserved_port
    written = [int(number) for source in sources for number in _WRITTEN.findall(source)]
    known = {one.port for one in case.host.listeners} | {held}
    if likely := [number for number in written if number in known] or written:
        return likely[0]
    return held if held is not None and any("MASTER_PORT" in source for source in sources) else None


def _child(case: Observations, port: int | None) -> Listener | None:
    """Returns the process on this port that the rank itself has started."""
    own = next((one.pid for one in case.status.ranks if case.first is not None and one.rank == case.first.rank), None)
    mine = (one for one in case.host.listeners if one.port == port and own and one.group == own)
    return next((one for one in mine if one.pid not in (None, own)), None)


def _sibling(case: Observations, port: int | None) -> tuple[int, Listener] | None:
    """Returns the other rank that listens on this port. If the port is unknown, returns a rank that listens on a port
    of its choice.
    """
    ranks = {state.pid: state.rank for state in case.status.ranks if state.pid}
    assert case.first is not None
    for one in case.host.listeners:
        rank = ranks.get(one.group, ranks.get(one.pid) if one.pid else None)
        if rank is None or rank == case.first.rank:
            continue
        if one.port == port or (port is None and one.port < EPHEMERAL_FROM):
            return rank, one
    return None
