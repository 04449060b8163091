"""Runs a command and prints what it took, from a process so small that its own size does not show in the command's.

Between fork and exec a child is as large as its parent, and the kernel's peak remembers that. The command's stderr is
this program's.
"""

import os
import sys
import time


def main() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    started = time.perf_counter()
    actions = [(os.POSIX_SPAWN_DUP2, null, descriptor) for descriptor in (0, 1)]
    pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=actions)
    _, status, usage = os.wait4(pid, 0)
    wall = time.perf_counter() - started
    print(os.waitstatus_to_exitcode(status), wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


main()
