"""Spawns an MPI process that exits with code 1; mpirun then ends the rank."""

import os
import sys

from mpi4py import MPI

parent = MPI.Comm.Get_parent()
if parent != MPI.COMM_NULL:
    os._exit(1)
print("ready", flush=True)
MPI.COMM_SELF.Spawn(sys.executable, args=[__file__], maxprocs=1).Barrier()
