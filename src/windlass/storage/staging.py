"""`python -m windlass.storage.staging HOME (NAME SOURCE LINK)…`: a process that stages the data sets of a run.

It writes lines of JSON: its progress now and then, each set that is there, or the error that ended it. It ends with its
standard input, so that none outlives the supervisor that started it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from windlass.errors import WindlassError
from windlass.storage.address import Address
from windlass.storage.cache import DataCache
from windlass.storage.failure import first_of
from windlass.storage.memory import return_freed_blocks
from windlass.storage.progress import Progress

REPORT_SECONDS: Final = 1.0


def main(argv: list[str]) -> int:
    """Stage all sets, one after the other; gives the exit code."""
    threading.Thread(target=_end_with_input, daemon=True).start()
    return_freed_blocks()
    cache = DataCache(Path(argv[0]))
    try:
        for name, source, link in zip(argv[1::3], argv[2::3], argv[3::3], strict=True):
            _stage(cache, name, Address.parse(source, Path("/")), Path(link))
    except (WindlassError, BaseExceptionGroup) as raised:
        error = first_of(raised)
        if not isinstance(error, WindlassError):
            raise
        _say({"error": error.message, "hint": error.hint})
        return 1
    return 0


def _stage(cache: DataCache, name: str, source: Address, link: Path) -> None:
    progress, over = Progress(), threading.Event()
    reporting = threading.Thread(target=_report, args=(name, progress, over))
    reporting.start()
    try:
        staged, moved = asyncio.run(cache.stage(source, link, progress))
    finally:
        over.set()
        reporting.join()
    _say({"name": name, "digest": staged.digest, "files": staged.num_files, "bytes": staged.num_bytes,
          "moved": moved})  # fmt: skip


def _report(name: str, progress: Progress, over: threading.Event) -> None:
    while not over.wait(REPORT_SECONDS):
        if not progress.is_listing:
            _say({"name": name, "done": progress.bytes_done, "of": progress.num_bytes, "moved": progress.bytes_moved})


def _say(line: Mapping[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
