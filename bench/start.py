"""From typing the command to the first training step and to the last process gone, ours beside every launcher there is.

Two or four ranks train a small convolutional network by DDP over gloo. The clock starts before the command does; rank 0
prints the time of its first optimizer step. All ways run in turn, so that a slow minute slows all of them.

    python bench/start.py [--runs 5] [--ranks 2 4] [--only warm torchrun] [--smoke]
    python bench/start.py --gpu --only "windlass, warm" cold torchrun    # one rank of NCCL on an NVIDIA GPU
    python bench/start.py --unsafe      # a script that imports what cannot be forked, beside --cold; and memory
    python bench/start.py --kubeflow    # the Kubeflow SDK's local back end alone: one rank, minutes, gigabytes
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shutil
import subprocess
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import NamedTuple

from common import (
    BIN,
    ROOT,
    add_smoke,
    fresh_home,
    in_turn,
    machine,
    medians,
    peers,
    require_figures,
    spread,
    table,
)

SCRIPT = """
import os
import time

for name, given in (("RANK", "RANK"), ("WORLD_SIZE", "SIZE"), ("LOCAL_RANK", "LOCAL_RANK")):
    if name not in os.environ:  # mpirun has its own names for them
        os.environ[name] = os.environ["OMPI_COMM_WORLD_" + given]

import torch
import torch.distributed as dist
import torch.distributed.nn  # imported later, by DDP, it keeps the process group alive: ranks of 2.15 may then abort
from torch import nn

torch.manual_seed(0)
device = os.environ.get("BENCH_DEVICE", "cpu")
dist.init_process_group("gloo" if device == "cpu" else "nccl")
layers = [nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)]
model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
images, labels = torch.rand(64, 1, 8, 8, device=device), torch.randint(0, 10, (64,), device=device)
for step in range(10):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
    if device != "cpu":
        torch.cuda.synchronize()
    if step == 0 and dist.get_rank() == 0:
        print(f"first step at {time.time():.6f}", flush=True)
del model
dist.destroy_process_group()
"""
KUBEFLOW = """
import os
import sys
from pathlib import Path

from kubeflow.trainer import CustomTrainer, LocalProcessBackendConfig, TrainerClient


def train():
{body}

client = TrainerClient(backend_config=LocalProcessBackendConfig())
runtime = client.get_runtime("torch-distributed")
trainer = CustomTrainer(func=train, packages_to_install=["torch"], env=dict(os.environ))  # else it has no torch
name = client.train(runtime=runtime, trainer=trainer)
job = client.wait_for_job_status(name, status={{"Complete", "Failed"}}, timeout={limit})
print("\\n".join(client.get_job_logs(name)))
print(Path({told!r}).read_text())
sys.exit(job.status != "Complete")
"""
KUBEFLOW_PACKAGE = "kubeflow==0.5.0"
KUBEFLOW_LIMIT_SECONDS = 1800
UNSAFE = """
import os
import threading
import time

began = time.process_time()
while time.process_time() - began < 1:  # as long as an import of its size takes
    pass
threading.Thread(target=threading.Event().wait, daemon=True).start()  # as pyarrow does, which it imports
"""
NUM_SHELLS = 10
INSTALLED = ("torchx local_cwd", "accelerate launch")
"""Ways that need an environment of their own."""
FIRST = re.compile(r"first step at (\d+\.\d+)")
WINDLASS = str(BIN / "windlass")


class Trial(NamedTuple):
    """Seconds since the command was typed."""

    first: float
    gone: float


def timed(
    command: list[str], folder: Path, env: Mapping[str, str], tries: int = 3, limit_seconds: float = 300
) -> Trial:
    """Run a command to its end. Raises RuntimeError if it fails or no step was made.

    Ranks of other launchers now and then abort while their interpreter ends, after all is done; these are run again.
    """
    began = time.time()
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=limit_seconds,
        stdin=subprocess.DEVNULL,
    )
    gone = time.time() - began
    found = FIRST.search(done.stdout)
    if done.returncode and found is not None and tries > 1:
        print(f"  ({Path(command[0]).name} ended with {done.returncode} after the last step; again)", flush=True)
        return timed(command, folder, env, tries - 1, limit_seconds)
    if done.returncode or found is None:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}")
    return Trial(float(found[1]) - began, gone)


def ways(ranks: int, folder: Path, home: Path, others: Path) -> dict[str, Callable[[], object]]:
    """Every way to start this script with so many ranks; `others` is the `bin` folder of torchx and accelerate."""
    own = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    mpi = {
        **own,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29533",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    run = [WINDLASS, "run", "train.py", "--procs-per-node", str(ranks), "--set", "launcher=torchrun"]

    accelerate = [str(others / "python"), "-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines", "1",
                  "--mixed_precision", "no", "--dynamo_backend", "no", "--num_processes", str(ranks),
                  "--main_process_port", "0", "train.py"]  # fmt: skip
    torchx = [
        str(others / "torchx"),
        "run",
        "--wait",
        "--log",
        "-s",
        "local_cwd",
        "dist.ddp",
        "-j",
        f"1x{ranks}",
        "--script",
        "train.py",
    ]
    path = {"PATH": f"{others}{os.pathsep}{os.environ['PATH']}"}
    found: dict[str, Callable[[], object]] = {
        "torchrun": lambda: timed(
            [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", str(ranks), "train.py"], folder, own
        ),
        "windlass, warm": lambda: timed(run, folder, {}),
        "windlass, warm, another environment": lambda: timed(run, folder, another_shell()),
        "windlass, first ever": lambda: first_ever(run, folder, home),
        "windlass, cold": lambda: timed([*run, "--cold"], folder, {}),
        "torchx local_cwd": lambda: timed(torchx, folder, {**own, **path}),
        "accelerate launch": lambda: timed(accelerate, folder, {**own, "CUDA_VISIBLE_DEVICES": ""}),
    }
    if mpirun := shutil.which("mpirun"):
        command = [mpirun, "--oversubscribe", "-np", str(ranks), str(BIN / "python"), "train.py"]
        found["mpirun"] = lambda: timed(command, folder, mpi)
    return found


def another_shell() -> dict[str, str]:
    """Variables of a shell, or of a run, as there was none before."""
    number = next(_SHELLS)
    return {
        "PATH": f"/envs/{number}/bin{os.pathsep}{os.environ['PATH']}",
        "VIRTUAL_ENV_PROMPT": f"env-{number}",
        "WANDB_NAME": f"sweep-{number}",
        "SSH_TTY": f"/dev/pts/{number}",
        "TERM": f"screen-{number}",
    }


_SHELLS = itertools.count()


def first_ever(run: list[str], folder: Path, home: Path, env: Mapping[str, str] = MappingProxyType({})) -> Trial:
    """A run in a home that has never had one; what it keeps is stopped."""
    fresh = Path(tempfile.mkdtemp(prefix="first-", dir=home))
    own = {**env, "WINDLASS_HOME": str(fresh)}
    try:
        return timed(run, folder, own)
    finally:
        subprocess.run([WINDLASS, "warm", "stop"], env={**os.environ, **own}, check=True, capture_output=True)
        shutil.rmtree(fresh, ignore_errors=True)


def unsafe(ranks: int, runs: int) -> None:
    """A script that imports a module which leaves a thread, beside its own cold start: first ever, and from then on."""
    with fresh_home() as home, tempfile.TemporaryDirectory() as name:
        folder, packages = Path(name), Path(name) / "packages"
        (packages / "datasets").mkdir(parents=True)
        (packages / "datasets" / "__init__.py").write_text(UNSAFE)
        (folder / "train.py").write_text(f"import datasets\n{SCRIPT}")
        (folder / "alone.py").write_text("import datasets, time\nprint(f'first step at {time.time():.6f}')\n")
        env = {"PYTHONPATH": str(packages)}
        for script in ("train.py", "alone.py"):
            run = [WINDLASS, "run", script, "--procs-per-node", str(ranks)]
            trials: dict[str, Callable[[], object]] = {
                "windlass --cold, first ever": partial(first_ever, [*run, "--cold"], folder, home, env),
                "windlass, first ever": partial(first_ever, run, folder, home, env),
                "windlass --cold": partial(timed, [*run, "--cold"], folder, env),
                "windlass, later": partial(timed, run, folder, env),
            }
            results = in_turn(trials, runs)
            title = f"{'torch and datasets' if script == 'train.py' else 'datasets alone'}, {ranks} ranks"
            for cold, ours in (list(results)[:2], list(results)[2:]):
                report(title, {name: results[name] for name in (cold, ours)}, cold)


def shells() -> None:
    """What is kept after runs from ten shells with different environments."""
    with fresh_home() as home, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        for _ in range(NUM_SHELLS):
            timed([WINDLASS, "run", "train.py", "--procs-per-node", "2"], folder, another_shell())
        from windlass.engines.local.warm_pool import WarmPool

        kept = [[one["name"], one["forks"], f"{one['resident_bytes'] / 2**20:.0f}"] for one in WarmPool(home).show()]
        table(f"kept after runs from {NUM_SHELLS} shells", ["warm process", "starts", "MiB resident"], kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--only", nargs="*", default=[], help="ways whose name contains one of these words")
    parser.add_argument("--unsafe", action="store_true", help="a script that imports what cannot be forked; memory")
    parser.add_argument(
        "--kubeflow", action="store_true", help="the Kubeflow SDK's local back end, which takes minutes"
    )
    parser.add_argument("--gpu", action="store_true", help="one rank on an NVIDIA GPU")
    add_smoke(parser)
    chosen = parser.parse_args()
    if chosen.gpu:
        chosen.ranks, os.environ["BENCH_DEVICE"] = [1], "cuda"
    if chosen.smoke:
        chosen.runs, chosen.ranks, chosen.only = 0, [2], ["windlass, warm"]
    print(f"start: {machine()}, {medians(chosen.runs)}, seconds")
    if chosen.kubeflow:
        kubeflow(chosen.runs)
        return
    if chosen.unsafe:
        for ranks in chosen.ranks:
            unsafe(ranks, chosen.runs)
        shells()
        print(f"\nload {os.getloadavg()[0]:.1f} at the end")
        return
    for ranks in chosen.ranks:
        with fresh_home() as home, tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "train.py").write_text(SCRIPT)
            has_peers = not chosen.only or any(word in name for word in chosen.only for name in INSTALLED)
            trials = ways(ranks, folder, home, peers("torchx", "accelerate") if has_peers else BIN)
            if chosen.only:
                trials = {name: run for name, run in trials.items() if any(word in name for word in chosen.only)}
            report(f"{ranks} {'rank' if ranks == 1 else 'ranks'}", in_turn(trials, chosen.runs))
    if chosen.smoke:
        require_figures()
        return
    print(f"\nload {os.getloadavg()[0]:.1f} at the end")
    print(
        "\nThe Kubeflow SDK's local back end is not among them: it installs torch for every job and starts one\n"
        "rank. See --kubeflow."
    )


def kubeflow(runs: int) -> None:
    """The Kubeflow SDK's local back end beside torchrun, one rank each: it starts no more. One job, after `runs`."""
    python = peers(KUBEFLOW_PACKAGE) / "python"
    with fresh_home(), tempfile.TemporaryDirectory() as name:
        folder, told = Path(name), Path(name) / "first-step"
        (folder / "train.py").write_text(SCRIPT)
        # The SDK takes the source of the function, and its logs were found to be empty: so the time goes into a file.
        body = SCRIPT.replace("flush=True", f"file=open({str(told)!r}, 'w')")
        job = KUBEFLOW.format(body=textwrap.indent(body, "    "), limit=KUBEFLOW_LIMIT_SECONDS, told=str(told))
        (folder / "job.py").write_text(job)
        own = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        torchrun = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "1", "train.py"]
        results = in_turn(
            {
                "torchrun": lambda: timed(torchrun, folder, own),
                "windlass, warm": lambda: timed([WINDLASS, "run", "train.py"], folder, {}),
            },
            runs,
        )
        # What the SDK installs for a job it makes in the folder for temporary files, and leaves there if it fails.
        scratch = folder / "scratch"
        scratch.mkdir()
        command = [str(python), "job.py"]
        trial = timed(command, folder, {**own, "TMPDIR": str(scratch)}, 1, KUBEFLOW_LIMIT_SECONDS)
        report("1 rank", {**results, "kubeflow local, 1 job": [trial]})


def report(title: str, results: dict[str, list[object]], beside: str = "torchrun") -> None:
    """Print the seconds of each way, and their ratio to those of the way `beside`."""
    rows = []
    peer = [trial for trial in results.get(beside, []) if isinstance(trial, Trial)]
    for name, found in results.items():
        firsts = [trial.first for trial in found if isinstance(trial, Trial)]
        gones = [trial.gone for trial in found if isinstance(trial, Trial)]
        ratios = ["", ""]
        if peer:
            ratios = [
                f"{median(firsts) / median([trial.first for trial in peer]):.3f}",
                f"{median(gones) / median([trial.gone for trial in peer]):.3f}",
            ]
        rows.append([name, spread(firsts), ratios[0], spread(gones), ratios[1]])
    ratio = "÷ torchrun" if beside == "torchrun" else "÷ --cold"
    table(title, ["way", "first step", ratio, "gone", ratio], rows)


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
