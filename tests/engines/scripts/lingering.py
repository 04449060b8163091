"""Rank 1 raises but exits late, as with Horovod; rank 0 fails because of that and exits first."""

import atexit
import os
import pathlib
import time

rank, said = int(os.environ["RANK"]), pathlib.Path(os.environ["WINDLASS_OUTPUT_DIR"], "leaving")


def linger() -> None:
    said.touch()
    time.sleep(600)


if rank == 1:
    atexit.register(linger)
    raise ValueError("no such batch")
while not said.exists():
    time.sleep(0.01)
raise RuntimeError("cannot go on")
