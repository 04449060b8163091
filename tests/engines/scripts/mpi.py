"""Ranks meet by MPI; rank 1 then does what the first argument names while the others wait for it."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path

from mpi4py import MPI

world = MPI.COMM_WORLD
total = world.allreduce(world.rank + 1)
print(f"rank {os.environ['RANK']} is {world.rank} of {world.size}, sum {total}", flush=True)
what = sys.argv[1]
if what == "where":
    print(f"rank {world.rank} on {socket.gethostname()}: {Path('/proc/self/ns/net').readlink()}", flush=True)


def save(*_: object) -> None:
    print("saving", flush=True)
    time.sleep(1.5)
    print("saved", flush=True)
    os._exit(0)


if what == "save":
    signal.signal(signal.SIGTERM, save)
    world.Barrier()  # all ranks are ready to save
    if world.rank == 1:
        os._exit(4)
    time.sleep(600)
if world.rank == 1:
    if what == "raise":
        raise ValueError("no such batch")
    if what in ("kill", "wait"):
        job = f"{int(os.environ['OMPI_MCA_ess_base_jobid']):x}"  # noqa: SIM112 - its name is Open MPI's
        segments = [str(path) for path in Path("/dev/shm").iterdir() if job in path.name]
        print("files", os.environ["PMIX_SERVER_TMPDIR"], *segments, flush=True)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "wait":
        time.sleep(600)
    if what == "abort":
        world.Abort(7)
    if what == "leave":
        os._exit(0)
world.Barrier()
