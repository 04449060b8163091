"""One rank of a fake run: the interface for the rank's function, and the thread that calls it."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from windlass.worker.logfile import LogFile
from windlass.worker.progress import MARKER, Point
from windlass.worker.protocol import NodeSpec, RankFailure, RankSpec


class FakeSignal(BaseException):
    """A signal that ends the rank. Not an `Exception`, so that `except Exception` in a script does not catch it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class FakeRank:
    """One rank, as passed to the function that replaces the script."""

    def __init__(self, node: NodeSpec, spec: RankSpec, log: LogFile, wake: Callable[[], None]) -> None:
        self.env: dict[str, str] = {**node.env, **spec.env}
        self.argv: list[str] = list(spec.argv)
        self.rank: int = spec.rank
        self.local_rank: int = spec.local_rank
        self.node: int = node.node
        self.world_size = node.world_size
        self.attempt = int(self.env["WINDLASS_ATTEMPT"])
        self._log = log
        self._wake = wake
        self._on_term: Callable[[], None] | None = None
        self._pending: list[int] = []
        self._signalled = threading.Event()
        self._writing = threading.Lock()

    def take_checkpoints(self) -> list[dict[str, object]]:
        """Returns the checkpoint reports since the last call; used by the supervisor."""
        with self._writing:
            return self._log.take_checkpoints()

    def take_points(self) -> list[Point]:
        """Returns the values of metrics since the last call; used by the supervisor."""
        with self._writing:
            return self._log.take_points()

    def print(self, text: str) -> None:
        """Writes one or more lines."""
        self.write(f"{text}\n")

    def write(self, data: bytes | str) -> None:
        """Writes bytes, or text in UTF-8, without adding a newline."""
        self._handle_signals()
        data = data.encode() if isinstance(data, str) else data
        now_ns, is_first = time.time_ns(), not self._log.has_output
        with self._writing:
            self._log.keep(data, now_ns)
            self._log.stamp(now_ns)
        if is_first:
            self._wake()

    def report(self, **fields: Any) -> None:
        """Reports like `windlass.train.report`: step, total, epoch, loss, samples_per_second, phase, message, and other
        numbers by name. All numbers except step and total are metrics.
        """
        numbers = {name: value for name, value in fields.items() if isinstance(value, int | float)}
        values = {name: [value] for name, value in numbers.items() if name not in ("step", "total")}
        series = {"at": time.time(), "ms": [0], "steps": [numbers.get("step")], "values": values}
        self.write(MARKER + json.dumps({**fields, "series": series} if values else fields).encode() + b"\n")
        self._wake()

    def checkpoint(self, action: str = "saved", **fields: Any) -> None:
        """Reports like `windlass.train.checkpoint`; `action` is `saved` or `restored`, fields are step, name
        and bytes.
        """
        self.report(checkpoint={"action": action, **fields})

    def sleep(self, seconds: float) -> None:
        """Sleeps like `time.sleep`. Raises FakeSignal when the rank must end."""
        until = time.monotonic() + seconds
        self._handle_signals()
        while (left := until - time.monotonic()) > 0:
            self._signalled.wait(left)
            self._handle_signals()

    def on_term(self, callback: Callable[[], None]) -> None:
        """Makes SIGTERM call `callback` instead of ending the rank."""
        self._on_term = callback

    def die(self, number: int) -> None:
        """Ends the rank as a signal would. Raises FakeSignal, which must not be caught."""
        raise FakeSignal(number)

    def send(self, number: int) -> None:
        """Sends a signal to the rank, from any thread."""
        self._pending.append(number)
        self._signalled.set()

    def _handle_signals(self) -> None:
        self._signalled.clear()
        while self._pending:
            number = self._pending.pop(0)
            if number != signal.SIGTERM or self._on_term is None:
                self._pending.insert(0, number)  # a killed rank must not continue
                raise FakeSignal(number)
            self._on_term()


Play = Callable[[FakeRank], int | None]


class RankThread:
    """The thread of a rank, and how the rank ended."""

    def __init__(self, rank: FakeRank, log: LogFile, play: Play, wake: Callable[[], None]) -> None:
        self.rank, self.log, self.play, self.wake = rank, log, play, wake
        self.exit_code: int | None = None
        self.ended_at = 0.0
        self.ended_by_us = self.reported = False
        threading.Thread(target=self._run, name=f"fake rank {rank.rank}", daemon=True).start()

    def send(self, number: int) -> None:
        """Sends a signal to the rank. A killed rank counts as ended at once, although its thread runs until its next
        call.
        """
        if self.exit_code is None:
            self.ended_by_us = True
            self.rank.send(number)
            if number == signal.SIGKILL:
                self._end(-number)

    def failure(self) -> RankFailure:
        """Returns the failure of an ended rank."""
        assert self.exit_code is not None
        return RankFailure(
            self.rank.rank, self.exit_code, self.ended_at, self.log.tail, self.log.traceback_at, self.ended_by_us
        )

    def _run(self) -> None:
        try:
            code = (self.play(self.rank) or 0) & 0xFF
        except FakeSignal as error:
            code = -error.number
        except SystemExit as error:
            code = (error.code or 0) & 0xFF if error.code is None or isinstance(error.code, int) else 1
            if isinstance(error.code, str):
                self._last_words(f"{error.code}\n")
        except BaseException as error:
            trace = error.__traceback__.tb_next if error.__traceback__ else None  # without the frame of this module
            code = 1
            self._last_words("".join(traceback.format_exception(type(error), error, trace)))
        self._end(code)
        self.log.close()

    def _last_words(self, text: str) -> None:
        with contextlib.suppress(FakeSignal):  # the rank was killed meanwhile
            self.rank.write(text)

    def _end(self, code: int) -> None:
        if self.exit_code is None:
            self.ended_at, self.exit_code = time.time(), code
            self.wake()
