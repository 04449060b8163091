"""Finds ranks of a torchrun job that never connected: each trains alone, although the job has several ranks.

A rank that creates a process group writes `rank-N.met`. A rank that ends successfully without one, has used torch, and
has no other connection to its peers, writes `rank-N.alone`. While ranks run, the node checks them from outside. In case
of doubt a rank does not count as alone, because ranks may reach their peers in ways that are not detected here.

Standard library only, and no other worker modules, because ranks also load this module.
"""

from __future__ import annotations

import os
import re
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windlass.worker.ranks import Ranks

CHECK_SECONDS = 15.0
"""Seconds between two checks of the node's ranks, and from the first progress to the first check."""
MET, ALONE = ".met", ".alone"
OTHER_MODULES = (
    "horovod", "mpi4py", "jax", "ray", "tensorflow", "mxnet", "torch_xla", "oneccl_bindings_for_pytorch", "cupy",
    "dask", "distributed", "zmq", "grpc", "redis", "xgboost", "lightgbm", "pyspark",
)  # fmt: skip
"""Modules through which ranks may reach each other without a torch process group."""
OTHER_LIBRARIES = ("libmpi", "horovod", "jaxlib", "_raylet", "tensorflow", "_XLAC", "cygrpc", "libzmq")
USERS = frozenset({"torch", "lightning", "pytorch_lightning", "transformers", "accelerate"})
"""A script with a module that references one of these modules is assumed to train with torch."""
_LISTENS, _ESTABLISHED = "0A", "01"
_WEB = (80, 443)


class RendezvousCheck:
    """Checks whether the ranks of a node make progress but have never connected; two checks must agree."""

    def __init__(self, world_size: int) -> None:
        self._at = 0.0
        """Monotonic time of the next check; 0 before the first progress."""
        self._checks_left = 2 if world_size > 1 else 0

    def finds_alone(self, ranks: Ranks, but: tuple[int, ...]) -> bool:
        """Checks the ranks if a check is due. Must be called while they make progress. Returns True at most once."""
        now = time.monotonic()
        is_due = 0 < self._at <= now
        if is_due or not self._at:
            self._at = now + CHECK_SECONDS
        if not is_due or not self._checks_left:
            return False
        are_alone = all(rank.is_live and looks_alone(rank.pid, rank.base, but) for rank in ranks)
        self._checks_left = self._checks_left - 1 if are_alone else 0
        return are_alone and not self._checks_left


def is_alone() -> bool:
    """Whether this process, a finished rank, used torch but neither created a process group nor connected to a peer."""
    if os.environ.get("WORLD_SIZE", "1") == "1" or any(name in sys.modules for name in OTHER_MODULES):
        return False
    status = re.search(r":(\d+)", os.environ.get("KUBEFLOW_TRAINER_SERVER_URL", "").partition("//")[2])
    return _uses_torch() and not has_connections("self", (int(status[1]),) if status else ())


def looks_alone(pid: int, base: str, but: tuple[int, ...] = ()) -> bool:
    """Whether a running rank seems to train alone, judged from `/proc`. Connections to the node's own ports, `but`, are
    ignored.
    """
    if os.path.exists(base + MET):
        return False
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:  # paths may contain any bytes
            libraries = {os.fsdecode(line).rpartition("/")[2].strip() for line in file if b"/" in line}
    except OSError:
        return False
    if not any(name.startswith("libtorch_cpu") for name in libraries):
        return False
    return not any(word in name for word in OTHER_LIBRARIES for name in libraries) and not has_connections(pid, but)


def has_connections(process: int | str, but: tuple[int, ...] = ()) -> bool:
    """Whether a process listens on a TCP port or has a TCP connection. Connections to web ports and to the ports in
    `but` do not count. True if this cannot be read.
    """
    try:
        names = os.listdir(f"/proc/{process}/fd")
        own = set()
        for name in names:
            try:
                own.add(os.readlink(f"/proc/{process}/fd/{name}"))
            except OSError:
                continue
        for table in ("tcp", "tcp6"):
            with open(f"/proc/{process}/net/{table}") as file:
                for line in list(file)[1:]:
                    fields = line.split()
                    peer = int(fields[2].rpartition(":")[2], 16)
                    is_used = fields[3] == _LISTENS or (fields[3] == _ESTABLISHED and peer not in (*_WEB, *but))
                    if is_used and f"socket:[{fields[9]}]" in own:
                        return True
    except (OSError, ValueError, IndexError):
        return True
    return False


def _uses_torch() -> bool:
    """Whether a module of the script references torch, or a library for training with torch.

    type() is used instead of isinstance(), because asking a proxy object for its class runs code of the script.
    """
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None) if type(module) is type(sys) else None
        if not isinstance(file, str) or "-packages" in file or file.startswith((sys.base_prefix + "/lib", "<")):
            continue
        for value in list(vars(module).values()):
            name = value.__name__ if type(value) is type(sys) else value.__module__ if type(value) is type else ""
            if isinstance(name, str) and name.partition(".")[0] in USERS:
                return True
    return False
