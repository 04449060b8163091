"""Lets a pod run further attempts after its ranks have failed, by means of files in its work folder.

| file | created by | meaning |
|---|---|---|
| `signalled-NUMBER` | the supervisor, before this signal | the signal is the supervisor's, not from a node shutdown |
| `waiting` | the pod | the pod waits for the next attempt; an order removes the file, so that the pod does not exit |
| `next.json.gz` | the supervisor | the next attempt: the node's spec, as for a new pod |
| `first-ended-N` | the supervisor | the first pod of attempt N has succeeded: no pod needs to resolve its name |
| `released` | the supervisor | its next signal ends the pod; without this file, SIGTERM may mean a node shutdown |
| `wait-until` | the supervisor | monotonic time in seconds until which the pod must wait |
| `leaving` | the pod | the pod is being deleted: it sends its outputs and accepts no order |

A pod with outputs to fetch waits even after a success, until the supervisor has received the outputs and ends it.

A supervisor sends requests to a pod (`carry_out`), by a command in the pod or over a connection (`order_client.py`):

| request | effect |
|---|---|
| `signal ATTEMPT NUMBER` | signals the pod's main process, unless the pod has a later attempt |
| `first-ended ATTEMPT` | reports that the first pod of the attempt has succeeded |
| `order BASE64 ATTEMPT` | gives the pod its next attempt, once the pod waits for it |
| `leave` | ends a waiting pod |
| `hold` | makes a waiting pod wait for another `OUTPUTS_SECONDS` |
| `push-outputs POD ATTEMPT FOLDER` | makes a waiting pod send a folder to the supervisor (`outputs.py`) |

Requests are idempotent, because a response may be lost: a second `order` of an attempt has no effect, and a late
`signal` does not reach a later attempt.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from binascii import a2b_base64
from collections.abc import Callable, Sequence

WAITING, NEXT, WAIT_UNTIL, RELEASED, LEAVING = "waiting", "next.json.gz", "wait-until", "released", "leaving"
SIGNALLED, FIRST_ENDED = "signalled-", "first-ended-"
PAUSE_SECONDS = 0.01
STILL_ENDING_SECONDS = 5.0
"""Seconds for a pod to start waiting after its node has ended, or for an accepted attempt to arrive."""
OUTPUTS_SECONDS = 60.0
"""Seconds that a pod with outputs waits for the next request of its supervisor; short, because idle GPUs cost money."""
HANDLED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
TAKEN, NOT_TAKEN, UNKNOWN = 0, 3, 2
"""Exit codes of a request: the pod has accepted it, the pod does not wait, the request is unknown."""


def wait(folder: str, seconds: float, must_exit: Callable[[], bool]) -> str | None:
    """Waits in the pod for the next attempt. Returns the path of its specs; None if no attempt arrives or the pod must
    exit.
    """
    path, waiting = os.path.join(folder, NEXT), os.path.join(folder, WAITING)
    give_up = time.monotonic() + seconds
    _make(folder, WAITING)
    while not (must_exit() or os.path.exists(path)) and time.monotonic() < max(give_up, _wait_until(folder)):
        time.sleep(PAUSE_SECONDS)
    if not _remove(waiting):  # `order` has removed the file and is about to write the next attempt
        give_up = time.monotonic() + STILL_ENDING_SECONDS
        while not (must_exit() or os.path.exists(path)) and time.monotonic() < give_up:
            time.sleep(PAUSE_SECONDS)
    return path if os.path.exists(path) and not must_exit() else None


def hold(folder: str) -> int:
    """Makes a waiting pod wait for at least `OUTPUTS_SECONDS` from now on. Returns `TAKEN`."""
    path = os.path.join(folder, WAIT_UNTIL)
    part = f"{path}.{os.getpid()}"
    with open(part, "w") as file:
        file.write(str(time.monotonic() + OUTPUTS_SECONDS))
    os.rename(part, path)
    return TAKEN


def _wait_until(folder: str) -> float:
    """Returns the monotonic time in seconds until which the supervisor requires the pod to wait; 0 if not requested."""
    try:
        with open(os.path.join(folder, WAIT_UNTIL)) as file:
            return float(file.read())
    except (OSError, ValueError):
        return 0.0


def push_outputs(folder: str, pod: str, attempt: int, path: str) -> int:
    """Starts a process that sends a folder to the supervisor. Returns `TAKEN`, or `NOT_TAKEN` if the pod does
    not wait.
    """
    if not _is_waiting_within(folder, STILL_ENDING_SECONDS):
        return NOT_TAKEN
    hold(folder)
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "outputs.py")
    words = [sys.executable, "-I", "-S", program, "push", folder, pod, str(attempt), path]
    os.posix_spawn(sys.executable, words, os.environ, setsigdef=[signal.SIGCHLD])
    return TAKEN


def block() -> None:
    """Blocks the handled signals. They stay blocked in a program that this process executes."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)


def clear_mark(folder: str, number: int) -> bool:
    """Removes the supervisor's mark for a signal. Returns whether the mark existed: the supervisor has then sent the
    signal.
    """
    return _remove(os.path.join(folder, f"{SIGNALLED}{int(number)}"))


def clear_marks(folder: str) -> set[int]:
    """Removes the marks of all signals. Returns the numbers of the signals that had a mark."""
    return {int(number) for number in HANDLED_SIGNALS if clear_mark(folder, number)}


def refuse_orders(folder: str) -> None:
    """Stops accepting attempts: the pod is being deleted and ends as soon as it has sent its outputs.

    Called from a signal handler, which must not raise errors.
    """
    with contextlib.suppress(OSError):  # if the disk is full, an order may be accepted and never executed
        _make(folder, LEAVING)


def _make(folder: str, name: str) -> None:
    with open(os.path.join(folder, name), "w"):
        pass


def _remove(path: str) -> bool:
    """Removes a file. Returns whether it existed."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def taken(attempt: int) -> str:
    """Returns the name of the file with the specs of an attempt that the pod runs or has run."""
    return f"attempt-{attempt}.json.gz"


def signal_first(
    folder: str, attempt: int, number: int, pid: int = 1, patience_seconds: float = STILL_ENDING_SECONDS
) -> int:
    """Signals the pod's main process, with the supervisor's mark, unless the pod has a later attempt.

    Waits first until the pod accepts a pending order, which may be of this attempt. Uses no other function of this
    module, because the supervisor sends its text to pods whose code is not unpacked yet.
    """
    give_up = time.monotonic() + patience_seconds
    while (is_ordered := NEXT in os.listdir(folder)) and time.monotonic() < give_up:
        time.sleep(PAUSE_SECONDS)
    # Listed again, to include an order that the pod accepted meanwhile.
    orders = [name[8:-8] for name in os.listdir(folder) if name.startswith("attempt-")]
    if not is_ordered and all(int(order) <= attempt for order in orders):
        open(os.path.join(folder, f"{SIGNALLED}{int(number)}"), "w").close()
        os.kill(pid, number)
    return 0


def order(folder: str, data: bytes, attempt: int) -> int:
    """Gives a pod its next attempt. Returns `TAKEN` or `NOT_TAKEN`.

    If the pod removes the file `waiting` first, the pod exits. If this function removes it first, the pod waits for the
    attempt.
    """
    path = os.path.join(folder, NEXT)
    if _is_ordered(folder, attempt):
        return TAKEN
    if _is_waiting_within(folder, STILL_ENDING_SECONDS) and not os.path.exists(os.path.join(folder, LEAVING)):
        part = f"{path}.{os.getpid()}"
        with open(part, "wb") as file:
            file.write(data)
        if _remove(os.path.join(folder, WAITING)):
            os.rename(part, path)
            return TAKEN
        os.unlink(part)
    return TAKEN if _is_ordered(folder, attempt) else NOT_TAKEN  # another request may have given the same order


def _is_ordered(folder: str, attempt: int) -> bool:
    """Whether the pod has received its next attempt already. An order given twice would run the attempt twice."""
    # Checked in this order, because the pod renames the first file to the second.
    return os.path.exists(os.path.join(folder, NEXT)) or os.path.exists(os.path.join(folder, taken(attempt)))


def leave(folder: str, pid: int = 1, patience_seconds: float = STILL_ENDING_SECONDS) -> int:
    """Ends a pod that waits for the next attempt. Returns `TAKEN`, or `NOT_TAKEN` if the pod does not wait."""
    if not _is_waiting_within(folder, patience_seconds):
        return NOT_TAKEN
    clear_mark(folder, signal.SIGTERM)
    _make(folder, RELEASED)
    os.kill(pid, signal.SIGTERM)
    return TAKEN


def is_released(folder: str) -> bool:
    """Whether the supervisor has requested that the pod exits."""
    return os.path.exists(os.path.join(folder, RELEASED))


def _is_waiting_within(folder: str, seconds: float) -> bool:
    """Waits at most `seconds` until the pod is waiting for the next attempt. Returns whether it is waiting."""
    give_up = time.monotonic() + seconds
    while not os.path.exists(os.path.join(folder, WAITING)):
        if time.monotonic() > give_up:
            return False
        time.sleep(PAUSE_SECONDS)
    return True


def carry_out(folder: str, words: Sequence[str], pid: int = 1) -> int:
    """Executes a request in the pod; `pid` is the pod's main process. Returns an exit code. Raises OSError,
    ValueError.
    """
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
