"""Finds the traceback that explains a failure in text that several processes may have written.

A rank may itself be a launcher (DeepSpeed, Lightning Fabric, accelerate, torchrun, Ray). Its output then contains the
interleaved tracebacks of its children, followed by the launcher's traceback, which only reports that a child failed.
The relevant error is the child's: neither the launcher's error, nor that of a child that lost its connection.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from windlass.worker.protocol import TRACEBACK

EXCEPTION = re.compile(
    r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning|Iteration)\b|[A-Za-z_]\w*(?:\.\w+)+:)"
)
_NAMED = re.compile(r"^(?!(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b)[A-Za-z_]\w*(?:\.(?:\w+|<locals>))*(?:: |:?$)")
"""Matches the line of a traceback, below the frames, that names the exception. The exception may have any class."""
_FRAME = re.compile(r'^\s+File "')
_IGNORED = re.compile(r"^(?:Exception ignored |--- Logging error ---)")
"""Matches the line before the traceback of an exception that did not end the process, such as an exception in a
`__del__` or in a call of `logging`."""
_OF_THREAD = re.compile(r"Exception in thread ")
_IN_GROUP = re.compile(r"[|+] +(?:Exception Group )?Traceback \(most recent call last\)")
_MARGIN = re.compile(r" +(?:(?P<rule>\+-[+-]*(?P<number> (?:\d+|\.\.\.) )?-+$)|[|+](?: |$))")
_GROUP_RULE = "-" * 16
_MEMBER = re.compile(rf"^{_GROUP_RULE} (\d+|\.\.\.) {_GROUP_RULE}$")
"""Matches the line that `_without_margins` writes before each exception of a group. `_GROUP_RULE` alone ends the
group."""
TRACEBACK_LINES = 60
MAX_GAP_LINES = 40
"""Maximum lines between the tracebacks of one failure. An exception further away was handled."""
MAX_LINE_CHARS = 4096
"""Characters of an exception's line that are compared with patterns whose time grows with the square of the length."""
ERROR_FILE_BYTES = 256 << 10
_STYLE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_=>c78])")
_PREFIX = re.compile(
    r"(?:\[rank\d+\]: ?|\[(?:default|trainer)\d+\]:|\[\d+(?:,\d+)?\]<std(?:err|out)>:|"
    r"\([^()\n]{1,80} pid=\d+[^()\n]{0,60}\) )+"
)
_CHAINED = re.compile(r"During handling of|was the direct cause of")
# A script that cannot be compiled never runs, so its error has a location but no traceback header.
_UNCOMPILED = re.compile(
    r'^  File ".*", line \d+\n(?:.*\n){0,4}?(?:SyntaxError|IndentationError|TabError): .*', re.MULTILINE
)
_VICTIM = re.compile(
    r"connection (?:was )?(?:closed|reset|refused)|closed by (?:remote )?peer|reset by peer|broken pipe|"
    r"socket (?:timeout|closed)|nccl.*(?:abort|remote|unhandled system error|watchdog)|"
    r"gloo.*(?:connect|closed|reset|timed out)|process group.*(?:abort|watchdog)|peer.*(?:gone|died|lost)|"
    r"horovod.*(?:shut ?down|has been shut down)|DistBackendError|DistNetworkError|MPI_ABORT",
    re.IGNORECASE,
)
_OWN = re.compile(
    r"EADDRINUSE|address already in use|NCCL error.*(?:invalid usage|invalid argument|unhandled cuda error)",
    re.IGNORECASE,
)
"""Network and NCCL errors that a rank causes itself."""
_OF_ANY_CONNECTION = re.compile(
    r"(?:\w+\.)*(?:Connection(?:Reset|Refused|Aborted)?Error|BrokenPipeError|URLError|ConnectError|ReadError|"
    r"ProtocolError|OSError)\b"
)
LIBRARIES = r"/(?:torch/distributed|torch/autograd|horovod|mpi4py|deepspeed|jax|tensorflow)/"
"""Regular expression for paths of libraries through which ranks communicate."""
_OF_RANKS = re.compile(rf"{LIBRARIES}|/ray/|gloo|nccl", re.IGNORECASE)
"""Matches texts that show that an error belongs to a connection between ranks."""
_LATE = re.compile(r"timed? ?out|wait timeout", re.IGNORECASE)
_OF_LAUNCHER = re.compile(
    r"\b(?:ChildFailedError|SignalException|ProcessRaisedException|ProcessExitedException|CalledProcessError|"
    r"RayTaskError|RayActorError|ActorDiedError|WorkerCrashedError|TrainingFailedError|WorkerGroupError|TuneError|"
    r"(?:Base)?ExceptionGroup)\b|Horovod detected that one or more processes"
)
"""Matches exceptions that only report other exceptions: of another process, or of an exception group."""
_LAUNCHED = re.compile(
    r"ChildFailedError|sigkill_handler|exits with return code = -?\d|"
    r"Child process with PID \d+ terminated with code|RayTaskError|TrainingFailedError|WorkerGroupError|"
    r"(?:mpirun|prterun|mpiexec) (?:detected|noticed) that|Horovod detected that one or more processes|"
    r"returned non-zero exit status|^-- Process \d+ terminated with|process \d+ terminated with signal SIG",
    re.MULTILINE,
)
_ROOT_CAUSE = "Root Cause (first observed failure):"
_LAUNCHER_LOG = re.compile(
    r"^(?:[EWI]\d{4} .*torch/distributed/.*|.*failed \(exitcode: -?\d+\) local_rank: .*|"
    r".*Sending process \d+ closing signal .*)\n",
    re.MULTILINE,
)
_FIELD = r"^[ \t]*{}[ \t]*: ?(.*)$"
_ENDED = (
    re.compile(r"Child process with PID \d+ terminated with code (-\d+)"),
    re.compile(r"exits with return code = (-\d+)"),
    re.compile(r"process rank \d+ with PID \d+ on node \S+ exited on signal (\d+)"),
    re.compile(r"process \d+ terminated with signal (SIG[A-Z]+)"),
)


class Report(NamedTuple):
    """A traceback, including the exceptions that led to it."""

    stream: str
    """Prefix of the output lines of the process, such as `[rank1]:`."""
    first_line: int
    last_line: int
    trace: str
    line: str
    """Line of the traceback that names the exception."""
    is_of_thread: bool
    """Whether the exception ended a thread other than the main thread, and so did not end the process."""


def unstyled(text: str) -> str:
    """Removes terminal escape codes, such as colours, links and cursor movements."""
    return _STYLE.sub("", text) if "\x1b" in text else text


def traceback_of(text: str) -> str:
    """Returns the traceback that explains the failure, at most 60 lines; empty if the text contains none."""
    text = _without_margins(unstyled(text))
    found = _reports(text) if TRACEBACK in text else []
    if not found:
        uncompiled = _UNCOMPILED.search(text)
        return uncompiled[0] if uncompiled else ""
    found = _without_threads(found)
    last = max(found, key=lambda report: report.first_line)
    chosen = _first_of(found, _root_cause(text)) if is_launched(text) or _has_streams(found) else last.trace
    if child_code(text) and "ChildFailedError" in exception_line(chosen):
        uncompiled = _UNCOMPILED.search(_before_launcher(text))
        return uncompiled[0] if uncompiled else ""
    return _shortened(chosen)


def since_handled(text: str) -> str:
    """Removes handled exceptions from the output of a script that ended by `sys.exit`.

    An exception counts as handled if much output follows it. An exception in a thread, which does not end the process,
    counts as handled if any output other than progress follows it.
    """
    plain_text = _without_margins(unstyled(text))
    found = _reports(plain_text) if TRACEBACK in plain_text and not is_launched(plain_text) else []
    if not found:
        return text
    from windlass.worker.trainlogs import recognise  # imported here, because a supervisor does not need this module

    lines = plain_text.splitlines()
    end = max(report.last_line for report in found) + 1
    while end < len(lines) and lines[end].startswith((" ", "\t")):
        end += 1  # lines that continue the exception's message
    last = max(found, key=lambda report: report.last_line)
    said = [line for line in lines[end:] if line.strip()]
    is_over = last.is_of_thread and bool(said) and recognise(said[-1]) is None
    return "\n".join(lines[end:]) if is_over or len(lines) - end > MAX_GAP_LINES else text


def exception_line(trace: str) -> str:
    """Returns the line of a traceback that names the exception. If there are several, launchers' exceptions are ignored
    and the last one counts. For an exception group, returns the line of its first exception.
    """
    lines = [unprefixed(line) for line in trace.splitlines()]
    for found in (_names(lines), [at for at, line in enumerate(lines) if EXCEPTION.match(line)]):
        own = [at for at in found if not _OF_LAUNCHER.search(lines[at])]
        if own:
            return lines[own[-1]].strip()
    return next((lines[at].strip() for at in reversed(_names(lines))), "")


def message_of(trace: str, line: str) -> str:
    """Returns the message of the exception named in `line`, including continuation lines."""
    message = [line.partition(":")[2].strip()]
    for below in trace.rpartition(line)[2].strip("\n").splitlines():
        if TRACEBACK in below or _is_rule(below):
            break
        message.append(below)
    return "\n".join(message)


def unprefixed(line: str) -> str:
    """Removes the prefix that a launcher or torch has added to a line."""
    prefix = _PREFIX.match(line)
    return line[prefix.end() :] if prefix else line


def plain(text: str) -> str:
    """Removes escape codes, and the prefixes that launchers and torch add to lines."""
    return "\n".join(map(unprefixed, unstyled(text).split("\n")))


def is_launched(text: str) -> bool:
    """Whether the text contains a launcher's report that one of its processes failed."""
    return bool(_LAUNCHED.search(text))


def is_peer_error(line: str) -> bool:
    """Whether an exception only reports a lost connection to a peer, rather than an error of the rank itself."""
    line = line[:MAX_LINE_CHARS]
    return bool(_VICTIM.search(line)) and not _OWN.search(line)


def lacks_shared_memory(trace: str) -> bool:
    """Whether a traceback contains NCCL's error about /dev/shm, which is the rank's own: below a line that looks like
    a lost connection.
    """
    return "Error while creating shared memory segment" in trace


def is_other_connection(trace: str) -> bool:
    """Whether a traceback reports a lost connection to a server or another process, not to a rank.

    Tracebacks with libraries through which ranks communicate count as connections to ranks.
    """
    return bool(_OF_ANY_CONNECTION.match(exception_line(trace))) and not _OF_RANKS.search(trace)


def is_secondary(line: str) -> bool:
    """Whether an exception is usually the consequence of another exception."""
    return is_peer_error(line) or bool(_LATE.search(line) or _OF_LAUNCHER.search(line))


def child_signal(text: str) -> int:
    """Returns the number of the signal that ended the first failed process in a launcher's report; 0 if there
    is none.
    """
    import signal

    root = _root_cause(text)
    code = _field(root, "exitcode").partition(" ")[0] if root else ""
    found = [code] if code else [match[1] for match in (pattern.search(text) for pattern in _ENDED) if match]
    for word in found:
        if word.startswith("SIG"):
            return int(getattr(signal, word, 0))
        if (word.startswith("-") or not code) and (number := _number(word.lstrip("-"))):
            return number
    return 0


def child_code(text: str) -> int:
    """Returns the exit code of the first failed process in torchrun's report; 0 if there is none, or for a signal."""
    root = _root_cause(text)
    word = _field(root, "exitcode").partition(" ")[0] if root else ""
    return _number(word)


def _number(word: str) -> int:
    """Parses a printed number; 0 if the text is not a number."""
    return int(word) if word.isascii() and word.isdigit() and len(word) < 10 else 0


def own_words(text: str) -> str:
    """Returns the text without escape codes and prefixes, and without torchrun's report if it contains no traceback."""
    is_report = child_code(text) and not traceback_of(text)
    return _before_launcher(text) if is_report else plain(text)


def with_error_file(tail: str) -> str:
    """Appends the traceback in torchelastic's error file to a rank's last output, unless the output contains it."""
    root = _root_cause(tail)
    path = _field(root, "error_file").strip() if root else ""
    if not path.startswith("/"):
        return tail
    try:
        with open(path, "rb") as file:
            message = json.loads(file.read(ERROR_FILE_BYTES))["message"]
        trace = str(message["extraInfo"]["py_callstack"])
    except (OSError, ValueError, KeyError, TypeError):
        return tail
    line = exception_line(trace)
    return tail if not line or line in tail else f"{tail.rstrip()}\n\n{trace}"


# -- one text, several processes --------------------------------------------------------------------------------------


def _reports(text: str) -> list[Report]:
    """Returns all tracebacks in order of their first lines. Lines of different processes are not mixed in one
    traceback.
    """
    streams: dict[str, list[tuple[int, str]]] = {}
    for number, line in enumerate(text.splitlines()):
        prefix = _PREFIX.match(line)
        stream = prefix[0].rstrip() if prefix else ""
        streams.setdefault(stream, []).append((number, line[prefix.end() :] if prefix else line))
    found = [report for stream, lines in streams.items() for report in _reports_of(stream, lines)]
    return sorted(found, key=lambda report: report.first_line)


def _names(lines: list[str]) -> list[int]:
    """Returns the indices of the lines that name exceptions, one per traceback; in a group, only of the first
    exception.

    The name is in the first line below the frames. The message and notes follow it.
    """
    found: list[int] = []
    name: int | None = None  # index of the line that names the current traceback's exception
    is_other_member = False
    for at, line in enumerate(lines):
        if TRACEBACK in line:
            name = None
        elif member := _MEMBER.match(line):
            name, is_other_member = None, is_other_member or member[1] != "1"
        elif line == _GROUP_RULE:
            name, is_other_member = at, False
        elif name is None and (EXCEPTION.match(line) or _NAMED.match(line)):
            name = at
            if not is_other_member:
                found.append(at)
        elif name is not None and _FRAME.match(line) and found[-1:] == [name] and not EXCEPTION.match(lines[name]):
            name = None  # the line was unrelated, between two frames
            found.pop()
    return found


def _is_rule(line: str) -> bool:
    """Whether a line ends an exception of a group."""
    return line == _GROUP_RULE or bool(_MEMBER.match(line))


def _without_margins(text: str) -> str:
    """Removes the margins from tracebacks of exception groups, so that they look like other tracebacks."""
    if not _IN_GROUP.search(text):
        return text
    lines = []
    for line in text.split("\n"):
        prefix = _PREFIX.match(line)
        start = prefix.end() if prefix else 0
        margin = _MARGIN.match(line, start)
        if margin and margin["rule"]:
            number = margin["number"]
            line = line[:start] + (f"{_GROUP_RULE}{number}{_GROUP_RULE}" if number else _GROUP_RULE)
        elif margin:
            line = line[:start] + line[margin.end() :]
        lines.append(line)
    return "\n".join(lines)


def _reports_of(stream: str, lines: list[tuple[int, str]]) -> list[Report]:
    texts = [line for _, line in lines]
    starts = [at for at, line in enumerate(texts) if TRACEBACK in line]
    # An exception raised while another was handled is printed last, so a report starts with the first exception of the
    # chain.
    chains: list[list[int]] = []
    for at, start in enumerate(starts):
        if at and any(_CHAINED.search(line) or _MEMBER.match(line) for line in texts[starts[at - 1] : start]):
            chains[-1].append(start)
        else:
            chains.append([start])
    found = []
    for at, chain in enumerate(chains):
        before = texts[chain[0] - 1] if chain[0] else ""
        if _IGNORED.match(before):
            continue
        stop = chains[at + 1][0] if at + 1 < len(chains) else len(lines)
        stop = next((place for place in range(chain[-1], stop) if _IGNORED.match(texts[place])), stop)
        names = [chain[0] + place for place in _names(texts[chain[0] : stop])]
        if names and not _OF_LAUNCHER.search(texts[names[-1]]):
            end = names[-1]  # in a group, the report ends with the first exception
            stop = next((place for place in range(end, stop) if _is_rule(texts[place])), stop)
        else:
            # A launcher's message may contain the child's error, as the rest of the last traceback.
            ends = [place for place in range(chain[-1] + 1, stop) if EXCEPTION.match(texts[place])]
            own = [place for place in ends if not _OF_LAUNCHER.search(texts[place])] or ends
            end = (ends[-1] if at + 1 == len(chains) else own[0]) if ends else stop - 1
        trace = "\n".join(texts[chain[0] : min(stop, end + 6)]).rstrip()
        is_of_thread = _OF_THREAD.match(before) is not None
        found.append(Report(stream, lines[chain[0]][0], lines[end][0], trace, exception_line(trace), is_of_thread))
    return found


def _without_threads(found: list[Report]) -> list[Report]:
    """Removes the tracebacks of threads, unless the others are only launchers' reports of a failed process.

    A thread often fails after the main thread has, because the main thread has closed its queue or connection.
    """
    of_main = [report for report in found if not report.is_of_thread]
    return of_main if any(not _OF_LAUNCHER.search(report.line) for report in of_main) else found


def _first_of(found: list[Report], root: str) -> str:
    """Returns the root cause among tracebacks of several processes."""
    field = _field(root, "traceback") if root else ""
    if TRACEBACK in field:
        trace = "\n".join([field, *(line[2:] for line in root.partition(field)[2].splitlines()[1:])]).rstrip(" \n=")
        if _is_own(exception_line(trace), trace):
            return trace
    number = _field(root, "rank").partition(" ")[0] if root else ""
    own = [report for report in found if f"[rank{number}]:" in report.stream]
    if own and _is_own(own[-1].line, own[-1].trace):
        return own[-1].trace
    last = [found[-1]]
    for report in reversed(found[:-1]):
        if last[0].first_line - report.last_line > MAX_GAP_LINES:
            break
        last.insert(0, report)
    by_preference = (
        [report for report in last if report.line and _is_own(report.line, report.trace)],
        [report for report in last if report.line and not _OF_LAUNCHER.search(report.line)],
        last[-1:],
    )
    return next(reports[0].trace for reports in by_preference if reports)


def _is_own(line: str, trace: str) -> bool:
    """Whether a traceback, whose exception is named in `line`, reports an error of its own process."""
    return not is_secondary(line) or lacks_shared_memory(trace)


def _has_streams(found: list[Report]) -> bool:
    """Whether the tracebacks are from several processes, with different line prefixes."""
    return len({report.stream for report in found if report.stream}) > 1


def _root_cause(text: str) -> str:
    """Returns the first failure in the table that torchelastic's ChildFailedError prints; empty if there is
    no table.
    """
    _, found, part = text.rpartition(_ROOT_CAUSE)
    return part.partition("\n=====")[0] if found else ""


def _before_launcher(text: str) -> str:
    """Returns the output before the last traceback, without torchrun's log lines."""
    return _LAUNCHER_LOG.sub("", plain(text).rpartition(TRACEBACK)[0])


def _field(part: str, name: str) -> str:
    match = re.search(_FIELD.format(name), part, re.MULTILINE)
    return match[1] if match else ""


def _shortened(trace: str) -> str:
    lines = trace.splitlines()
    if len(lines) > TRACEBACK_LINES:
        half = TRACEBACK_LINES // 2
        lines = [*lines[:half], "  …", *lines[-half:]]
    return "\n".join(lines).rstrip()
