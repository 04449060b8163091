"""Saving and restoring 500 MB of state on 2 ranks: ours beside torch.save with fsync, and torch.distributed.checkpoint.

The state is the parameters of a model and Adam's, the same on both ranks, and a step is one of that model: forward and
backward over 8 samples, an all-reduce, Adam. For each way: how long the training thread is held (the slower rank), and
how many times one memcpy of the rank's half of the state that is, the ranks copying at the same time; how long until
all is on the disk, the first save apart, how much later 6 steps and the save are done than 6 steps alone, and how long
a restore takes, ours with every checksum verified. The page cache is warm.

With `--gpu` one rank has all of the state on an NVIDIA GPU, and the memcpy is one to pinned memory; `dcp async, pinned`
copies to such memory too, in place of memory shared with a process.

    python bench/checkpoint.py [--runs 5] [--megabytes 500] [--gpu] [--smoke]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from common import BIN, CACHE, ROOT, add_smoke, in_turn, machine, medians, report_columns, require_figures

COLUMNS = {
    "held": "held, s",
    "memcpy": "one memcpy, s",
    "ratio": "held ÷ memcpy",
    "first": "first save",
    "total": "durable, s",
    "lost": "lost, s",
    "restore": "restore, s",
    "step": "step, s",
}
WAYS = ("torch.save", "dcp", "dcp async, thread", "dcp async, process", "dcp async, pinned", "windlass")
PEER = "torch.save"
NOT_THERE = {"cpu": "dcp async, pinned", "cuda": "dcp async, process"}
"""The way whose memory is made for the other device."""
SCRIPT = '''
import ctypes
import gc
import json
import mmap
import os
import shutil
import statistics
import sys
import time
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn


def main():
    warnings.simplefilter("ignore")
    way, folder, megabytes, saves = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    device = torch.device(sys.argv[5])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    width = 1024
    layers = round(megabytes * 1e6 / 3 / 4 / width / width)
    model = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(layers)]).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    samples, small = torch.randn(8, width, device=device), torch.zeros(1000)


    def ready():
        """All ranks, and their GPUs, have done what they were given."""
        if device.type == "cuda":
            torch.cuda.synchronize()
        dist.barrier()


    def passes():
        """Forward and backward, and what ranks tell each other."""
        optimizer.zero_grad()
        model(samples).square().mean().backward()
        dist.all_reduce(small)


    def step():
        passes()
        optimizer.step()


    step()  # makes Adam's state


    def state():
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


    def done():
        """What is left to wait for where the save has waited for all."""


    def sync_folder(path):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


    class TorchSave:
        """Rank 0 writes everything; all wait, as a training that goes on would."""

        def save(self, path):
            if rank == 0:
                os.makedirs(path)
                with open(f"{path}/state.pt", "wb") as file:
                    torch.save(state(), file)
                    file.flush()
                    os.fsync(file.fileno())
                sync_folder(path)
            dist.barrier()
            return done

        def load(self, path):
            loaded = torch.load(f"{path}/state.pt", mmap=True, weights_only=True, map_location=device)
            model.load_state_dict(loaded["model"])
            optimizer.load_state_dict(loaded["optimizer"])
            dist.barrier()


    class Dcp:
        def save(self, path):
            from torch.distributed.checkpoint.state_dict import get_state_dict

            model_state, optimizer_state = get_state_dict(model, optimizer)
            writer = dcp.FileSystemWriter(path, sync_files=True)
            return self.write({"model": model_state, "optimizer": optimizer_state}, writer)

        def write(self, whole, writer):
            dcp.save(whole, storage_writer=writer)
            return done

        def load(self, path):
            from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

            model_state, optimizer_state = get_state_dict(model, optimizer)
            whole = {"model": model_state, "optimizer": optimizer_state}
            dcp.load(whole, storage_reader=dcp.FileSystemReader(path))
            set_state_dict(model, optimizer, model_state_dict=whole["model"], optim_state_dict=whole["optimizer"])


    class DcpThread(Dcp):
        def write(self, whole, writer):
            return dcp.async_save(whole, storage_writer=writer, process_group=group).result


    class DcpProcess(Dcp):
        """With a stager whose copy is in memory shared with the process: its fastest."""

        def __init__(self):
            from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

            self.stager = DefaultStager(StagingOptions(
                use_pinned_memory=False, use_shared_memory=True, use_async_staging=False, use_non_blocking_copy=False
            ))

        def write(self, whole, writer):
            from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

            return dcp.async_save(
                whole, storage_writer=writer, process_group=group, async_stager=self.stager,
                async_checkpointer_type=AsyncCheckpointerType.PROCESS,
            ).result


    class DcpPinned(Dcp):
        """With a stager that keeps pinned memory from save to save: its fastest from a GPU."""

        def __init__(self):
            from torch.distributed.checkpoint.staging import BlockingAsyncStager

            self.stager = BlockingAsyncStager(cache_staged_state_dict=True)

        def write(self, whole, writer):
            return dcp.async_save(
                whole, storage_writer=writer, process_group=group, async_stager=self.stager
            ).result


    class Windlass:
        """Its own names for checkpoints; `path` only says which."""

        def __init__(self):
            from windlass.train.checkpoint import Checkpoint

            self.saved = Checkpoint(model=model, optimizer=optimizer, folder=f"{folder}/own", every=10**9, keep=1)
            self.saved.step()
            time.sleep(1.0)

        def save(self, path):
            self.saved.steps += 1
            self.saved.save()

            def wait():
                self.saved._saver.await_writer()

            return wait

        def settle(self):
            """Wait until the writer has removed the checkpoint before, as is done for the others between two saves."""
            while len(os.listdir(f"{folder}/own")) > 1:
                time.sleep(0.01)

        def load(self, path):
            self.saved.restore()


    ways = {
        "torch.save": TorchSave, "dcp": Dcp, "dcp async, thread": DcpThread, "dcp async, process": DcpProcess,
        "dcp async, pinned": DcpPinned, "windlass": Windlass,
    }
    group = dist.new_group(backend="gloo")
    chosen = ways[way]()
    found = {"held": [], "memcpy": [], "ratio": [], "total": [], "lost": [], "restore": []}


    def slowest(seconds):
        tensor = torch.tensor([seconds], dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor.item()


    def one_save(number):
        path = f"{folder}/{number}"
        os.sync() if rank == 0 else None
        ready()
        began = time.perf_counter()
        wait = chosen.save(path)
        held = total = time.perf_counter() - began
        passes()
        if wait is not done:
            wait()
            total = time.perf_counter() - began
        dist.barrier()
        return path, slowest(held), slowest(total)


    tensors = [*model.parameters()] + [value for one in optimizer.state.values() for value in one.values()]
    tensors = [tensor for tensor in tensors if tensor.dim()]
    tensors = tensors[rank :: dist.get_world_size()]
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    if device.type == "cuda":
        pinned = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=True)
        places = [place.view(one.dtype).view(one.shape) for place, one in zip(pinned.split(sizes), tensors)]
    else:
        memory = mmap.mmap(-1, sum(sizes))
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))


    def memcpy():
        """One copy of this rank's share of the state to memory whose pages are there."""
        ready()
        began = time.perf_counter()
        if device.type == "cuda":
            with torch.no_grad():
                for place, tensor in zip(places, tensors):
                    place.copy_(tensor, non_blocking=True)
            torch.cuda.synchronize()
        else:
            at = address
            for tensor, size in zip(tensors, sizes):
                ctypes.memmove(at, tensor.data_ptr(), size)
                at += size
        return slowest(time.perf_counter() - began)


    memcpy()  # finds the pages
    path, held, total = one_save(0)
    found["first"] = [held]
    for number in range(1, saves + 1):
        before = path
        getattr(chosen, "settle", done)()
        found["memcpy"].append(memcpy())
        path, held, total = one_save(number)
        found["held"].append(held)
        found["ratio"].append(held / found["memcpy"][-1])
        found["total"].append(total)
        if rank == 0:
            shutil.rmtree(before, ignore_errors=True)


    def steps(count, save_at, path):
        ready()
        began = time.perf_counter()
        for number in range(count):
            if number == save_at:
                wait = chosen.save(path)
            step()
        if save_at >= 0:
            wait()
        ready()
        return slowest(time.perf_counter() - began)


    steps(2, -1, "")
    for number in range(saves):
        alone = steps(6, -1, "")
        before, path = path, f"{folder}/beside-{number}"
        found["lost"].append(steps(6, 2, path) - alone)
        found["step"] = [alone / 6]
        if rank == 0:
            shutil.rmtree(before, ignore_errors=True)
    gc.collect()
    for _ in range(3):
        ready()
        began = time.perf_counter()
        chosen.load(path)
        ready()
        found["restore"].append(slowest(time.perf_counter() - began))
    if rank == 0:
        print("\\n>>" + json.dumps({name: statistics.median(values) for name, values in found.items()}), flush=True)
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":  # the process of DCP imports this file
    main()
'''


def trial(way: str, folder: Path, script: Path, megabytes: int, saves: int, device: str) -> dict[str, float]:
    """One job of this way, which saves so often. Raises RuntimeError if it fails."""
    work = folder / "work"
    work.mkdir()
    num_ranks = "1" if device == "cuda" else "2"
    words = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", num_ranks, str(script), way, str(work)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [*words, str(megabytes), str(saves), device],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=400,
        stdin=subprocess.DEVNULL,
    )
    shutil.rmtree(work)
    said = re.search(r"^>>(.*)$", done.stdout, re.MULTILINE)
    if said is None:
        raise RuntimeError(f"{way} ended with {done.returncode}:\n{done.stdout[-3000:]}")
    found: dict[str, float] = json.loads(said[1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--way", choices=WAYS, action="append", help="only these")
    parser.add_argument("--gpu", action="store_true", help="the state of one rank on an NVIDIA GPU")
    add_smoke(parser)
    given = parser.parse_args()
    device = "cuda" if given.gpu else "cpu"
    ways = given.way or [way for way in WAYS if way != NOT_THERE[device]]
    if given.smoke:
        given.runs, given.megabytes, ways = 0, 26, ["windlass"]
    where = "1 rank's GPU" if given.gpu else "2 ranks"
    print(f"checkpoint: {machine()}, {given.megabytes} MB on {where}, {medians(given.runs)}")
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="bench-checkpoint-") as name:
        folder = Path(name)
        script = folder / "script.py"
        script.write_text(SCRIPT)
        saves = 1 if given.smoke else 5
        trials: Mapping[str, Callable[[], object]] = {
            way: partial(trial, way, folder, script, given.megabytes, saves, device) for way in ways
        }
        title = f"{given.megabytes} MB of state, ratios to torch.save with fsync"
        report_columns(in_turn(trials, given.runs), peer=PEER, title=title, columns=COLUMNS)
    print(f"load at the end: {os.getloadavg()[0]:.1f}")
    if given.smoke:
        require_figures()


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
