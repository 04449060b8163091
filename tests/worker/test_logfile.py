"""The log of a rank keeps the traceback that ended the process."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.worker.test_tracebacks import CHAINED, LOGGING, MAIN, THREAD

from windlass.worker.logfile import TAIL_BYTES, LogFile

IGNORED = f"Exception ignored in: <function Writer.__del__ at 0x7f>\n{MAIN}"


@pytest.mark.parametrize("chunk", [1 << 20, 57])
@pytest.mark.parametrize(
    ("before", "after"), [("", THREAD), ("", LOGGING), ("", IGNORED), (THREAD, ""), ("", THREAD + CHAINED)]
)
def test_traceback_of_the_main_thread_is_kept(tmp_path: Path, before: str, after: str, chunk: int) -> None:
    log = LogFile(str(tmp_path), 0, None)
    for number, text in enumerate((before, MAIN, after)):
        data = text.encode()
        for line in [data] if chunk > len(data) else data.splitlines(keepends=True):
            log.keep(line, number * 10**9)
    assert log.traceback.startswith(MAIN)
    assert log.traceback_at == 1


def test_traceback_of_a_thread_is_kept_without_a_recent_other(tmp_path: Path) -> None:
    log = LogFile(str(tmp_path), 0, None)
    log.keep(MAIN.encode() + b"step\n" * TAIL_BYTES, 0)
    log.keep(THREAD.encode(), 10**9)
    assert "of a thread" in log.traceback
    assert log.traceback_at == 1
