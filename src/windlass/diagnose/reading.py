"""Parses tracebacks, faulthandler stacks and last lines from the output of a rank."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from windlass.worker.tracebacks import exception_line, message_of, plain, traceback_of

FRAME: Final = re.compile(
    r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d{1,9})(?:,)?(?: in (?P<name>.+))?$', re.MULTILINE
)
SECTION: Final = re.compile(r"^(?:Current thread|Thread|Stack) .*\(most recent call first\):$", re.MULTILINE)
THREAD: Final = re.compile(r"^thread (0x[0-9a-f]+)( \(daemon\))?: (.+)$", re.MULTILINE)
"""Line with identifier and name of a thread, which `worker/rank.py` adds to the stacks."""
FATAL: Final = re.compile(r"^Fatal Python error: ", re.MULTILINE)
WHAT: Final = re.compile(
    r"^terminate called after throwing an instance of '([^']+)'(?:\n\s+what\(\):\s*(.*))?", re.MULTILINE
)
OURS: Final = ("/windlass/worker/",)
LIBRARY: Final = re.compile(r"/(?:site|dist)-packages/|/lib/python3|^<")
COLLECTIVES: Final = frozenset({
    "all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_coalesced", "all_gather_into_tensor",
    "all_gather_object", "all_to_all", "all_to_all_single", "barrier", "monitored_barrier", "broadcast",
    "broadcast_object_list", "gather", "gather_object", "init_process_group", "new_group", "recv",
    "recv_object_list", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list", "send",
    "allreduce", "allgather", "alltoall", "reducescatter", "synchronize", "join",
})  # fmt: skip
"""Functions of torch.distributed and Horovod in which a rank waits for others."""
CALLED: Final = re.compile(
    r"\.(Allreduce|Allgatherv?|Alltoallv?|Barrier|Bcast|Gatherv?|Reduce|Scatterv?|Sendrecv|allreduce|bcast|wait|backward)\("
)
"""Matches a line that calls native code, which has no Python frames: a call of mpi4py, `wait()` of an asynchronous
collective, or `backward()`, in which DDP exchanges gradients."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stack."""

    file: str
    line: int
    name: str

    @property
    def place(self) -> str:
        """File and line, such as `train.py:12`; with the folder for a library's file."""
        path = PurePosixPath(self.file)
        return f"{path.name if not LIBRARY.search(self.file) else '/'.join(path.parts[-2:])}:{self.line}"

    @property
    def key(self) -> str:
        """Key of the frame's source line in `Observations.sources`."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception that ended a rank."""

    kind: str
    """Exception class without its module, such as `ValueError`."""
    message: str
    line: str
    """Exception line as printed."""
    frames: tuple[Frame, ...]
    """Frames, outermost first."""
    text: str
    """Full text of the traceback."""


def raised(tail: str) -> Raised | None:
    """Returns the exception that ended a rank, if its last output shows one."""
    trace = plain(traceback_of(tail))  # line prefixes are kept, because they distinguish the lines of several processes
    line = exception_line(trace)
    if not line:
        return None
    kind = line.partition(":")[0].strip().rpartition(".")[2]
    return Raised(kind, message_of(trace, line), line, frames(trace[: trace.rfind(line)]), trace)


def frames(text: str) -> tuple[Frame, ...]:
    """Returns the frames of a traceback or stack in order, without those of Windlass."""
    found = (
        Frame(match["file"], int(match["line"]), (match["name"] or "").strip()) for match in FRAME.finditer(plain(text))
    )
    return tuple(
        frame for frame in found if not any(part in frame.file for part in OURS) and "importlib" not in frame.file
    )


def main_stack(text: str) -> tuple[Frame, ...]:
    """Returns the stack of the main thread, which is the last of faulthandler's stacks; innermost frame first."""
    return frames(next(reversed(_sections(text)), ""))


@dataclass(frozen=True, slots=True)
class Kept:
    """Thread or handler that keeps the process of a rank alive after its script has ended."""

    by: str
    """Name for messages, such as `thread Thread-1`."""
    stack: tuple[Frame, ...]
    """Stack of the thread, innermost frame first."""


def kept_after_end(text: str) -> Kept | None:
    """Returns what keeps the process of a rank alive after its script has ended, according to its stacks; None if they
    do not show it.
    """
    sections = _sections(text)
    main = [
        Frame(found["file"], int(found["line"]), (found["name"] or "").strip())
        for found in FRAME.finditer(next(reversed(sections), ""))
        if found["name"] != "write_stacks"  # `write_stacks` is Windlass's signal handler
    ]
    at = next((n for n, one in enumerate(main) if one.name == "_finish" and one.file.endswith("/rank.py")), None)
    if at is None:
        return None
    if any(one.name == "_shutdown" and one.file.endswith("/threading.py") for one in main[:at]):
        names = {ident: name for ident, is_daemon, name in THREAD.findall(text) if not is_daemon}
        for section in sections[:-1]:
            ident = next(iter(re.findall(r"0x[0-9a-f]+", section.partition("\n")[0])), "")
            if ident in names:
                return Kept(f"thread {names[ident]}", frames(section))
        return Kept("a thread", ())
    handler = main[at - 1] if at else None
    if handler is not None and handler.name == "_exit_function" and "/multiprocessing/" in handler.file:
        return Kept("a child process that it has started (multiprocessing)", ())
    return Kept(f"exit handler {handler.name}" if handler else "its exit handlers", tuple(main[:at]))


def _sections(text: str) -> list[str]:
    """Splits faulthandler output into the stacks of its threads."""
    starts = [match.start() for match in SECTION.finditer(text)]
    return [text[start:end] for start, end in zip(starts, [*starts, len(text)][1:], strict=True)]


def own_frame(places: tuple[Frame, ...], code_dir: str, *, innermost_first: bool) -> Frame | None:
    """Returns the innermost frame in the script's own code."""
    ordered = places if innermost_first else tuple(reversed(places))
    inside = [frame for frame in ordered if not LIBRARY.search(frame.file)]
    below = [frame for frame in inside if code_dir and frame.file.startswith(code_dir)]
    return next(iter(below or inside or ordered), None)


def fatal_stack(tail: str) -> tuple[Frame, ...]:
    """Returns the stack of the crashed thread as written by faulthandler, innermost frame first."""
    matches = list(FATAL.finditer(tail))
    if not matches:
        return ()
    sections = _sections(tail[matches[-1].start() :])
    current = next((section for section in sections if section.startswith("Current")), "".join(sections[-1:]))
    return frames(current)


def collective(stack: tuple[Frame, ...], sources: Mapping[str, str]) -> str:
    """Returns the collective in which a stack (innermost frame first) waits; empty if the stack shows none."""
    found = ""
    for frame in stack:  # the outermost match counts, because all_gather_object calls all_gather
        in_library = "/torch/distributed/" in frame.file or "/horovod/" in frame.file
        if in_library and frame.name in COLLECTIVES:
            found = frame.name
        elif "/torch/autograd/" in frame.file and frame.name == "_engine_run_backward" and not found:
            found = "backward"
    if not found and stack and not LIBRARY.search(stack[0].file):
        called = CALLED.search(sources.get(stack[0].key, ""))
        found = called[1] if called else ""
    return found


def last_lines(text: str, number: int = 3) -> tuple[str, ...]:
    """Returns the last non-empty lines. Separator lines (`-----`) are skipped if there are others."""
    lines = tuple(line.strip()[:300] for line in text[-8192:].splitlines() if line.strip())
    return (tuple(line for line in lines if line.strip("-=*_#~ ")) or lines)[-number:]
