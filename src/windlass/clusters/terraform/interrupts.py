"""Counts requests to stop (SIGINT, SIGTERM) while Terraform works, instead of ending the process."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Final, Self

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class StopRequests:
    """Handles SIGINT and SIGTERM in its block, if it is entered in the main thread; no exception is raised by them."""

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[int, Any] = {}

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
