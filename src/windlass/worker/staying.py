"""How a pod stays when its ranks have failed, and is told to play another attempt: by files in a folder of its own.

| file | made by | means |
|---|---|---|
| `told` | whoever keeps the run, before it signals | the signal is its own, and not that of a machine that goes away |
| `stays` | the pod | an order would be heard |
| `next.json.gz` | whoever keeps the run | the order: what the node is to do, as for a pod that begins |
| `first-ended-N` | whoever keeps the run | the first pod of attempt N has ended well: none waits for its name |

`python -I -S staying.py FOLDER order BASE64` and `… leave`, run in the pod, are how that is done from outside.
"""

from __future__ import annotations

import base64
import os
import signal
import sys
import time
from typing import Callable  # noqa: UP035 - the worker runs on Python 3.9 too

TOLD, STAYS, NEXT = "told", "stays", "next.json.gz"
FIRST_ENDED = "first-ended-"
PAUSE_SECONDS = 0.02
STILL_ENDING_SECONDS = 5.0
"""How long the process of a pod may take from the last word of its node until it stays."""
HEARD_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
HEARD, NOT_HEARD = 0, 3
"""Exit codes: the order was taken, or the pod does not stay."""


class _Left(BaseException):
    """The pod is to end: a signal says so."""


def wait(folder: str, seconds: float, meanwhile: Callable[[], None] | None = None) -> str | None:
    """Wait in the pod for an order; gives its file, or None where none came or the pod is to end.

    `meanwhile` is called once the order would be taken, and waited for; it finds no handlers of signals.
    """
    path, stays, told = (os.path.join(folder, name) for name in (NEXT, STAYS, TOLD))

    def hear(_number: int, _frame: object) -> None:
        if not _remove(told):
            raise _Left
        # Meant for the attempt that is over: whoever keeps the run did not know yet that it was.

    block()  # what is imported meanwhile must not find handlers of ours
    for number in HEARD_SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    give_up = time.monotonic() + seconds
    try:
        with open(stays, "w"):
            pass
        if meanwhile is not None:
            meanwhile()
        for number in HEARD_SIGNALS:
            signal.signal(number, hear)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD_SIGNALS)
        while time.monotonic() < give_up and not os.path.exists(path):
            time.sleep(PAUSE_SECONDS)
    except _Left:
        return None
    finally:
        _remove(stays)
    return path if os.path.exists(path) else None


def block() -> None:
    """Have signals wait until `wait` hears them, also in the program that this process may become."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD_SIGNALS)


def forget_told(folder: str) -> bool:
    """Whether the last signal came from whoever keeps the run; what comes from now on is another."""
    return _remove(os.path.join(folder, TOLD))


def _remove(path: str) -> bool:
    """Remove a file; gives whether it was there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def order(folder: str, data: bytes) -> int:
    """Tell a pod to go on; gives `HEARD` or `NOT_HEARD`."""
    stays, path = os.path.join(folder, STAYS), os.path.join(folder, NEXT)
    give_up = time.monotonic() + STILL_ENDING_SECONDS
    while not os.path.exists(stays):
        if time.monotonic() > give_up:
            return NOT_HEARD
        time.sleep(PAUSE_SECONDS)
    with open(f"{path}.part", "wb") as file:
        file.write(data)
    os.rename(f"{path}.part", path)
    return HEARD


def leave(folder: str, pid: int = 1) -> int:
    """End a pod that stays; gives `HEARD`, or `NOT_HEARD` where it does not."""
    if not os.path.exists(os.path.join(folder, STAYS)):
        return NOT_HEARD
    _remove(os.path.join(folder, TOLD))
    os.kill(pid, signal.SIGTERM)
    return HEARD


def main(argv: list[str]) -> int:
    """`FOLDER order BASE64` or `FOLDER leave`."""
    folder, what, *data = argv
    return order(folder, base64.b64decode(data[0])) if what == "order" else leave(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
