"""Shared code of the storage programs that a supervisor starts. Each program prints JSON lines: its progress
periodically, then each result, or the error that ended it. A program exits when standard input closes, so that none
outlives its supervisor.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from windlass.errors import WindlassError
from windlass.storage.failure import first_of
from windlass.storage.memory import return_freed_blocks
from windlass.storage.place import Throttled
from windlass.storage.progress import Progress

REPORT_SECONDS: Final = 1.0


def run(work: Callable[[], None]) -> int:
    """Runs `work` as the process's main function. Returns the exit code."""
    threading.Thread(target=_end_with_input, daemon=True).start()
    if (error := attempted(work)) is None:
        return 0
    say({"error": error.message, "hint": error.hint, "passes": isinstance(error, Throttled)})
    return 1


def attempted(work: Callable[[], None]) -> WindlassError | None:
    """Runs `work`. Returns None, or the Windlass error that `work` raised."""
    return_freed_blocks()
    try:
        work()
    except (WindlassError, BaseExceptionGroup) as raised:
        error = first_of(raised)
        if not isinstance(error, WindlassError):
            raise
        return error
    return None


def say(line: Mapping[str, Any]) -> None:
    """Writes a line to the supervisor."""
    print(json.dumps(line), flush=True)


@contextmanager
def reported(name: str) -> Iterator[Progress]:
    """Yields a progress object that is reported periodically while the context is open."""
    progress, over = Progress(), threading.Event()

    def report() -> None:
        while not over.wait(REPORT_SECONDS):
            if progress.waits_for:
                say({"name": name, "waits": progress.waits_for})
            elif not progress.is_listing:
                say(
                    {"name": name, "done": progress.bytes_done, "of": progress.num_bytes, "moved": progress.bytes_moved}
                )

    reporting = threading.Thread(target=report)
    reporting.start()
    try:
        yield progress
    finally:
        over.set()
        reporting.join()


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(1)
