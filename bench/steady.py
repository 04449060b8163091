"""Step time and memory of ranks that run: forked from a warm process, started cold, and under torchrun.

Two ranks train a convolutional network by DDP over gloo; each prints the median time of its steps and its memory:
resident (pages in RAM, shared ones counted in full) and proportional (shared pages divided by those who share them).

    python bench/steady.py [--runs 5] [--smoke]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from common import BIN, ROOT, add_smoke, fresh_home, in_turn, machine, medians, report_columns, require_figures

SCRIPT = """
import json
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn

torch.manual_seed(0)
dist.init_process_group("gloo")
layers = [nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(25600, 10)]
model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.Adam(model.parameters())
images, labels = torch.rand(16, 1, 24, 24), torch.randint(0, 10, (16,))
times = []
for step in range(150):
    began = time.perf_counter()
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
    times.append(time.perf_counter() - began)
sizes = {}
with open("/proc/self/smaps_rollup") as file:
    for line in file:
        name, _, rest = line.partition(":")
        if name in ("Rss", "Pss", "Private_Dirty", "Private_Clean"):
            sizes[name] = int(rest.split()[0]) / 1024
dist.barrier()
print(json.dumps({"step": statistics.median(times[30:]), **sizes}), flush=True)
del model
dist.destroy_process_group()
"""


COLUMNS = {"step": "step, ms", "resident": "resident, MiB", "shared": "proportional, MiB", "own": "of its own, MiB"}


def timed(command: list[str], folder: Path, env: Mapping[str, str]) -> dict[str, float]:
    """Run to the end; gives the means over the ranks. Raises RuntimeError if it fails."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )
    decode = json.JSONDecoder().raw_decode  # two ranks may write into one line
    ranks = [decode(done.stdout, found.start())[0] for found in re.finditer(r'{"step"', done.stdout)]
    if done.returncode or len(ranks) != 2:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}")
    step, resident, proportional, dirty, clean = (
        sum(rank[name] for rank in ranks) / len(ranks)
        for name in ("step", "Rss", "Pss", "Private_Dirty", "Private_Clean")
    )
    return {"step": 1000 * step, "resident": resident, "shared": proportional, "own": dirty + clean}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=5)
    add_smoke(parser)
    given = parser.parse_args()
    runs = 0 if given.smoke else given.runs
    print(f"steady: {machine()}, 2 ranks, {medians(runs)}")
    with fresh_home(), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        run = [str(BIN / "windlass"), "run", "train.py", "--procs-per-node", "2"]
        torchrun = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2", "train.py"]
        trials: dict[str, Callable[[], object]] = {
            "torchrun": lambda: timed(torchrun, folder, {"OMP_NUM_THREADS": "1"}),
            "windlass, warm": lambda: timed(run, folder, {"OMP_NUM_THREADS": "1"}),
            "windlass, cold": lambda: timed([*run, "--cold"], folder, {"OMP_NUM_THREADS": "1"}),
        }
        if given.smoke:
            trials = {"windlass, warm": trials["windlass, warm"]}
        results = in_turn(trials, runs)
    report_columns(results, peer="torchrun", title="steady state, ratios to torchrun", columns=COLUMNS)
    if given.smoke:
        require_figures()


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
