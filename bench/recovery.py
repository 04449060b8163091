"""From kill -9 of a rank to the next completed step, ours beside torchrun's, the same script.

Two ranks train a small network by DDP over gloo and save it by torch.save each 10 steps. Rank 1 is killed; the clock
stops when rank 0 of the next attempt has completed a step. torchrun runs with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1,
without which a restart now and then hangs. All ways run in turn, so that a slow minute slows all of them. The script
reports its steps: one that gets no further from restart to restart has to wait ever longer for the next.

    python bench/recovery.py [--runs 5] [--kills 100] [--only warm torchrun] [--smoke]

With `--kills`, one warm run is killed so many times, and what did not recover within 30 s is counted.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from common import BIN, ROOT, add_smoke, fresh_home, in_turn, machine, medians, report, require_figures, spread

SCRIPT = """
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.nn  # imported after init_process_group, it would hold the group past its end
from torch import nn
from windlass.train import report

folder = sys.argv[1]
path = os.path.join(folder, "checkpoint.pt")
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
rank = dist.get_rank()
marks = open(os.path.join(folder, f"marks-{rank}"), "a", buffering=1)
layers = [nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)]
model = nn.Sequential(*layers)
ddp = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(ddp.parameters())
images, labels = torch.rand(64, 1, 8, 8), torch.randint(0, 10, (64,))
step = 0
if os.path.exists(path):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
enough = torch.zeros(1)
while not enough:
    optimizer.zero_grad()
    nn.functional.cross_entropy(ddp(images), labels).backward()
    optimizer.step()
    step += 1
    report(step=step)
    marks.write(f"{os.getpid()} {step} {time.time():.6f}\\n")
    report(step=step)  # else a run that is killed again and again looks as if nothing helped, and is held back
    if rank == 0:
        if step % 10 == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path + ".new")
            os.replace(path + ".new", path)
        enough[0] = os.path.exists(os.path.join(folder, "enough"))
    dist.all_reduce(enough)
    time.sleep(0.005)
del ddp
dist.destroy_process_group()
"""
HANG_SECONDS = 30.0
KILL_AFTER_STEPS = 25
WINDLASS = str(BIN / "windlass")


class Hung(Exception):
    """No step was completed in time after a kill."""


class Mark:
    """The newest line that a rank wrote."""

    def __init__(self, line: str) -> None:
        pid, step, at = line.split()
        self.pid, self.step, self.at = int(pid), int(step), float(at)


def newest(folder: Path, rank: int) -> Mark | None:
    """Of a rank; None before its first step."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return Mark((folder / f"marks-{rank}").read_text()[-200:].splitlines()[-1])
    return None


def wait_for(folder: Path, rank: int, wanted: Callable[[Mark], bool], seconds: float) -> Mark:
    """The first such mark. Raises Hung."""
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        mark = newest(folder, rank)
        if mark is not None and wanted(mark):
            return mark
        time.sleep(0.002)
    raise Hung


def kill_once(folder: Path, steps: int) -> float:
    """Seconds from the kill of rank 1, so many steps from now, to rank 0's next step in another process."""
    before = newest(folder, 0)
    goal = (before.step if before is not None else 0) + steps
    survivor = wait_for(folder, 0, lambda mark: mark.step >= goal, 120.0)
    victim = wait_for(folder, 1, lambda mark: mark.step >= goal, 120.0)
    killed_at = time.time()
    os.kill(victim.pid, signal.SIGKILL)
    recovered = wait_for(folder, 0, lambda mark: mark.pid != survivor.pid, HANG_SECONDS)
    first = next(
        mark for line in (folder / "marks-0").read_text().splitlines() if (mark := Mark(line)).pid == recovered.pid
    )
    return first.at - killed_at


@contextlib.contextmanager
def started(command: list[str], folder: Path) -> Iterator[None]:
    """The command runs for the time of the block; then its ranks end of themselves."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with (folder / "output").open("w") as output:
        popen = subprocess.Popen(
            command, cwd=folder, env=environ, stdout=output, stderr=output, stdin=subprocess.DEVNULL
        )
        try:
            yield
            (folder / "enough").touch()
            popen.wait(60)
        except BaseException:
            print((folder / "output").read_text()[-3000:], flush=True)
            raise
        finally:
            if popen.poll() is None:
                popen.terminate()
                popen.wait()


def command_of(way: str, folder: Path, max_restarts: int) -> list[str]:
    """What starts the script in a way."""
    (folder / "train.py").write_text(SCRIPT)
    if way == "torchrun":
        options = ["--standalone", "--nproc-per-node", "2", "--max-restarts", str(max_restarts)]
        return [str(BIN / "torchrun"), *options, "train.py", str(folder)]
    cold = ["--cold"] if "cold" in way else []
    run = [WINDLASS, "run", "train.py", "--procs-per-node", "2", "--set", f"restarts={max_restarts}", *cold]
    return [*run, "--", str(folder)]


def trial(way: str) -> float:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with started(command_of(way, folder, 3), folder):
            return kill_once(folder, KILL_AFTER_STEPS)


def many_kills(count: int) -> None:
    """One run, killed again and again."""
    rng = random.Random(count)
    seconds: list[float] = []
    hangs = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with started(command_of("windlass, warm", folder, count + 10), folder):
            for _ in range(count):
                try:
                    seconds.append(kill_once(folder, rng.randint(11, 30)))
                except Hung:
                    hangs += 1
    print(f"\n{count} kills of one warm run: {hangs} hung, kill to next step {spread(seconds)} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--kills", type=int, default=0, help="kill one warm run so many times, and nothing else")
    parser.add_argument("--only", nargs="*", default=[], help="ways whose name contains one of these words")
    add_smoke(parser)
    chosen = parser.parse_args()
    if chosen.smoke:
        chosen.runs, chosen.only = 0, ["warm"]
    print(f"recovery: {machine()}, {medians(chosen.runs)}, seconds")
    with fresh_home():
        if chosen.kills:
            many_kills(chosen.kills)
            return
        ways = ["torchrun", "windlass, warm", "windlass, cold"]
        wanted = [way for way in ways if not chosen.only or any(word in way for word in chosen.only)]
        results = in_turn({way: partial(trial, way) for way in wanted}, chosen.runs)
    report(results, peer="torchrun", title="2 ranks, one killed by signal 9", figure="kill to next step")
    if chosen.smoke:
        require_figures()


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
