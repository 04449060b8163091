"""Finds the root cause of failed ranks: one rank is the cause, the others are its victims.

When one rank fails, its peers fail a moment later in a collective, often with longer errors. Therefore a rank is a
victim if Windlass ended it, or if its output only reports a lost peer; of the other ranks, the earliest is the cause.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable

from windlass.worker.protocol import RankFailure, RootCause
from windlass.worker.tracebacks import (
    child_code,
    child_signal,
    exception_line,
    is_launched,
    is_other_connection,
    is_peer_error,
    is_secondary,
    lacks_shared_memory,
    own_words,
    traceback_of,
    unstyled,
)

_SIGNALS = {
    "SIGKILL": "killed (SIGKILL): by hand, or by the kernel for want of memory",
    "SIGSEGV": "segmentation fault in native code",
    "SIGABRT": "aborted in native code",
    "SIGBUS": "bus error: often a full /dev/shm",
    "SIGTERM": "ended by SIGTERM from outside",
    "SIGINT": "interrupted",
}
_DEATHS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)
"""Signals that show that a process crashed or was killed, rather than ended by its launcher."""
_OF_PROGRAM = (
    r"(?:(?:ModuleNotFound|Import|Syntax|Indentation|Tab|Name|UnboundLocal)Error|(?:[\w.]*\.)?UnknownFormat)\b|"
    r".*: error: (?:unrecognized arguments|argument |the following arguments are required|ambiguous option)"
)
"""Matches errors that depend only on the program, its packages, or a checkpoint of another version, and would recur."""
_TRANSIENT = (
    r"(?i)connection (?:was |has been |timed )?(?:refused|reset|aborted|out|closed|broken|lost|error)|"
    r"Connection\w{0,40}Error|"
    r"(?:not|n't|failed to|unable to|cannot) (?:\w+ )?(?:connect|resolve|reach|establish|acquire|be reserved)|"
    r"unreachable|no route to host|name resolution|name or service not known|time(?:d[ -]|-)?outs?\b|Timeout|"
    r"broken pipe|reset by peer|rendezvous|EADDRINUSE|address already in use|too many requests|rate.?limit|unavailable|"
    r"bad gateway|internal server error|\b(?:HTTP|status|error)\w*\W{1,3}(?:\w+\W)?(?:408|425|429|5\d\d)\b|\b429\b|"
    r"did not (?:answer|respond)|starting up|not (?:yet )?ready|"
    r"temporar(?:y|ily)|try again|retry|retries|\bbusy\b|locked|throttl|slow.?down|expired|\bSSL|"
    r"nccl|gloo|CUDA error|out of ?memory|MemoryError|can(?:no|')t allocate|cublas|cudnn|\bECC\b|\bXid\b|"
    r"input/output error|stale file handle|no space left|quota|transport endpoint|"
    r"\[Errno (?:4|5|11|12|16|28|10[0-9]|11[0-9]|12[12])\]"
)
"""Matches errors of the network, services, devices and disk space, which may not recur in the next attempt."""
_END_BYTES = 4096
_SHELL_SIGNALS = (128 + 4, 128 + 6, 128 + 7, 128 + 9, 128 + 11)
"""Exit codes with which a shell reports that a signal has ended its command."""


def first_cause(failures: Iterable[RankFailure]) -> RootCause | None:
    """Returns the root cause among the failed ranks; None if no rank failed."""
    failures = list(failures)
    if not failures:
        return None
    first = min(failures, key=_order)
    tail, trace = unstyled(first.tail), traceback_of(first.tail)
    line, number = exception_line(trace), launched_signal(tail)
    code = -number if number else child_code(tail) or first.exit_code
    code = 128 - code if code in _SHELL_SIGNALS else code
    has_own_error = bool(line) and is_launched(tail) and not is_secondary(line)
    failure = "signal" if code < 0 and not has_own_error else "exception" if line else "exit-code"
    return RootCause(
        _summary(first, trace),
        first.rank,
        first.exit_code,
        signal_name(first.exit_code),
        trace,
        tuple(sorted(one.rank for one in failures if one is not first and not one.not_started)),
        began_at(first),
        blames_peer=is_victim(first.exit_code, first.tail),
        transient=_is_transient(first.tail, trace),
        failure=failure,
        code=code,
    )


def failed_by_itself(failures: Iterable[RankFailure]) -> bool:
    """Whether the first rank marked its own failure before it was ended, and does not only report a lost peer.

    Such a failure takes precedence over time limits and hangs, which it may have caused in the other ranks.
    """
    first = min(failures, key=_order, default=None)
    return first is not None and first.marked and not first.ended_by_us and not is_victim(first.exit_code, first.tail)


def began_at(failure: RankFailure) -> float:
    """Returns when the rank began to fail, in Unix seconds: when its traceback arrived, which may be a second before
    its exit.
    """
    return failure.at if failure.traceback_at is None else min(failure.traceback_at, failure.at)


def signal_name(exit_code: int) -> str | None:
    """Returns the name of the signal that ended a process, such as `SIGKILL` for −9; None for other exit codes."""
    if exit_code >= 0:
        return None
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


def death_of(exit_code: int) -> str:
    """Describes how a process with this exit code ended."""
    name = signal_name(exit_code)
    return f"exit code {exit_code}" if name is None else _SIGNALS.get(name, f"killed by {name}")


def _order(failure: RankFailure) -> tuple[bool, bool, bool, bool, float]:
    code, tail = failure.exit_code, failure.tail
    return failure.not_started, failure.ended_by_us, is_victim(code, tail), lost_peer(code, tail), began_at(failure)


def is_victim(exit_code: int | None, output: str) -> bool:
    """Whether the end of a rank's output only reports a lost peer. Ranks killed by signals print no such report."""
    tail = unstyled(output)
    trace = traceback_of(tail)
    if line := exception_line(trace):
        is_own = lacks_shared_memory(trace) or (is_launched(tail) and child_signal(tail) in _DEATHS)
        return is_peer_error(line) and not is_own
    return exit_code == -signal.SIGABRT and is_peer_error(tail[-4096:])


def lost_peer(exit_code: int | None, output: str) -> bool:
    """Whether a rank reports a lost connection to another rank, rather than to a server."""
    return is_victim(exit_code, output) and not is_other_connection(traceback_of(output))


def launched_signal(text: str) -> int:
    """Returns the signal that killed the first failed child in a launcher's report; 0 if the child has reported an
    error.
    """
    line = exception_line(traceback_of(text))
    number = child_signal(text) if is_launched(text) else 0
    return number if number in _DEATHS and (not line or is_secondary(line)) else 0


def _is_transient(tail: str, trace: str) -> bool:
    """Whether the error that ended a rank may not recur in another attempt, judged by its messages."""
    text = trace or own_words(tail)[-_END_BYTES:]
    line = exception_line(trace) or (text.strip().splitlines() or [""])[-1]
    if re.match(_OF_PROGRAM, line):
        return False
    if "CalledProcessError" in line and (words := own_words(tail.replace(trace, "")).strip()[-_END_BYTES:]):
        # The error reports the failure of another program, so the output of that program counts.
        is_of_program = any(re.match(_OF_PROGRAM, one) for one in words.splitlines())
        return not is_of_program and bool(re.search(_TRANSIENT, words))
    messages = [line for line in text.splitlines() if not (trace and line.startswith((" ", "\t")))]
    is_of_launcher = is_secondary(line) or (not trace and is_launched(text))
    return is_of_launcher or bool(re.search(_TRANSIENT, "\n".join(messages)))


def _summary(failure: RankFailure, trace: str) -> str:
    tail = unstyled(failure.tail)
    number = launched_signal(tail)
    code = -number if number else failure.exit_code
    line = exception_line(trace)
    if code < 0 and not (line and is_launched(tail) and not number):
        return death_of(code)
    if line:
        return line
    lines = [text for text in own_words(tail).splitlines() if text.strip()]
    last = ([text for text in lines if text.strip("-=*_#~ ")] or lines)[-1:]
    output = f"; its last line: {last[0].strip()[:200]}" if last else "; no output"
    return f"exit code {child_code(tail) or failure.exit_code}{output}"
