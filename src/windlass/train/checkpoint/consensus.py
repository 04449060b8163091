"""Lets all ranks reach the same decision at the same step: a small all-reduce whose result is used one step later."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from windlass.train.checkpoint.chunks import Chunk
from windlass.train.checkpoint.encoding import Decoder, Encoder
from windlass.train.checkpoint.faults import Fault, Problem
from windlass.train.checkpoint.files import Found
from windlass.train.checkpoint.storage import is_address

_RANK_NAMES = ("RANK", "OMPI_COMM_WORLD_RANK", "HOROVOD_RANK", "PMIX_RANK", "PMI_RANK", "WINDLASS_RANK")
_SIZE_NAMES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "HOROVOD_SIZE", "PMI_SIZE", "WINDLASS_WORLD_SIZE")
_COMMON_NAMES = (
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "HOROVOD_GLOO_RENDEZVOUS_PORT",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
)


class Flags(NamedTuple):
    """Flags that one rank reports to the others. Reduced by "or": set if at least one rank has set it."""

    stop: bool = False
    due: bool = False
    busy: bool = False
    failed: bool = False
    unplanned: bool = False


class World:
    """Communication between the ranks of a job. This base class is for a single rank."""

    can_communicate = True
    """Whether ranks can send each other data. True for a single rank, which has nothing to send."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    @property
    def lists(self) -> bool:
        """Whether this rank lists checkpoints: only rank 0 does, or every rank if ranks cannot communicate."""
        return self.rank == 0 or not self.can_communicate

    def exchange(self, flags: Flags) -> Flags:
        """Starts the reduction of this step's flags; returns the reduced flags of the previous step. A single rank gets
        this step's flags at once.
        """
        return flags  # a single rank needs no reduction

    def reduce(self, flags: Flags) -> Flags:
        """Reduces the flags of all ranks and waits for the result. Raises RuntimeError if a rank has died."""
        return self.begin_reduce(flags)()

    def begin_reduce(self, flags: Flags) -> Callable[[], Flags]:
        """Starts a reduction; the returned function waits for its result. Reductions run in the order of their
        start.
        """
        return lambda: flags

    def gather(self, thing: Any) -> list[Any]:
        """Returns the values of all ranks in rank order; ranks that cannot communicate get only their own."""
        return [thing]

    def broadcast(self, thing: Any) -> Any:
        """Returns the value of rank 0."""
        return self.gather(thing)[0]

    def salt(self, attempt: int) -> str:
        """Returns four hexadecimal digits that are equal on all ranks of this attempt and differ between attempts."""
        return secrets.token_hex(2)

    def close(self) -> None:
        """Removes the files and groups that the world has created."""


class FileWorld(World):
    """Ranks of Horovod or MPI, which train together without torch.distributed: rank 0 decides through a file.

    At the end of a step rank 0 writes the flags for the end of the next step. Training is synchronous: no rank ends the
    next step before rank 0 has started it, so every rank finds the file in time.
    """

    can_communicate = False

    def __init__(self, rank: int, size: int, environ: Mapping[str, str], folder: str, attempt: int) -> None:
        super().__init__(rank, size)
        self._environ = environ
        self._steps = 0
        self._flagged_step = 0
        self._path = os.path.join(folder, f".agreed-{attempt}-{self.salt(attempt)}")
        self.close()

    def exchange(self, flags: Flags) -> Flags:
        """Returns rank 0's flags one step later; flags of other ranks are ignored."""
        answer = self._read()
        self._steps += 1
        if self.rank == 0 and any(flags) and self._flagged_step < self._steps:
            self._flagged_step = self._steps + 1
            partial = f"{self._path}.partial"
            with open(partial, "w") as file:
                json.dump([self._flagged_step, flags], file)
            os.replace(partial, self._path)
        return answer

    def _read(self) -> Flags:
        try:
            with open(self._path) as file:
                at, flags = json.load(file)
        except (OSError, ValueError):
            return Flags()
        return Flags(*flags) if at == self._steps + 1 else Flags()

    def salt(self, attempt: int) -> str:
        """Returns a hash of the environment variables that are equal on all ranks."""
        common = [self._environ.get(name, "") for name in ("WINDLASS_RUN_ID", *_COMMON_NAMES)]
        return hashlib.sha256(json.dumps([*common, attempt]).encode()).hexdigest()[:4]

    def close(self) -> None:
        """Removes the file."""
        if self.rank == 0:
            with contextlib.suppress(OSError):
                os.unlink(self._path)


class GlooWorld(World):
    """The ranks of torch.distributed, over a separate gloo group that is independent of the script's collectives."""

    def __init__(self) -> None:
        """Creates the gloo group. A collective."""
        super().__init__(dist.get_rank(), dist.get_world_size())
        self._group: Any = dist.new_group(backend="gloo")
        self._finish: Callable[[], Flags] = Flags

    def exchange(self, flags: Flags) -> Flags:
        """Starts one asynchronous all-reduce per step; the reduction of the previous step has finished by then."""
        answer = self._finish()
        self._finish = self.begin_reduce(flags)
        return answer

    def begin_reduce(self, flags: Flags) -> Callable[[], Flags]:
        """Starts a reduction; the returned function waits for its result."""
        tensor = torch.tensor(flags, dtype=torch.uint8)
        work: Any = dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self._group, async_op=True)

        def finish() -> Flags:
            work.wait()
            return Flags(*tensor.bool().tolist())

        return finish

    def gather(self, thing: Any) -> list[Any]:
        """Gathers values as JSON, because torch's collectives for objects would unpickle data from other ranks."""
        mine = to_message(thing)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(mine)]), group=self._group)
        most = max(int(size) for size in sizes)
        buffers = [bytearray(most) for _ in sizes]
        dist.all_gather([_over(buffer) for buffer in buffers], _over(bytearray(mine.ljust(most))), group=self._group)
        return [from_message(buffer[: int(size)]) for buffer, size in zip(buffers, sizes, strict=True)]

    def salt(self, attempt: int) -> str:
        """Returns a salt chosen by rank 0."""
        return str(self.broadcast(super().salt(attempt)))


_MESSAGE_TYPES = (Chunk, Fault, Found, Problem)


def to_message(thing: Any) -> bytes:
    """Encodes a message between ranks. Raises TypeError for a type that has no encoding."""
    return json.dumps(Encoder(types=_MESSAGE_TYPES).encode(thing, "message"), separators=(",", ":")).encode()


def from_message(data: bytes | bytearray) -> Any:
    """Decodes a message of `to_message`. Raises ValueError for other bytes.

    Pickle is not used: the bytes may come from any process that reaches a rank's port, and unpickling runs code.
    """
    try:
        return Decoder(types=_MESSAGE_TYPES).decode(json.loads(data), "message")
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"another rank sent {len(data)} bytes that Windlass did not write: {error}") from error


def _over(buffer: bytearray) -> torch.Tensor:
    """Returns a tensor that shares the memory of the buffer."""
    return torch.frombuffer(buffer, dtype=torch.uint8)


def join(folder: str, attempt: int, environ: Mapping[str, str] = os.environ) -> World:
    """Returns the world of this process. A collective if torch.distributed is initialised."""
    if dist.is_available() and dist.is_initialized():
        return GlooWorld()
    rank, size = _number(environ, _RANK_NAMES, 0), _number(environ, _SIZE_NAMES, 1)
    if rank >= size or size == 1:
        return World(0, 1)
    if is_address(folder):
        raise ValueError(
            f"checkpoints of {size} ranks are kept in {folder} only where ranks use torch.distributed; others, such as "
            "those of Horovod, agree by files: give Checkpoint a folder that all nodes share"
        )
    return FileWorld(rank, size, environ, folder, attempt)


def _number(environ: Mapping[str, str], names: tuple[str, ...], default: int) -> int:
    for name in names:
        if environ.get(name, "").isdigit():
            return int(environ[name])
    return default
