"""Leaves work for the shutdown of the interpreter: exit functions, threads and unflushed output."""

import atexit
import os
import sys
import threading
import time
from pathlib import Path

folder = Path(os.environ["WINDLASS_OUTPUT_DIR"])
left_open = open(folder / "left-open.txt", "w")  # noqa: SIM115
left_open.write("all of it")
raw = open(folder / "raw.bin", "wb")  # noqa: SIM115
raw.write(b"bytes too")


def late() -> None:
    time.sleep(0.3)
    print("thread ended")


atexit.register(print, "second")
atexit.register(print, "first")
threading.Thread(target=late).start()
threading.Thread(target=time.sleep, args=(300,), daemon=True).start()
sys.stdout.write("no newline, not flushed")
