"""Program that an external launcher starts in place of a rank: requests the rank from the node, and exits like the
rank.

The proxy forwards the launcher's environment and signals to the node.
"""

import json
import os
import signal
import socket
import sys

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main(argv: list) -> int:  # type: ignore[type-arg]
    """Runs the proxy with the argument `NODE_SPEC`, the path of a node spec. The node's socket is next to this file."""
    folder, name = os.path.split(argv[0])
    os.chdir(folder)  # socket paths are limited to 107 bytes, and folders may have longer paths
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(os.path.splitext(name)[0] + ".sock")
    connection.sendall(_line({"pid": os.getpid(), "environ": dict(os.environ)}))
    for number in FORWARDED:
        signal.signal(number, lambda number, _frame: connection.sendall(_line({"signal": int(number)})))
    answer = b""
    while not answer.endswith(b"\n"):
        piece = connection.recv(4096)
        if not piece:
            return 1  # the node and its ranks have died
        answer += piece
    code = int(json.loads(answer)["exit_code"])
    if code < 0:
        _die(-code)
    return code & 0xFF


def _line(message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _die(number: int) -> None:
    """Kills this process with the signal that ended the rank, without a core file."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
