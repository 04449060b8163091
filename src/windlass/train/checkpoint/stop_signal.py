"""Records SIGTERM until the end of a step, when the state can be saved."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

EXIT_CODE = 128 + signal.SIGTERM


class Preempted(SystemExit):
    """SIGTERM was received and the state is saved. Ends the process with code 143, as the signal would have."""

    def __init__(self) -> None:
        super().__init__(EXIT_CODE)


class StopSignal:
    """A handler of SIGTERM that also calls the previous handler."""

    def __init__(self) -> None:
        self.received = False
        self._pid = os.getpid()
        self._installed = False
        self._earlier: Any = None

    def install(self) -> None:
        """Installs the handler; only possible in the main thread."""
        if not self._installed and threading.current_thread() is threading.main_thread():
            self._installed = True
            self._earlier = signal.signal(signal.SIGTERM, self._receive)

    def keep(self) -> None:
        """Makes `remove` do nothing: the process exits with `EXIT_CODE`, which a late SIGTERM must not change."""
        self._installed = False

    def remove(self) -> None:
        """Restores the previous handler."""
        if self._installed and threading.current_thread() is threading.main_thread():
            self._installed = False
            signal.signal(signal.SIGTERM, self._earlier or signal.SIG_DFL)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            # In a process forked by the script, the signal has its usual effect.
            signal.signal(signal.SIGTERM, self._earlier or signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        self.received = True
        if callable(self._earlier):
            self._earlier(number, frame)
