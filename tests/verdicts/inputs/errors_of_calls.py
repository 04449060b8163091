"""Fails in a call to the system, whose error number means something else for each call."""

import errno
import fcntl
import os
import subprocess
import sys


def lock():
    first, second = open("db.lock", "w"), open("db.lock", "w")
    fcntl.flock(first, fcntl.LOCK_EX)
    fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)


def program():
    subprocess.run(["ffmpegg", "-version"], check=True)


def program_fails():
    subprocess.run(["sh", "-c", "echo shard 3 has no labels; exit 4"], check=True)


def stale():
    for step in range(1, 4):
        print(f"step {step}/3 loss {1 / step:.3f}", flush=True)
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), "/mnt/data/shard-4.bin")


globals()[sys.argv[1]]()
