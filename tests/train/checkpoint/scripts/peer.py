"""`peer.py FOLDER`: plays exchanges in which another rank sends a pickle, as torch's own collectives of objects do.

Prints for each exchange what came of it. The pickle makes a file where it is loaded.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

from windlass.train.checkpoint.agreement import GlooWorld

FOLDER = Path(sys.argv[1])


class Pickled:
    """Makes a file when it is unpickled."""

    def __reduce__(self) -> Any:
        return open, (str(FOLDER / "unpickled"), "w")


def play(exchange: str, rank: int, sender: int) -> None:
    """One of two ranks, of which `sender` is the one that sends the pickle."""
    dist.init_process_group("gloo", init_method=f"file://{FOLDER}/{exchange}", rank=rank, world_size=2)
    world = GlooWorld({})
    try:
        if rank != sender:
            print(exchange, world.gather(["ours"]) if exchange == "gather" else world.broadcast(None), flush=True)
        elif exchange == "gather":
            found: list[Any] = [None, None]
            dist.all_gather_object(found, Pickled(), group=world._group)
        else:
            dist.broadcast_object_list([Pickled()], src=rank, group=world._group)
    except ValueError as error:
        print(f"{exchange}: {error}", flush=True)


def main() -> None:
    children = []
    for exchange, rank, sender in (("gather", 0, 1), ("gather", 1, 1), ("broadcast", 0, 0), ("broadcast", 1, 0)):
        child = os.fork()
        if child == 0:
            play(exchange, rank, sender)
            sys.stdout.flush()
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


main()
