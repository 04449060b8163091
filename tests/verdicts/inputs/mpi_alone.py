"""Asks MPI for the size of its world, though nothing has started it by MPI."""

from mpi4py import MPI

world = MPI.COMM_WORLD
print("rank", world.rank, "of", world.size, flush=True)
