"""A supervisor that is started before there is a run: it does its imports while the job is read, and is then given it.

If the run never comes, since the job is wrong or the command was killed, the supervisor sees its socket close and ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

KEEPER: Final = Path(__file__).with_name("__main__.py")
WAITS: Final = "waits"
PADDING: Final = "." * 100
"""Room for the id of the run in the command line."""

_waiting: socket.socket | None = None


@contextlib.contextmanager
def prepared(home: Path) -> Iterator[None]:
    """Have a supervisor wait for the run that this process submits in the block; one that was not needed is gone after.

    Where it cannot be started, nothing is said: `submit` then starts one, or says why it cannot.
    """
    global _waiting
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-I", "-S", str(KEEPER), str(home), WAITS, str(theirs.fileno()), PADDING]
        try:
            popen = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True, cwd="/", pass_fds=[theirs.fileno()],
            )  # fmt: skip
        except OSError:
            yield
            return
        theirs.close()
        _waiting = ours
        try:
            yield
        finally:
            if _waiting is None:
                popen.returncode = 0  # it has a run, and outlives us; nobody here waits for it
            else:
                _waiting = None
                ours.close()
                popen.wait()


def hand_over(home: Path, run_id: str, lock: int, log: int) -> bool:
    """Give the run to the supervisor that waits, with the run's lock and its log; False where there is none."""
    global _waiting
    connection, _waiting = _waiting, None
    if connection is None:
        return False
    with connection:
        try:
            socket.send_fds(connection, [json.dumps([str(home), run_id]).encode()], [lock, log])
        except OSError:
            return False
    return True


def wait_for_run(argv: Sequence[str]) -> list[str]:
    """In the supervisor: `HOME RUN_ID LOCK_FD` once they are known; empty if they never will be."""
    from windlass.worker import process

    with socket.socket(fileno=int(argv[2])) as connection:
        data, descriptors, _, _ = socket.recv_fds(connection, 65536, 2)
    if not data:
        return []
    lock, log = descriptors
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    given = [*json.loads(data), str(lock)]
    process.rename([sys.executable, "-I", "-S", str(KEEPER), *given])
    return given
