"""Turns Ctrl-C, SIGTERM and keys into what the person who watches a run wants done with it.

    watching ──Ctrl-C──▶ asking ──d──▶ left (the run goes on)
       ▲                  │ │
       └──c, Enter, Esc───┘ └─s, Ctrl-C──▶ stopping ──Ctrl-C──▶ killing ──Ctrl-C──▶ left

Without a terminal nobody can be asked: the first SIGINT leaves. SIGTERM always leaves. The run goes on in both cases,
for only `s`, a second Ctrl-C and `windlass stop` end one.
"""

from __future__ import annotations

import contextlib
import enum
import select
import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final, Self

QUESTION: Final = "Ctrl-C: [d]etach, the run goes on · [s]top it · [c]ontinue to watch"


class Wish(enum.Enum):
    """What is to be done now."""

    WATCH = "watching"
    ASK = "asking"
    STOP = "stopping"
    KILL = "killing"
    LEAVE = "left"


AFTER_INTERRUPT: Final = {
    Wish.WATCH: Wish.ASK,
    Wish.ASK: Wish.STOP,
    Wish.STOP: Wish.KILL,
    Wish.KILL: Wish.LEAVE,
    Wish.LEAVE: Wish.LEAVE,
}
AFTER_KEY: Final = {
    "d": Wish.LEAVE,
    "s": Wish.STOP,
    "c": Wish.WATCH,
    "\n": Wish.WATCH,
    "\r": Wish.WATCH,
    "\x1b": Wish.WATCH,
}


class Hands:
    """Holds the signals while it is entered, and the terminal while it asks. Never raises KeyboardInterrupt."""

    def __init__(self, *, can_ask: bool) -> None:
        self.wish = Wish.WATCH
        self.exit_code = 0
        """What the command ends with if the wish is to leave: 0 by choice, 130 by Ctrl-C, 101 by SIGTERM."""
        self._can_ask = can_ask
        self._interrupts = 0
        self._terminated = False
        self._before: dict[int, Any] = {}
        self._keys = contextlib.ExitStack()

    def __enter__(self) -> Self:
        for number, handler in ((signal.SIGINT, self._on_interrupt), (signal.SIGTERM, self._on_term)):
            self._before[number] = signal.signal(number, handler)
        return self

    def __exit__(self, *_: object) -> None:
        self._keys.close()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_interrupt(self, _number: int, _frame: FrameType | None) -> None:
        self._interrupts += 1

    def _on_term(self, _number: int, _frame: FrameType | None) -> None:
        self._terminated = True

    def listen(self, seconds: float) -> bool:
        """Wait at most `seconds` for a wish; gives whether it has changed."""
        before = self.wish
        if self.wish is Wish.ASK:
            if key := _key_within(seconds):
                self._enter(AFTER_KEY.get(key.lower(), Wish.ASK), by_interrupt=False)
        else:
            time.sleep(seconds)
        while self._interrupts:
            self._interrupts -= 1
            self._enter(AFTER_INTERRUPT[self.wish] if self._can_ask else Wish.LEAVE, by_interrupt=True)
        if self._terminated:
            self.wish, self.exit_code = Wish.LEAVE, 101
        return self.wish is not before

    def _enter(self, wish: Wish, *, by_interrupt: bool) -> None:
        if wish is Wish.ASK and self.wish is not Wish.ASK:
            self._keys.enter_context(_single_keys())
        elif wish is not Wish.ASK:
            self._keys.close()
        if wish is Wish.LEAVE:
            self.exit_code = 130 if by_interrupt else 0
        self.wish = wish


@contextlib.contextmanager
def tidy() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as Ctrl-C does, so that what it has made elsewhere is removed."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _key_within(seconds: float) -> str:
    """A key that is pressed within `seconds`, or nothing."""
    import os

    try:
        ready, _, _ = select.select([sys.stdin.fileno()], [], [], seconds)
        return os.read(sys.stdin.fileno(), 1).decode(errors="replace") if ready else ""
    except (OSError, ValueError, InterruptedError):
        return ""


@contextlib.contextmanager
def _single_keys() -> Iterator[None]:
    """Keys arrive without Enter and are not shown; Ctrl-C stays a signal."""
    import termios
    import tty

    try:
        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
        tty.setcbreak(descriptor, termios.TCSANOW)  # what was typed a moment too early is not thrown away
    except (OSError, ValueError, termios.error):  # a terminal that is gone answers nothing
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError, termios.error):
            termios.tcsetattr(descriptor, termios.TCSANOW, before)
