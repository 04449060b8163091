"""Handles signals and keys while a command follows a run: Ctrl-C asks whether to detach, stop or continue.

    watching ──Ctrl-C──▶ asking ──d──▶ left (the run continues)
       ▲                  │ │
       └──c, Enter, Esc───┘ └─s, Ctrl-C──▶ stopping ──Ctrl-C──▶ killing ──Ctrl-C──▶ left

Without a terminal, the command asks nothing and the first SIGINT detaches. SIGTERM always detaches. After detaching,
the run continues; only `s`, a second Ctrl-C and `windlass stop` end the run.
"""

from __future__ import annotations

import contextlib
import enum
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Final, Self

QUESTION: Final = "Ctrl-C: [d]etach, the run continues · [s]top it · [c]ontinue to watch"


class Choice(enum.Enum):
    """State of a command that follows a run, as chosen by the user."""

    WATCH = "watching"
    ASK = "asking"
    STOP = "stopping"
    KILL = "killing"
    LEAVE = "left"


AFTER_INTERRUPT: Final = {
    Choice.WATCH: Choice.ASK,
    Choice.ASK: Choice.STOP,
    Choice.STOP: Choice.KILL,
    Choice.KILL: Choice.LEAVE,
    Choice.LEAVE: Choice.LEAVE,
}
AFTER_KEY: Final = {"d": Choice.LEAVE, "s": Choice.STOP, **dict.fromkeys(("c", "\n", "\r", "\x1b"), Choice.WATCH)}


class Interrupts:
    """Handles SIGINT and SIGTERM in a `with` block, and reads keys while asking. Never raises KeyboardInterrupt."""

    def __init__(self, *, can_ask: bool) -> None:
        self.choice = Choice.WATCH
        self.exit_code = 0
        """Exit code of the command if it detaches: 0 by the key `d`, 130 by Ctrl-C, 101 by SIGTERM."""
        self._can_ask = can_ask
        self._num_interrupts = 0
        self._terminated = False
        self._handlers = _handled({signal.SIGINT: self._on_interrupt, signal.SIGTERM: self._on_term})
        self._keys = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._handlers.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._keys.close()
        self._handlers.__exit__(None, None, None)

    def _on_interrupt(self, _number: int, _frame: FrameType | None) -> None:
        self._num_interrupts += 1

    def _on_term(self, _number: int, _frame: FrameType | None) -> None:
        self._terminated = True

    def listen(self, seconds: float) -> bool:
        """Waits at most `seconds`; returns whether the choice has changed."""
        before = self.choice
        if self.choice is Choice.ASK:
            if key := _key_within(seconds):
                self._enter(AFTER_KEY.get(key.lower(), Choice.ASK), by_interrupt=False)
        else:
            time.sleep(seconds)
        while self._num_interrupts:
            self._num_interrupts -= 1
            self._enter(AFTER_INTERRUPT[self.choice] if self._can_ask else Choice.LEAVE, by_interrupt=True)
        if self._terminated:
            self.choice, self.exit_code = Choice.LEAVE, 101
        return self.choice is not before

    def _enter(self, choice: Choice, *, by_interrupt: bool) -> None:
        if choice is Choice.ASK and self.choice is not Choice.ASK:
            self._keys.enter_context(_single_keys())
        elif choice is not Choice.ASK:
            self._keys.close()
        if choice is Choice.LEAVE:
            self.exit_code = 130 if by_interrupt else 0
        self.choice = choice


@contextlib.contextmanager
def tidy() -> Iterator[None]:
    """Context manager: SIGTERM and SIGHUP raise an exception, as Ctrl-C does, so that clean-up code runs."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    with _handled({signal.SIGTERM: leave, signal.SIGHUP: leave}):
        yield


@contextlib.contextmanager
def _handled(handlers: Mapping[int, Callable[[int, FrameType | None], None]]) -> Iterator[None]:
    """Context manager that installs a handler for each signal number.

    A signal that this process inherited as ignored (from nohup, or from a shell for background jobs) stays ignored.
    """
    handled = {number: handler for number, handler in handlers.items() if signal.getsignal(number) != signal.SIG_IGN}
    before = {number: signal.signal(number, handler) for number, handler in handled.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _key_within(seconds: float) -> str:
    """Returns a key pressed within `seconds`; empty if no key was pressed."""
    try:
        ready, _, _ = select.select([sys.stdin.fileno()], [], [], seconds)
        return os.read(sys.stdin.fileno(), 1).decode(errors="replace") if ready else ""
    except (OSError, ValueError, InterruptedError):
        return ""


@contextlib.contextmanager
def _single_keys() -> Iterator[None]:
    """Context manager: reads keys without Enter and without echo; Ctrl-C stays a signal."""
    import termios
    import tty

    try:
        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
        tty.setcbreak(descriptor, termios.TCSANOW)  # TCSANOW, unlike the default, keeps keys already typed
    except (OSError, ValueError, termios.error):  # the terminal is closed
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError, termios.error):
            termios.tcsetattr(descriptor, termios.TCSANOW, before)
