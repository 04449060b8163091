"""Worker processes and the bounded queue of requests that wait for them."""

from __future__ import annotations

import asyncio
import marshal
import math
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from windlass.serving.metrics import Metrics
from windlass.serving.process import HEAD, pack, start
from windlass.serving.settings import Settings

Process = tuple[subprocess.Popen[bytes], socket.socket]
Reply = tuple[int, str, bytes]
"""HTTP status, media type and body of the model's answer; an empty media type with a reason as body for an error."""


FAST_SECONDS = 0.02
"""Mean seconds per request below which a model counts as fast."""
ADVANCE = 8
"""Maximum number of unanswered requests sent to the only worker of a fast model. The socket buffers those that the
worker has not read yet."""


class Waiting:
    """A request in the queue or in a worker."""

    __slots__ = ("content", "future", "since", "timer", "worker")

    def __init__(self, content: tuple[str, str, bytes], future: asyncio.Future[Reply], since: float) -> None:
        self.content = content
        """Media type, Accept header and body."""
        self.future = future
        self.since = since
        self.timer: asyncio.TimerHandle | None = None
        self.worker: Worker | None = None
        """The worker that has the request; None while the request is in the queue."""

    def finish(self, reply: Reply) -> None:
        """Answers the request, unless it was answered before."""
        if self.timer is not None:
            self.timer.cancel()
        if not self.future.done():
            self.future.set_result(reply)


class Worker(asyncio.Protocol):
    """One worker process, and the server's end of its socket."""

    def __init__(self, pool: Pool, number: int, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self.pool = pool
        self.number = number
        self.process = process
        self.is_ready = False
        self.batches: deque[list[Waiting]] = deque()
        """Batches that were sent to the process and not answered yet, oldest first. The process works on the first."""
        self._connection = connection
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    async def connect(self) -> None:
        """Starts to read from the process."""
        self._connection.setblocking(False)
        await asyncio.get_running_loop().create_connection(lambda: self, sock=self._connection)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Stores the transport."""
        self._transport = cast("asyncio.Transport", transport)  # the transport of uvloop is of another class

    def data_received(self, data: bytes) -> None:
        """Passes each complete message of the process to the pool."""
        self._received += data
        while len(self._received) >= HEAD.size:
            end = HEAD.size + HEAD.unpack_from(self._received)[0]
            if len(self._received) < end:
                break
            message = marshal.loads(self._received[HEAD.size : end])
            del self._received[:end]
            self.pool.receive(self, message)

    def send(self, batch: list[Waiting]) -> None:
        """Sends a batch to the process."""
        assert self._transport is not None
        self.batches.append(batch)
        for one in batch:
            one.worker = self
        self._transport.write(pack([one.content for one in batch]))

    def connection_lost(self, exc: Exception | None) -> None:
        """Reports the end of the process to the pool."""
        self.pool.lose(self, self.end())

    def end(self) -> int:
        """Kills the process if it runs, and returns its exit code. `connection_lost` follows later."""
        self.process.kill()
        return self.process.wait()


class Pool:
    """Sends requests to worker processes in their order of arrival."""

    def __init__(
        self, settings: Settings, processes: list[Process], metrics: Metrics, on_failure: Callable[[str], None]
    ) -> None:
        """`on_failure` is called with the reason if a worker cannot load the model."""
        self.settings = settings
        self.metrics = metrics
        self._on_failure = on_failure
        self._queue: deque[Waiting] = deque()
        self._is_closed = False
        self._batch_timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._mean_seconds = 1.0
        """Moving average of the time that the model takes for a batch."""
        self.workers = [Worker(self, number, *process) for number, process in enumerate(processes)]

    async def connect(self) -> None:
        """Starts to read the messages of the workers."""
        for worker in self.workers:
            await worker.connect()

    @property
    def num_ready(self) -> int:
        """Number of workers that have loaded the model."""
        return sum(worker.is_ready for worker in self.workers)

    @property
    def num_waiting(self) -> int:
        """Number of requests that no worker is processing yet."""
        sent = sum(max(0, len(worker.batches) - 1) for worker in self.workers)
        return len(self._queue) + sent * self.settings.batch

    @property
    def retry_seconds(self) -> int:
        """Estimated time until the queue is empty, in whole seconds from 1 to 60."""
        rounds = len(self._queue) / (self.settings.workers * self.settings.batch)
        return max(1, min(60, math.ceil(rounds * self._mean_seconds)))

    async def submit(self, content: tuple[str, str, bytes]) -> Reply:
        """Queues a request and returns the answer of the model, or 504 after the time limit."""
        loop = asyncio.get_running_loop()
        waiting = Waiting(content, loop.create_future(), loop.time())
        waiting.timer = loop.call_later(self.settings.time_limit_seconds, self._expire, waiting)
        self._queue.append(waiting)
        self._dispatch()
        return await waiting.future

    def _dispatch(self) -> None:
        """Sends waiting requests to free workers. An incomplete batch waits for more requests, at most
        `batch_wait_seconds`.

        The only worker of a fast model gets some requests in advance. Otherwise, both processes would wait for each
        other between two requests.
        """
        is_fast = self._mean_seconds < FAST_SECONDS and self.settings.workers == self.settings.batch == 1
        if self._batch_timer is not None:
            self._batch_timer.cancel()
            self._batch_timer = None
        for worker in self.workers:
            if not self._queue:
                return
            if not worker.is_ready or len(worker.batches) >= (ADVANCE if is_fast else 1):
                continue
            if len(self._queue) < self.settings.batch and self.settings.batch_wait_seconds:
                loop = asyncio.get_running_loop()
                due = self._queue[0].since + self.settings.batch_wait_seconds
                if loop.time() < due:
                    self._batch_timer = loop.call_at(due, self._dispatch)
                    return
            while self._queue and len(worker.batches) < (ADVANCE if is_fast else 1):
                self.metrics.batches += 1
                worker.send([self._queue.popleft() for _ in range(min(self.settings.batch, len(self._queue)))])

    def receive(self, worker: Worker, message: Any) -> None:
        """Handles a message of a worker: the model was loaded, could not be loaded, or has answered a batch."""
        if worker.is_ready:
            seconds, replies = message
            self._mean_seconds += 0.2 * (seconds - self._mean_seconds)
            for waiting, reply in zip(worker.batches.popleft(), replies, strict=True):
                waiting.finish(reply)
        elif message[0] == "ready":
            worker.is_ready = True
            print(f"worker {worker.number}: model loaded in {message[1]:.1f} s", file=sys.stderr, flush=True)
        else:
            self._on_failure(message[1])
        self._dispatch()

    def _expire(self, waiting: Waiting) -> None:
        """Answers 504. A worker that is processing the request is killed, because a call of the model cannot be
        interrupted in another way.
        """
        limit = f"{self.settings.time_limit_seconds:g} s"
        worker = waiting.worker
        if worker is None or waiting not in worker.batches[0]:
            if worker is None:
                self._queue.remove(waiting)
            waiting.finish((504, "", f"no worker was free within {limit}".encode()))
            return
        for one in worker.batches[0]:
            one.finish((504, "", f"the model did not answer within {limit}".encode()))
        worker.end()

    def lose(self, worker: Worker, code: int) -> None:
        """Handles the end of a worker process: the batch that it was processing fails, requests that it got in advance
        are queued again, and a new process replaces it.
        """
        if self._is_closed:
            return
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        print(f"worker {worker.number}: process ended ({how})", file=sys.stderr, flush=True)
        for one in worker.batches.popleft() if worker.batches else ():
            one.finish((500, "", f"the process of the model ended ({how})".encode()))
        for batch in reversed(worker.batches):
            for one in batch:
                one.worker = None
            self._queue.extendleft(one for one in reversed(batch) if not one.future.done())
        if not worker.is_ready:
            self._on_failure(f"the process that loads the model ended ({how})")
            return
        worker.is_ready = False
        try:
            self.workers[worker.number] = Worker(self, worker.number, *start(self.settings, worker.number))
        except OSError as error:
            self._on_failure(f"the process of the model cannot be started again ({error.strerror or error})")
            return
        self.metrics.restarts += 1
        task = asyncio.get_running_loop().create_task(self.workers[worker.number].connect())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Ends all workers."""
        self._is_closed = True
        for worker in self.workers:
            worker.end()
