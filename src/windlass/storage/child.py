"""What the programs of this package that a supervisor starts have in common: they report by lines of JSON.

They write their progress now and then, each result, or the error that ended them. They end with their standard input,
so that none outlives the supervisor that started it.
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
    """Do the work of the process; gives its exit code."""
    threading.Thread(target=_end_with_input, daemon=True).start()
    if (error := attempted(work)) is None:
        return 0
    say({"error": error.message, "hint": error.hint, "passes": isinstance(error, Throttled)})
    return 1


def attempted(work: Callable[[], None]) -> WindlassError | None:
    """Do some work; gives the error of ours that has ended it."""
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
    """Report something to the supervisor."""
    print(json.dumps(line), flush=True)


@contextmanager
def reported(name: str) -> Iterator[Progress]:
    """A progress that is reported now and then while the context lasts."""
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
