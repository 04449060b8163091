"""Runs phases of training, each with some ranks forked from this process, and prints their results: imports torch once.

`worlds.py FOLDER` runs all phases and prints a line of JSON for each rank of each phase. Nothing is computed before the
forks. If the library of `read_errors.c` is preloaded, reads fail in some phases.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
import torch._dynamo  # creating an optimizer imports it: done once here, and not in each rank
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from windlass.train.checkpoint import Checkpoint, files
from windlass.train.checkpoint.consensus import GlooWorld

FOLDER = Path(sys.argv[1])
Rank = Callable[[], dict[str, Any]]


def make(kind: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Creates a model with a frozen layer, wrapped for this world and equal on all ranks, and its optimizer."""
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(7, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 5), nn.Linear(5, 3))
    for parameter in model[3].parameters():  # type: ignore[index]
        parameter.requires_grad_(False)
    if kind == "ddp" and dist.get_world_size() > 1:
        model = nn.parallel.DistributedDataParallel(model)
    elif kind == "fsdp":
        fully_shard(model[0])  # type: ignore[index]
        fully_shard(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return model, torch.optim.AdamW(trained, lr=0.01)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Makes a step on the same batch in every rank, so that it does not depend on the number of ranks."""
    generator = torch.Generator().manual_seed(step)
    batch = torch.randn(16, 7, generator=generator)
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Returns the digest of all tensors of both, gathered from all ranks."""
    tensors = [*model.state_dict().values()]
    for parameter in model.parameters():
        tensors += [optimizer.state[parameter][key] for key in sorted(optimizer.state.get(parameter, {}))]
    found = hashlib.sha256()
    for tensor in tensors:
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        found.update(whole.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def first() -> dict[str, Any]:
    """Trains five steps of each kind and saves; returns what was saved."""
    told: dict[str, Any] = {}
    for kind in ("ddp", "fsdp"):
        model, optimizer = make(kind)
        mine = {"tuple": (1, float("inf")), 7: b"bytes", "rank": dist.get_rank()}
        saved = Checkpoint(model=model, optimizer=optimizer, mine=mine, folder=FOLDER / kind, every=3)
        for step in range(5):
            train(model, optimizer, step)
            saved.step()
        torch.manual_seed(100 + dist.get_rank())
        told[f"{kind} safe"] = saved.save(wait=True)
        told[f"{kind} random"] = torch.rand(3).tolist()
        told[kind] = digest(model, optimizer)
        saved.close()
    return told


def resumed() -> dict[str, Any]:
    """Resumes from the saved checkpoints with another number of ranks; then makes and saves one more step."""
    told: dict[str, Any] = {}
    for kind in ("ddp", "fsdp"):
        model, optimizer = make(kind)
        mine: dict[Any, Any] = {}
        saved = Checkpoint(model=model, optimizer=optimizer, mine=mine, folder=FOLDER / kind, every=3)
        told[f"{kind} steps"] = saved.restore()
        told[f"{kind} random"] = torch.rand(3).tolist()
        told[kind] = digest(model, optimizer)
        told[f"{kind} mine"] = repr(mine)
        train(model, optimizer, saved.steps)
        saved.step()
        told[f"{kind} safe"] = saved.save(wait=True)
        told[f"{kind} after"] = digest(model, optimizer)
        saved.export(FOLDER / f"{kind}-{dist.get_world_size()}.pt")
        saved.export(FOLDER / f"{kind}-{dist.get_world_size()}.safetensors")
        saved.close()
    return told


def stopped() -> dict[str, Any]:
    """Trains until SIGTERM arrives; each rank gets its own SIGTERM, at a different time."""
    model, optimizer = make("ddp")
    saved = Checkpoint(model=model, optimizer=optimizer, folder=FOLDER / "stopped", every=10**6)
    for step in range(100_000):
        train(model, optimizer, step)
        if step == 3:
            (FOLDER / f"ready-{dist.get_rank()}").touch()
        try:
            saved.step()
        except SystemExit:
            tell("stopped", dist.get_rank(), {"at": saved.steps, "digest": digest(model, optimizer)})
            raise
    raise AssertionError("no rank was stopped")


def refusing() -> dict[str, Any]:
    """The newest checkpoint has a flipped bit in a file that only rank 1 verifies."""
    model, optimizer = make("ddp")
    saved = Checkpoint(model=model, optimizer=optimizer, mine={}, folder=FOLDER / "ddp")
    steps = saved.restore()
    saved.close()
    return {"steps": steps, "digest": digest(model, optimizer)}


def other_model() -> dict[str, Any]:
    """Resumes with a script whose model has changed."""
    model, optimizer = make("ddp")
    inner = cast(nn.Sequential, model.module)
    inner.added = nn.Linear(2, 2)
    inner[0] = nn.Linear(7, 8)
    saved = Checkpoint(model=inner, optimizer=optimizer, mine={}, folder=FOLDER / "ddp")
    try:
        saved.restore()
    except ValueError as error:
        return {"said": str(error)}
    finally:
        saved.close()
    return {}


def writer_dies() -> dict[str, Any]:
    """The writer of rank 1 is killed in the middle of a save; the next writer succeeds."""
    model, optimizer = make("ddp")
    saved = Checkpoint(model=model, optimizer=optimizer, folder=FOLDER / "dies", every=10**6)
    train(model, optimizer, 0)
    saved.step()
    if dist.get_rank() == 1:
        os.kill(saved._saver.writer.pid, signal.SIGSTOP)
    saved.save()
    if dist.get_rank() == 1:
        os.kill(saved._saver.writer.pid, signal.SIGKILL)
    train(model, optimizer, 1)
    saved.step()
    safe = saved.save(wait=True)
    saved.close()
    return {"safe": safe}


def without_talking() -> dict[str, Any]:
    """Ranks that train in lockstep without torch.distributed, as with Horovod."""
    rank = int(os.environ["RANK"])
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters())
    own = {"rank": rank}
    part = PerRank(own)
    saved = Checkpoint(model=model, optimizer=optimizer, own=part, folder=FOLDER / "alone", every="0.2s")
    began = saved.restore()
    for step in range(100_000):
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        os.write(PIPES[1 - rank][1], b".")
        os.read(PIPES[rank][0], 1)
        if step == 60:
            (FOLDER / f"ready-{rank}").touch()
        time.sleep(0.005)
        try:
            saved.step()
        except SystemExit:
            tell("alone again" if began else "alone", rank, {"began": began, "at": saved.steps, "own": part.values})
            raise
    raise AssertionError("no rank was stopped")


class PerRank:
    """Object with a separate state on each rank."""

    state_is_per_rank = True

    def __init__(self, values: dict[str, int]) -> None:
        self.values = values

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values, "tensor": torch.full((3,), float(self.values["rank"]))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["tensor"].tolist() == [float(self.values["rank"])] * 3
        self.values = {**state["values"], "again": 1}


PIPES = [os.pipe(), os.pipe()]


class Pickled:
    """Object that creates a file when it is unpickled."""

    def __reduce__(self) -> Any:
        return open, (str(FOLDER / "unpickled"), "w")


def gather_pickle() -> dict[str, Any]:
    """Rank 1 sends a pickle, like torch's own collectives of objects."""
    world = GlooWorld()
    if world.rank == 1:
        found: list[Any] = [None, None]
        with contextlib.suppress(pickle.UnpicklingError):  # the receiver expects JSON
            dist.all_gather_object(found, Pickled(), group=world._group)
        return {}
    try:
        return {"received": repr(world.gather(["ours"]))}
    except ValueError as error:
        return {"said": str(error)}


def saved_each_step() -> dict[str, Any]:
    """Each step takes longer than a save."""
    model, optimizer = make("ddp")
    saved = Checkpoint(model=model, optimizer=optimizer, folder=FOLDER / "each", every=1, keep=9)
    for step in range(4):
        train(model, optimizer, step)
        saved.step()
        saved._saver.await_writer()
        dist.barrier()
    saved.close()
    return {}


# -- reads that fail --------------------------------------------------------------------------------------------------


def saved_twice() -> dict[str, Any]:
    model, optimizer = make("ddp")
    saved = Checkpoint(model=model, optimizer=optimizer, folder=FOLDER / "ck", every=1, when_busy="wait")
    for step in range(2):
        train(model, optimizer, step)
        saved.step()
    saved.close()
    return {"digest": digest(model, optimizer)}


def restored() -> dict[str, Any]:
    model, optimizer = make("ddp")
    try:
        saved = Checkpoint(model=model, optimizer=optimizer, folder=FOLDER / "ck")
    except OSError as error:
        return {"raised": type(error).__name__, "said": str(error)}
    try:
        return {"steps": saved.restore(), "digest": digest(model, optimizer)}
    except (OSError, ValueError) as error:
        return {"raised": type(error).__name__, "said": str(error)}
    finally:
        saved.close()


def phase_with_errors(name: str, seconds: float, number: int, place: Path, *, once: bool = False) -> None:
    """Restores while reads of `place` fail; the ranks repeat the reads for `seconds`."""
    control = Path(os.environ["READ_ERRORS"])
    os.environ["WINDLASS_CHECKPOINT_RETRY_SECONDS"] = str(seconds)
    control.write_text(f"{number} {place}{' once' if once else ''}\n")
    phase(name, 2, restored)
    control.unlink(missing_ok=True)


def phases_with_errors() -> None:
    phase("save", 2, saved_twice)
    newest, older = (Path(found.path) for found in files.list_checkpoints(FOLDER / "ck"))
    phase_with_errors("once", 30, errno.ESTALE, newest / "rank-1.json", once=True)
    phase_with_errors("file of rank 1", 0.2, errno.ESTALE, newest / "rank-1.safetensors")
    phase_with_errors("folder", 0.2, errno.EIO, FOLDER / "ck")
    phase_with_errors("older", 0, errno.EIO, older)


# -- ranks ------------------------------------------------------------------------------------------------------------


def play(name: str, size: int, rank_main: Rank, *, talk: bool = True) -> list[int]:
    """Forks the ranks of a phase and returns their process ids."""
    pids = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank))
            be_rank(name, rank, rank_main, talk)
        pids.append(pid)
    return pids


def be_rank(name: str, rank: int, rank_main: Rank, talk: bool) -> None:
    code = 0
    try:
        torch.set_num_threads(1)
        if talk:
            # a port could be taken by another process
            meeting = (FOLDER / f"meeting-{name.replace(' ', '-')}").as_uri()
            dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
        tell(name, rank, rank_main())
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    except BaseException as error:
        traceback.print_exc()
        tell(name, rank, {"error": f"{type(error).__name__}: {error}"})
        code = 1
    sys.stdout.flush()
    os._exit(code)


def tell(name: str, rank: int, found: dict[str, Any]) -> None:
    sys.stdout.flush()
    os.write(1, ("\n>>" + json.dumps({"phase": name, "rank": rank, **found}) + "\n").encode())


def wait(pids: list[int], seconds: float = 200.0) -> list[int]:
    """Returns the exit codes of ranks; ranks that are too slow are killed."""
    give_up = time.monotonic() + seconds
    codes = []
    for pid in pids:
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes.append(os.waitstatus_to_exitcode(status))
                break
            if time.monotonic() > give_up:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
    return codes


def phase(name: str, size: int, rank_main: Rank) -> None:
    tell(name, -1, {"codes": wait(play(name, size, rank_main))})


def phase_with_stop(name: str, rank_main: Rank, *, talk: bool) -> None:
    for rank in range(2):
        (FOLDER / f"ready-{rank}").unlink(missing_ok=True)
    pids = play(name, 2, rank_main, talk=talk)
    give_up = time.monotonic() + 200
    while not all((FOLDER / f"ready-{rank}").exists() for rank in range(2)) and time.monotonic() < give_up:
        time.sleep(0.005)
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
        time.sleep(0.03)
    tell(name, -1, {"codes": wait(pids)})


def main() -> None:
    phase("first", 2, first)
    phase("one", 1, resumed)
    phase("three", 3, resumed)
    phase_with_stop("stopped", stopped, talk=True)
    newest = files.list_checkpoints(FOLDER / "ddp")[0]
    spoilt = Path(newest.path) / "rank-1.safetensors"
    data = bytearray(spoilt.read_bytes())
    data[-1] ^= 1
    spoilt.write_bytes(data)
    tell("spoilt", -1, {"name": newest.name})
    phase("refusing", 2, refusing)
    phase("other", 2, other_model)
    phase("dies", 2, writer_dies)
    phase_with_stop("alone", without_talking, talk=False)
    phase_with_stop("alone again", without_talking, talk=False)
    phase("gather", 2, gather_pickle)
    phase("each", 2, saved_each_step)
    if "READ_ERRORS" in os.environ:
        phases_with_errors()


if __name__ == "__main__":
    main()
