"""The pipes with the output of a node's ranks, in the selector of the node."""

from __future__ import annotations

import math
import selectors
from typing import TYPE_CHECKING, Any

from windlass.worker.byte_budget import ByteBudget

if TYPE_CHECKING:
    from windlass.worker.capture import Capture, Echo


class OutputPipes:
    """Watches pipes for output, except during a pause of a budget: ranks with much output then block on their pipes."""

    def __init__(self, selector: selectors.BaseSelector, echo: Echo | None, budget: ByteBudget | None) -> None:
        """`echo` receives what is read, if no process reads the files of the node. Without `budget`, output is not
        limited.
        """
        self.echo = echo
        self._selector = selector
        self._budget = budget
        self._open: dict[int, Any] = {}
        """Open pipes, and their data in the selector. During a pause, the selector does not have them."""

    def watch(self, source: int, data: Any) -> None:
        """Watches a pipe; `data` is the rank, or a function to call when the pipe is readable."""
        self._open[source] = data
        self._selector.register(source, selectors.EVENT_READ, data)

    def forget(self, source: int) -> None:
        """Stops watching a pipe, if it is watched."""
        if self._open.pop(source, None) is not None and source in self._selector.get_map():
            self._selector.unregister(source)

    def drain(self, capture: Capture, now_ns: int, most: int | None = None) -> None:
        """Reads the available output of a pipe, at most `most` bytes of the log of a pod, and stops watching the pipe
        once its writers have closed it.
        """
        if capture.source in self._open and not capture.drain(now_ns, most):
            self.forget(capture.source)

    def share(self, num_pipes: int) -> int | None:
        """Returns how many bytes of each pipe may be written to the log of a pod now; None if there is no limit."""
        return None if self._budget is None else self._budget.left() // max(1, num_pipes)

    def pause(self) -> float:
        """Stops watching all pipes during a pause of the budget, and watches them again afterwards. Returns the seconds
        until the end of the pause; infinity if there is none.
        """
        if self._budget is None:
            return math.inf
        seconds = self._budget.pause()
        for source, data in self._open.items():
            is_watched = source in self._selector.get_map()
            if seconds and is_watched:
                self._selector.unregister(source)
            elif not seconds and not is_watched:
                self._selector.register(source, selectors.EVENT_READ, data)
        return seconds or math.inf
