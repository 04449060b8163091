"""Counts stop requests (SIGINT, SIGTERM) while Terraform runs, instead of exiting."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Final, Self

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class StopRequests:
    """Context manager that counts SIGINT and SIGTERM instead of raising exceptions, if entered in the main thread."""

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
