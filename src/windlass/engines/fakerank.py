"""One rank of a fake run: what its play may call, and the thread in which it is played."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from windlass.worker.logfile import LogFile
from windlass.worker.progress import MARKER


class FakeSignal(BaseException):
    """A signal that ends the rank. Not an `Exception`, so that a script's `except Exception` does not survive it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class FakeRank:
    """One rank, as its play sees it."""

    def __init__(self, node: Mapping[str, Any], spec: Mapping[str, Any], env: Mapping[str, str], log: LogFile) -> None:
        self.env: dict[str, str] = {**env, **node["env"], **spec["env"]}
        self.argv: list[str] = list(spec["argv"])
        self.rank: int = spec["rank"]
        self.local_rank: int = spec["local_rank"]
        self.node: int = node["node"]
        self.world_size = int(self.env["WORLD_SIZE"])
        self.attempt = int(self.env["WINDLASS_ATTEMPT"])
        self._log = log
        self._on_term: Callable[[], None] | None = None
        self._pending: list[int] = []
        self._signalled = threading.Event()
        self._writing = threading.Lock()

    def told_of_checkpoints(self) -> list[dict[str, object]]:
        """What it has told of checkpoints since this was last asked; for the one who keeps the run."""
        with self._writing:
            return self._log.take_checkpoints()

    def print(self, text: str) -> None:
        """Write one line, or several."""
        self.write(f"{text}\n".encode())

    def write(self, data: bytes) -> None:
        """Write bytes as they are."""
        self._heed()
        now_ns = time.time_ns()
        with self._writing:
            self._log.keep(data, now_ns)
            self._log.stamp(now_ns)

    def report(self, **fields: Any) -> None:
        """What `windlass.train.report` does: step, total, epoch, loss, samples_per_second, phase, message."""
        self.write(MARKER + json.dumps(fields).encode() + b"\n")

    def checkpoint(self, action: str = "saved", **fields: Any) -> None:
        """What `windlass.train.checkpoint` tells: that it has `saved` or `restored` one; step, name, bytes."""
        self.report(checkpoint={"action": action, **fields})

    def sleep(self, seconds: float) -> None:
        """Wait, as `time.sleep`. Raises FakeSignal when the rank is told to end."""
        until = time.monotonic() + seconds
        self._heed()
        while (left := until - time.monotonic()) > 0:
            self._signalled.wait(left)
            self._heed()

    def on_term(self, callback: Callable[[], None]) -> None:
        """Call this at SIGTERM, instead of dying of it."""
        self._on_term = callback

    def die(self, number: int) -> None:
        """Die of a signal. Raises FakeSignal, which is not to be caught."""
        raise FakeSignal(number)

    def send(self, number: int) -> None:
        """Signal the rank, from any thread."""
        self._pending.append(number)
        self._signalled.set()

    def _heed(self) -> None:
        self._signalled.clear()
        while self._pending:
            number = self._pending.pop(0)
            if number != signal.SIGTERM or self._on_term is None:
                self._pending.insert(0, number)  # the dead stay dead
                raise FakeSignal(number)
            self._on_term()


Play = Callable[[FakeRank], int | None]


class Actor:
    """The thread that plays a rank, and what became of it."""

    def __init__(self, rank: FakeRank, log: LogFile, play: Play, wake: Callable[[], None]) -> None:
        self.rank, self.log, self.play, self.wake = rank, log, play, wake
        self.exit_code: int | None = None
        self.ended_at = 0.0
        self.ended_by_us = self.told = False
        threading.Thread(target=self._run, name=f"fake rank {rank.rank}", daemon=True).start()

    def send(self, number: int) -> None:
        """Signal the rank. One that is killed is dead at once, though its thread may still come to a call of ours."""
        if self.exit_code is None:
            self.ended_by_us = True
            self.rank.send(number)
            if number == signal.SIGKILL:
                self._end(-number)

    def failure(self) -> dict[str, Any]:
        """What `blame` needs to know."""
        return {"rank": self.rank.rank, "exit_code": self.exit_code, "at": self.ended_at, "tail": self.log.tail,
                "traceback_at": self.log.traceback_at, "ended_by_us": self.ended_by_us}  # fmt: skip

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
            trace = error.__traceback__.tb_next if error.__traceback__ else None  # without our own frame
            code = 1
            self._last_words("".join(traceback.format_exception(type(error), error, trace)))
        self._end(code)
        self.log.close()

    def _last_words(self, text: str) -> None:
        with contextlib.suppress(FakeSignal):  # it was killed meanwhile
            self.rank.write(text.encode())

    def _end(self, code: int) -> None:
        if self.exit_code is None:
            self.ended_at, self.exit_code = time.time(), code
            self.wake()
