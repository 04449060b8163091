"""The shape of mpi4py's demos: hello world, and a reduction over all ranks."""
# mypy: ignore-errors

from mpi4py import MPI

comm = MPI.COMM_WORLD
print(f"Hello, World! I am process {comm.rank} of {comm.size} on {MPI.Get_processor_name()}.", flush=True)
total = comm.allreduce(comm.rank + 1, op=MPI.SUM)
if comm.rank == 0:
    print(f"sum {total}", flush=True)
