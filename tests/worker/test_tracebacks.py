"""The traceback that ended the process is told from those that did not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from windlass.worker import rank
from windlass.worker.tracebacks import exception_line, traceback_of

FRAMES = 'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n    x()\n'
MAIN = f"{FRAMES}ValueError: of the main thread\n"
THREAD = f"Exception in thread Thread-1 (fetch):\n{FRAMES}ConnectionResetError: of a thread\n"
CHAINED = f"\nDuring handling of the above exception, another exception occurred:\n\n{FRAMES}TypeError: of logging\n"
CALL_STACK = "Call stack:\n  File \"a.py\", line 3, in <module>\nMessage: 'x'\nArguments: (1,)\n"
LOGGING = f"--- Logging error ---\n{FRAMES}TypeError: of logging\n{CALL_STACK}"

THREAD_AFTER_MAIN = """
import threading

def fetch():
    threading.main_thread().join()
    raise ConnectionResetError(104, "Connection reset by peer")

threading.Thread(target=fetch).start()
raise ValueError("of the main thread")
"""
LOGGING_AFTER_MAIN = """
import atexit, logging

atexit.register(lambda: logging.getLogger().error("closing %s %s", "a"))
raise ValueError("of the main thread")
"""


@pytest.mark.parametrize("script", [THREAD_AFTER_MAIN, LOGGING_AFTER_MAIN], ids=["thread", "logging"])
def test_a_later_traceback_that_ended_no_process_is_not_the_cause(tmp_path: Path, script: str) -> None:
    (tmp_path / "train.py").write_text(script)
    command = [sys.executable, rank.__file__, str(tmp_path / "train.py")]
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert exception_line(traceback_of(ended.stderr)) == "ValueError: of the main thread"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (MAIN + THREAD + THREAD, "ValueError: of the main thread"),
        (THREAD + MAIN, "ValueError: of the main thread"),
        (MAIN + LOGGING, "ValueError: of the main thread"),
        (f"{MAIN}--- Logging error ---\n{MAIN}{CHAINED}{CALL_STACK}", "ValueError: of the main thread"),
        ("step 1\n" + THREAD, "ConnectionResetError: of a thread"),
        (THREAD + LOGGING, "ConnectionResetError: of a thread"),
        (LOGGING, ""),
        (
            f"{THREAD}{FRAMES}subprocess.CalledProcessError: returned non-zero exit status 1.",
            "ConnectionResetError: of a thread",
        ),
    ],
)
def test_a_thread_is_the_cause_only_without_another(text: str, line: str) -> None:
    assert exception_line(traceback_of(text)) == line
