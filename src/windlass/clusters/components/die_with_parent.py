"""Runs a program and kills it when the caller ends, also by kill -9: `die_with_parent.py PROGRAM ARGUMENT...`.

The caller holds the other end of standard input; when it ends, the kernel closes the pipe. A `helm` that survived its
caller would change the cluster at the same time as the next command.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading


def main(argv: list[str]) -> int:
    """The exit code of the program; 128 and the signal where one ended it."""
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
    threading.Thread(target=_follow, args=(child,), daemon=True).start()
    while True:
        try:
            code = child.wait()
        except KeyboardInterrupt:  # the terminal sends it to the child too, which cleans up first
            continue
        return code if code >= 0 else 128 - code


def _follow(child: subprocess.Popen[bytes]) -> None:
    while os.read(0, 4096):  # a buffered read would hold a lock that the end of the interpreter waits for
        pass
    child.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
