"""Runs a program and kills it when the caller exits, even by kill -9: `die_with_parent.py PROGRAM ARGUMENT...`.

The caller holds the other end of standard input; the kernel closes that pipe when the caller exits. A `helm` that
outlived its caller would change the cluster at the same time as the next command.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading


def main(argv: list[str]) -> int:
    """Runs the program; returns its exit code, or 128 plus the number of the signal that killed it."""
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
    threading.Thread(target=_follow, args=(child,), daemon=True).start()
    while True:
        try:
            code = child.wait()
        except KeyboardInterrupt:  # Ctrl-C also sends SIGINT to the child, which cleans up before it exits
            continue
        return code if code >= 0 else 128 - code


def _follow(child: subprocess.Popen[bytes]) -> None:
    while os.read(0, 4096):  # a buffered read would hold a lock and block interpreter shutdown
        pass
    child.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
