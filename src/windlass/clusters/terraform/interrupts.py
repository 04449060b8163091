"""Counts stop requests (SIGINT, SIGTERM) while Terraform runs; other work ends at the first one."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final, Self

from windlass.clusters.terraform.errors import Interrupted

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class StopRequests:
    """Context manager that counts SIGINT and SIGTERM instead of raising exceptions, if entered in the main thread."""

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[int, Any] = {}
        self._is_raising = False

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        if self._is_raising:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def interruptible(self, stopped: str) -> Iterator[None]:
        """Context for work other than Terraform's, which a stop request ends at once.

        Raises Interrupted with the message `stopped`, also for a request that was counted before.
        """
        again = Interrupted(stopped, "run the same command again to continue")
        if self.count:
            raise again
        self._is_raising = True
        try:
            yield
        except KeyboardInterrupt:
            raise again from None
        finally:
            self._is_raising = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
