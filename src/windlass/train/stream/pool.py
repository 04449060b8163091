"""Threads that make requests. The threads are daemons, so that a process can exit while a store does not respond."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")
Task = Callable[[], object]


class Pool:
    """Thread pool whose threads are started on demand and end with this object."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads, self._num_started = num_threads, 0
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._lock = threading.Lock()

    def submit(self, task: Task) -> None:
        """Runs a task once a thread is free; its errors are ignored."""
        with self._lock:
            is_new = self._num_started < self._num_threads
            self._num_started += is_new
        if is_new:
            threading.Thread(target=_work, args=(self._tasks,), daemon=True, name="windlass-stream").start()
        self._tasks.put(task)

    def run(self, work: Callable[..., Result], calls: Sequence[tuple[Any, ...]]) -> list[Result]:
        """Returns the results of `work` for each tuple of arguments, in their order. Raises the first error."""
        batch = _Batch[Result](len(calls))
        for number, call in enumerate(calls):
            self.submit(lambda number=number, call=call: batch.do(number, work, call))  # type: ignore[misc]
        return batch.wait()

    def __del__(self) -> None:
        for _ in range(self._num_started):
            self._tasks.put(None)


class _Batch(Generic[Result]):
    def __init__(self, size: int) -> None:
        self._results: list[Any] = [None] * size
        self._left, self._lock, self._is_done = size, threading.Lock(), threading.Event()
        self._error: BaseException | None = None

    def do(self, number: int, work: Callable[..., Result], call: tuple[Any, ...]) -> None:
        """Runs one call and stores its result. After an error the other calls are skipped, because the batch has
        failed.
        """
        try:
            if self._error is None:
                self._results[number] = work(*call)
        except BaseException as error:
            self._error = self._error or error
        with self._lock:
            self._left -= 1
            is_done = self._left == 0 or self._error is not None
        if is_done:
            self._is_done.set()

    def wait(self) -> list[Result]:
        if self._results:
            self._is_done.wait()
        if self._error is not None:
            raise self._error
        return self._results


def _work(tasks: SimpleQueue[Task | None]) -> None:
    while (task := tasks.get()) is not None:
        with suppress(Exception):
            task()
        del task  # the reference is dropped because it may keep the reader alive
