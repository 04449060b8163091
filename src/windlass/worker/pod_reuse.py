"""Reuses a pod whose ranks have failed for the next attempt: by files in its work folder.

| file | made by | means |
|---|---|---|
| `told-NUMBER` | the supervisor, before it sends this signal | the signal is its own, and not from a node shutdown |
| `stays` | the pod | it waits for the next attempt; an order removes it, so that the pod does not go |
| `next.json.gz` | the supervisor | the next attempt: the node's spec, as for a new pod |
| `first-ended-N` | the supervisor | the first pod of attempt N has succeeded: no pod needs its name any more |
| `released` | the supervisor | the signal is its own, and ends the pod; another one may mean that its node goes |
| `held` | the supervisor | until when the pod waits at least, in seconds of the machine's monotonic clock |
| `going` | the pod | it is deleted, or its node shuts down: it gives its outputs away, and takes no order |

A pod with outputs that come home waits too, also after a success, until the supervisor has them and ends it.

A supervisor makes requests of a pod (`carry_out`), by a command in the pod or over a connection (`order_client.py`):

| request | does |
|---|---|
| `signal ATTEMPT NUMBER` | signals the first process, if the pod has got no later attempt |
| `first-ended ATTEMPT` | reports that the first pod of the attempt has succeeded |
| `order BASE64 ATTEMPT` | gives the pod its next attempt, once it waits for it |
| `leave` | ends a pod that waits |
| `hold` | has a pod that waits do so for `OUTPUTS_SECONDS` from now on |
| `push-outputs POD ATTEMPT FOLDER` | has a pod that waits send a folder to the supervisor (`outputs.py`) |

Each may be repeated, since its answer may be lost: a second `order` of an attempt is taken already, a late `signal` is
for no later attempt, and a pod that does not wait leaves nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from binascii import a2b_base64
from collections.abc import Callable, Sequence

STAYS, NEXT, HELD, RELEASED, GOING = "stays", "next.json.gz", "held", "released", "going"
TOLD, FIRST_ENDED = "told-", "first-ended-"
PAUSE_SECONDS = 0.01
STILL_ENDING_SECONDS = 5.0
"""How long the process of a pod may take from the end of its node until it waits for the next attempt."""
OUTPUTS_SECONDS = 60.0
"""How long a pod with outputs waits for a request of its supervisor: its GPUs cost money."""
HANDLED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
TAKEN, NOT_TAKEN, UNKNOWN = 0, 3, 2
"""Exit codes: whether the pod waited for the next attempt and has it now; UNKNOWN for a request that is none."""


def wait(folder: str, seconds: float, is_leaving: Callable[[], bool]) -> str | None:
    """Wait in the pod for the next attempt; gives the file of its spec, or None where none came or the pod leaves."""
    path, stays = os.path.join(folder, NEXT), os.path.join(folder, STAYS)
    give_up = time.monotonic() + seconds
    _make(folder, STAYS)
    while not (is_leaving() or os.path.exists(path)) and time.monotonic() < max(give_up, _held_until(folder)):
        time.sleep(PAUSE_SECONDS)
    if not _remove(stays):  # `order` has removed it, and brings the attempt
        give_up = time.monotonic() + STILL_ENDING_SECONDS
        while not (is_leaving() or os.path.exists(path)) and time.monotonic() < give_up:
            time.sleep(PAUSE_SECONDS)
    return path if os.path.exists(path) and not is_leaving() else None


def hold(folder: str) -> int:
    """Have a pod that waits do so for `OUTPUTS_SECONDS` from now on, at least; returns `TAKEN`."""
    path = os.path.join(folder, HELD)
    part = f"{path}.{os.getpid()}"
    with open(part, "w") as file:
        file.write(str(time.monotonic() + OUTPUTS_SECONDS))
    os.rename(part, path)
    return TAKEN


def _held_until(folder: str) -> float:
    """Until when the supervisor wants the pod to wait, in monotonic seconds; 0 where it has not said."""
    try:
        with open(os.path.join(folder, HELD)) as file:
            return float(file.read())
    except (OSError, ValueError):
        return 0.0


def push_outputs(folder: str, pod: str, attempt: int, path: str) -> int:
    """Start to send a folder to the supervisor; returns `TAKEN`, or `NOT_TAKEN` where the pod does not wait."""
    if not _comes_to_wait(folder, STILL_ENDING_SECONDS):
        return NOT_TAKEN
    hold(folder)
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "outputs.py")
    words = [sys.executable, "-I", "-S", program, "push", folder, pod, str(attempt), path]
    os.posix_spawn(sys.executable, words, os.environ, setsigdef=[signal.SIGCHLD])
    return TAKEN


def block() -> None:
    """Block signals, also in the program that this process may execute."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)


def clear_mark(folder: str, number: int) -> bool:
    """Whether this signal was the supervisor's; removes the mark that shows it.

    Each signal has its own: two that come at once are handled one after the other.
    """
    return _remove(os.path.join(folder, f"{TOLD}{int(number)}"))


def clear_marks(folder: str) -> set[int]:
    """Remove the marks of all signals; gives the signals that had one."""
    return {int(number) for number in HANDLED_SIGNALS if clear_mark(folder, number)}


def refuse_orders(folder: str) -> None:
    """Take no further attempt: the pod is ended from outside, as soon as it has given its outputs away.

    Called by the handler of a signal, which must not raise an error.
    """
    with contextlib.suppress(OSError):  # the disk is full: an order is taken, and not carried out
        _make(folder, GOING)


def _make(folder: str, name: str) -> None:
    with open(os.path.join(folder, name), "w"):
        pass


def _remove(path: str) -> bool:
    """Remove a file; gives whether it was there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def taken(attempt: int) -> str:
    """The file of the spec of an attempt that the pod runs, or has run."""
    return f"attempt-{attempt}.json.gz"


def signal_first(
    folder: str, attempt: int, number: int, pid: int = 1, patience_seconds: float = STILL_ENDING_SECONDS
) -> int:
    """Signal the first process of a pod, and mark the signal as the supervisor's. A late one is for no later attempt.

    An order that the pod has not taken yet may be that of the attempt: only once it is taken can it be signalled.
    Needs no other function: where the code was not unpacked in the pod yet, a supervisor sends the text of this one.
    """
    give_up = time.monotonic() + patience_seconds
    while (is_ordered := NEXT in os.listdir(folder)) and time.monotonic() < give_up:
        time.sleep(PAUSE_SECONDS)
    # Read afterwards: an order that was taken meanwhile is among them.
    orders = [name[8:-8] for name in os.listdir(folder) if name.startswith("attempt-")]
    if not is_ordered and all(int(order) <= attempt for order in orders):
        open(os.path.join(folder, f"{TOLD}{int(number)}"), "w").close()
        os.kill(pid, number)
    return 0


def order(folder: str, data: bytes, attempt: int) -> int:
    """Give a pod its next attempt; gives `TAKEN` or `NOT_TAKEN`.

    Either the pod removes `stays`, and goes, or this does, and the pod waits for the attempt that follows.
    """
    path = os.path.join(folder, NEXT)
    if _is_ordered(folder, attempt):
        return TAKEN
    if _comes_to_wait(folder, STILL_ENDING_SECONDS) and not os.path.exists(os.path.join(folder, GOING)):
        part = f"{path}.{os.getpid()}"
        with open(part, "wb") as file:
            file.write(data)
        if _remove(os.path.join(folder, STAYS)):
            os.rename(part, path)
            return TAKEN
        os.unlink(part)
    return TAKEN if _is_ordered(folder, attempt) else NOT_TAKEN  # by the same order, given twice at once


def _is_ordered(folder: str, attempt: int) -> bool:
    """Whether the pod has got its attempt: given twice, it would run twice."""
    # In this order: the pod renames one to the other.
    return os.path.exists(os.path.join(folder, NEXT)) or os.path.exists(os.path.join(folder, taken(attempt)))


def leave(folder: str, pid: int = 1, patience_seconds: float = STILL_ENDING_SECONDS) -> int:
    """End a pod that waits for the next attempt; returns `TAKEN`, or `NOT_TAKEN` where it does not wait."""
    if not _comes_to_wait(folder, patience_seconds):
        return NOT_TAKEN
    clear_mark(folder, signal.SIGTERM)
    _make(folder, RELEASED)
    os.kill(pid, signal.SIGTERM)
    return TAKEN


def is_released(folder: str) -> bool:
    """Whether the supervisor has ended the pod."""
    return os.path.exists(os.path.join(folder, RELEASED))


def _comes_to_wait(folder: str, seconds: float) -> bool:
    """Whether the pod waits for the next attempt, or does within this time."""
    give_up = time.monotonic() + seconds
    while not os.path.exists(os.path.join(folder, STAYS)):
        if time.monotonic() > give_up:
            return False
        time.sleep(PAUSE_SECONDS)
    return True


def carry_out(folder: str, words: Sequence[str], pid: int = 1) -> int:
    """Carry out a request in the pod whose first process is `pid`; gives an exit code. Raises OSError, ValueError."""
    what, *of = words or [""]
    if what == "signal" and len(of) == 2:
        return signal_first(folder, int(of[0]), int(of[1]), pid)
    if what == "first-ended" and len(of) == 1:
        _make(folder, f"{FIRST_ENDED}{int(of[0])}")
        return TAKEN
    if what == "order" and len(of) == 2:
        return order(folder, a2b_base64(of[0]), int(of[1]))
    if what == "leave" and not of:
        return leave(folder, pid)
    if what == "hold" and not of:
        return hold(folder)
    if what == "push-outputs" and len(of) == 3:
        return push_outputs(folder, of[0], int(of[1]), of[2])
    return UNKNOWN


if __name__ == "__main__":
    sys.exit(carry_out(sys.argv[1], sys.argv[2:]))
