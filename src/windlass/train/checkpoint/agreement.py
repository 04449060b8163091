"""How ranks come to the same decision at the same step: a small all-reduce whose answer is used one step later."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from windlass.train.checkpoint import wire

NUM_FLAGS = 8
_RANK_NAMES = ("RANK", "OMPI_COMM_WORLD_RANK", "HOROVOD_RANK", "PMIX_RANK", "PMI_RANK")
_SIZE_NAMES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "HOROVOD_SIZE", "PMI_SIZE")
_COMMON_NAMES = (
    "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "HOROVOD_GLOO_RENDEZVOUS_PORT", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip


class Promise:
    """An exchange that is under way."""

    def __init__(self, flags: Any, work: Any) -> None:
        self._flags = flags
        self._work = work

    def is_done(self) -> bool:
        """Whether all ranks have given their flags, or one of them is gone."""
        return self._work is None or bool(self._work.is_completed())

    def result(self) -> list[int]:
        """The greatest of each flag. Raises RuntimeError where a rank is gone."""
        if self._work is not None:
            self._work.wait()
        return [int(flag) for flag in self._flags]


class World:
    """This rank alone, which agrees with itself."""

    def __init__(self, rank: int, size: int, environ: Mapping[str, str]) -> None:
        self.rank = rank
        self.size = size
        self._environ = environ

    @property
    def talks(self) -> bool:
        """Whether ranks can tell each other anything; one alone has nothing to tell."""
        return True

    def exchange(self, flags: list[int]) -> list[int]:
        """Give this step's flags; gives the greatest of each over all ranks, as of the step before."""
        return flags  # alone there is nobody to wait for

    def now(self, flags: list[int]) -> list[int]:
        """The greatest of each flag over all ranks, waiting for them."""
        return flags

    def begin(self, flags: list[int]) -> Promise:
        """As `now`, without waiting."""
        return Promise(flags, None)

    def gather(self, thing: Any) -> list[Any]:
        """What each rank has given, in the order of ranks. Ranks that cannot talk see only their own."""
        return [thing]

    def broadcast(self, thing: Any) -> Any:
        """What rank 0 has given."""
        return thing

    def salt(self, attempt: int) -> str:
        """Four hexadecimal digits that all ranks of this attempt have, and no other attempt."""
        return secrets.token_hex(2)

    def close(self) -> None:
        """Leave nothing behind."""


class FilesWorld(World):
    """Ranks of Horovod or MPI, which train together but cannot talk to each other here, except by a file of rank 0.

    At the end of a step rank 0 writes down what is to be done at the end of the next. Training is synchronous, so no
    rank ends the next step before rank 0 has begun it, and all find the file in time.
    """

    def __init__(self, rank: int, size: int, environ: Mapping[str, str], folder: str, attempt: int) -> None:
        super().__init__(rank, size, environ)
        self._steps = 0
        self._said = 0
        self._path = os.path.join(folder, f".agreed-{attempt}-{self.salt(attempt)}")
        self.close()

    @property
    def talks(self) -> bool:
        """They cannot."""
        return False

    def exchange(self, flags: list[int]) -> list[int]:
        """Rank 0's flags, one step later; those of the others count for nothing."""
        answer = self._read()
        self._steps += 1
        if self.rank == 0 and any(flags) and self._said < self._steps:
            self._said = self._steps + 1
            partial = f"{self._path}.partial"
            with open(partial, "w") as file:
                json.dump([self._said, flags], file)
            os.replace(partial, self._path)
        return answer

    def _read(self) -> list[int]:
        try:
            with open(self._path) as file:
                at, flags = json.load(file)
        except (OSError, ValueError):
            return [0] * NUM_FLAGS
        return [int(flag) for flag in flags] if at == self._steps + 1 else [0] * NUM_FLAGS

    def salt(self, attempt: int) -> str:
        """Made of what is the same in the environment of all ranks."""
        common = [self._environ.get(name, "") for name in ("WINDLASS_RUN_ID", *_COMMON_NAMES)]
        return hashlib.sha256(json.dumps([*common, attempt]).encode()).hexdigest()[:4]

    def close(self) -> None:
        """Remove the file."""
        if self.rank == 0:
            with contextlib.suppress(OSError):
                os.unlink(self._path)


class GlooWorld(World):
    """The ranks of torch.distributed, over a gloo group of our own: the script's collectives are not in its way."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """A collective: all ranks make one."""
        super().__init__(dist.get_rank(), dist.get_world_size(), environ)
        self._group: Any = dist.new_group(backend="gloo")
        self._pending: Promise | None = None

    def exchange(self, flags: list[int]) -> list[int]:
        """One asynchronous all-reduce a step; the wait for the last one is over before it begins."""
        answer = self._pending.result() if self._pending is not None else [0] * NUM_FLAGS
        self._pending = self.begin(flags)
        return answer

    def begin(self, flags: list[int]) -> Promise:
        """Collectives of a group go in the order in which they are begun."""
        tensor = torch.tensor(flags, dtype=torch.uint8)
        return Promise(tensor, dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self._group, async_op=True))

    def now(self, flags: list[int]) -> list[int]:
        """One of a step may be under way meanwhile."""
        return self.begin(flags).result()

    def gather(self, thing: Any) -> list[Any]:
        """As JSON: torch's own collectives of objects unpickle what another rank sends."""
        mine = wire.dumps(thing)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(mine)]), group=self._group)
        most = max(int(size) for size in sizes)
        buffers = [bytearray(most) for _ in sizes]
        dist.all_gather([_over(buffer) for buffer in buffers], _over(bytearray(mine.ljust(most))), group=self._group)
        return [wire.loads(buffer[: int(size)]) for buffer, size in zip(buffers, sizes, strict=True)]

    def broadcast(self, thing: Any) -> Any:
        """From rank 0."""
        mine = wire.dumps(thing) if self.rank == 0 else b""
        size, source = torch.tensor([len(mine)]), dist.get_global_rank(self._group, 0)
        dist.broadcast(size, src=source, group=self._group)
        buffer = bytearray(mine) if self.rank == 0 else bytearray(int(size))
        dist.broadcast(_over(buffer), src=source, group=self._group)
        return wire.loads(buffer)

    def salt(self, attempt: int) -> str:
        """Rank 0's choice."""
        return str(self.broadcast(secrets.token_hex(2)))


def _over(buffer: bytearray) -> torch.Tensor:
    """A tensor in the memory of the buffer."""
    return torch.frombuffer(buffer, dtype=torch.uint8)


def join(folder: str, attempt: int, environ: Mapping[str, str] = os.environ) -> World:
    """The world that this process is in. A collective if torch.distributed is initialised."""
    if dist.is_available() and dist.is_initialized():
        return GlooWorld(environ)
    rank, size = _number(environ, _RANK_NAMES, 0), _number(environ, _SIZE_NAMES, 1)
    return FilesWorld(rank, size, environ, folder, attempt) if rank < size and size > 1 else World(0, 1, environ)


def _number(environ: Mapping[str, str], names: tuple[str, ...], default: int) -> int:
    for name in names:
        if environ.get(name, "").isdigit():
            return int(environ[name])
    return default
