"""Finds the process that has imported ahead what commands import (`windlass/cli/ahead.py`), and asks it for a fork.

Imports nothing but the standard library, and little of it: it is what a fast command consists of.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

SWITCH = "WINDLASS_WARM_COMMANDS"
"""The variable that turns all this off where it is 0."""
READ_AT_START = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_", "OPENSSL_", "PYDANTIC_")
"""How the variables begin that an interpreter or an import reads once."""
ANSWER_SECONDS = 2.0
"""For a process to fork; one that is busy is not waited for."""


def is_possible() -> bool:
    """Whether a fork could be like a new process of this interpreter, on this platform, with this environment."""
    if sys.platform != "linux" or os.environ.get(SWITCH) == "0":
        return False
    # What measures or debugs, or was put in between, is to see the process that it was meant for.
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return False
    return not any(name in ("LD_PRELOAD", "LD_AUDIT") or name.startswith("COVERAGE_") for name in os.environ)


def name_here() -> str:
    """The name of the process whose forks are like a new process started from here. Raises OSError."""
    from windlass.worker.surroundings import name_of, surroundings

    read = {name: value for name, value in os.environ.items() if name.startswith(READ_AT_START)}
    return name_of({"python": sys.executable, "of": __file__, "env": read, **surroundings()})


def connect(home: str | Path, name: str) -> socket.socket:
    """A connection to that process of this home, where it has done its imports. Raises OSError."""
    folder = os.open(os.path.join(home, "warm"), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(ANSWER_SECONDS)
        at = f"/proc/self/fd/{folder}/{name}"  # fits into the 107 bytes of an address, however deep the home lies
        os.stat(f"{at}.ready")
        connection.connect(f"{at}.sock")
        if _peer_uid(connection) != os.getuid():  # it would be told the environment
            raise PermissionError(f"its socket belongs to user {_peer_uid(connection)}")
        return connection
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(folder)


def fork(home: str | Path, task: Mapping[str, Any], descriptors: Sequence[int]) -> tuple[socket.socket, int] | None:
    """A connection to a fork that waits there for one byte, to begin with this task, and its pid; None without one."""
    try:
        if not any(file.endswith(".ready") for file in os.listdir(os.path.join(home, "warm"))):
            return None  # known before anything is imported to find out which of them it could be
        name = name_here()
        connection = connect(home, name)
    except OSError:
        return None
    try:
        return connection, _ask(connection, task, descriptors)
    except TimeoutError:
        _end(home, name)
    except (OSError, ValueError, KeyError):  # it ended, or refused
        pass
    connection.close()
    return None


def keep(home: Path, run_id: str, lock: int, log: int) -> bool:
    """Have a run on a cluster kept by a fork, which writes to `log`; gives whether there is one."""
    forked = fork(home, {"keep": [str(home), run_id]}, [lock, log]) if is_possible() else None
    if forked is None:
        return False
    connection, _ = forked
    with connection:
        try:
            connection.sendall(b"g")
        except OSError:
            return False
    return True


def send(connection: socket.socket, request: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Ask a warm process for something, by a line of JSON. Raises OSError."""
    import json

    data = json.dumps(request).encode() + b"\n"
    sent = socket.send_fds(connection, [data], list(descriptors)) if descriptors else 0
    if sent < len(data):  # even an empty send fails where the other side has answered and gone already
        connection.sendall(data[sent:])


def exchange(connection: socket.socket, request: Mapping[str, Any], descriptors: Sequence[int] = ()) -> bytes:
    """The line that answers a request. Raises OSError."""
    send(connection, request, descriptors)
    answer = b""
    while not answer.endswith(b"\n"):
        piece = connection.recv(65536)
        if not piece:
            raise ConnectionResetError("it ended without an answer")
        answer += piece
    return answer


def _ask(connection: socket.socket, task: Mapping[str, Any], descriptors: Sequence[int]) -> int:
    """Raises OSError, ValueError, KeyError (refused)."""
    import json

    from windlass.worker.likeness import inheritance

    return int(json.loads(exchange(connection, {"do": "fork", "inherit": inheritance(), **task}, descriptors))["pid"])


def _end(home: str | Path, name: str) -> None:
    """One that hangs would keep our outputs open, which whoever reads them would wait for."""
    from pathlib import Path

    from windlass.engines.local.warm import WarmPool

    WarmPool(Path(home)).stop(name)


def _peer_uid(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[4:8], sys.byteorder)
