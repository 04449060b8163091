"""From the loss of a node to the next step of those that are left, ours beside torchrun's own elastic agents.

Three nodes of one rank each train a small network by DDP over gloo. The last node is killed with all its processes;
the clock stops when rank 0 of what is left has completed a step. The peer is `torchrun --nnodes 1:3` with the shortest
settings that still let a node in again (keep-alive 1 s × 3, last call 3 s) and a store for each round; with torchrun's
defaults it is 46 s. Ours with networks (root) also has a node cut off without a reset, which torchrun's agents do not
notice: its ranks wait for the time limit of the collective, 30 minutes by default.

    python bench/elastic.py [--runs 3] [--only windlass] [--smoke]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from common import BIN, ROOT, add_smoke, fresh_home, in_turn, machine, medians, report, require_figures

from windlass.engines import netns
from windlass.worker import process

SCRIPT = """
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.nn  # imported after init_process_group, it would hold the group past its end
from torch import nn

folder = sys.argv[1]
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
marks = open(os.path.join(folder, f"marks-{size}-{rank}"), "a", buffering=1)
ddp = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
enough, step = torch.zeros(1), 0
while not enough:
    optimizer.zero_grad()
    ddp(torch.rand(16, 64)).square().mean().backward()
    optimizer.step()
    step += 1
    marks.write(f"{os.getpid()} {step} {time.time():.6f}\\n")
    if rank == 0:
        enough[0] = os.path.exists(os.path.join(folder, "enough"))
    dist.all_reduce(enough)
    time.sleep(0.005)
del ddp
dist.destroy_process_group()
"""
NODES = 3
PATIENCE_SECONDS = 120.0
CONF = "last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3"
WINDLASS = str(BIN / "windlass")


def marks(folder: Path, size: int, rank: int) -> list[tuple[int, float]]:
    """Pid and time of each step that a rank has completed in a world of so many."""
    with contextlib.suppress(OSError, ValueError):
        lines = (folder / f"marks-{size}-{rank}").read_text().splitlines()
        return [(int(pid), float(at)) for pid, _step, at in (line.split() for line in lines)]
    return []


def wait_until(happened: Callable[[], object]) -> None:
    """Raises RuntimeError when it takes too long."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        if time.monotonic() > give_up:
            raise RuntimeError(f"nothing happened for {PATIENCE_SECONDS:g} s")
        time.sleep(0.005)


def lost(folder: Path, lose: Callable[[], None]) -> float:
    """Seconds from the loss of a node to the first step of the two that are left."""
    wait_until(lambda: len(marks(folder, NODES, 0)) > 20)
    lost_at = time.time()
    lose()
    wait_until(lambda: marks(folder, NODES - 1, 0))
    return marks(folder, NODES - 1, 0)[0][1] - lost_at


def kill_node(folder: Path) -> None:
    """SIGKILL to the last node's worker and all that it has started."""
    process.kill_session(os.getsid(marks(folder, NODES, NODES - 1)[-1][0]))


def torchrun(folder: Path) -> float:
    """Bare agents on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    agents = []
    try:
        for node in range(NODES):
            conf = f"is_host={'true' if node == 0 else 'false'},{CONF}"
            command = [
                str(BIN / "torchrun"), "--nnodes", f"1:{NODES}", "--nproc-per-node", "1", "--max-restarts", "3",
                "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "bench",
                "--rdzv-conf", conf, "--local-addr", "127.0.0.1", "train.py", str(folder),
            ]  # fmt: skip
            with (folder / f"agent-{node}").open("w") as output:
                agents.append(
                    subprocess.Popen(
                        command, cwd=folder, env=environ, stdout=output, stderr=output, start_new_session=True
                    )
                )
        return lost(folder, lambda: kill_torchrun(folder, agents))
    finally:
        (folder / "enough").touch()
        for agent in agents:
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.wait(30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(agent.pid, signal.SIGKILL)
            agent.wait()


def kill_torchrun(folder: Path, agents: list[subprocess.Popen[bytes]]) -> None:
    """Any agent but the one that hosts the store: its loss would end the others. An agent's ranks have own sessions."""
    ranks = [marks(folder, NODES, rank)[-1][0] for rank in range(NODES)]
    agent = agents[-1]
    own = [pid for pid in ranks if (found := process.stat(pid)) is not None and found.parent == agent.pid]
    for pid in (agent.pid, *own):
        os.kill(pid, signal.SIGKILL)


def windlass(folder: Path, *, cut: bool) -> float:
    """A run with a range of nodes; with `cut`, each in a network of its own."""
    options = ["--set", "local.netns=true"] if cut else []
    command = [
        *(WINDLASS, "run", "train.py", "--nodes", f"1:{NODES}", *options),
        *("--name", "elastic", "-d", "-q", "--", str(folder)),
    ]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.split()[0]
    try:
        return lost(folder, partial(netns.cut, run, NODES - 1) if cut else partial(kill_node, folder))
    finally:
        (folder / "enough").touch()
        subprocess.run([WINDLASS, "stop", run, "--now"], capture_output=True, check=False)


def trial(way: Callable[[Path], float]) -> float:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "train.py").write_text(SCRIPT)
        return way(Path(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[], help="ways whose name contains one of these words")
    add_smoke(parser)
    chosen = parser.parse_args()
    if chosen.smoke:
        chosen.runs, chosen.only = 1, ["windlass"]
    ways: dict[str, Callable[[Path], float]] = {
        "torchrun --nnodes 1:3": torchrun,
        "windlass": partial(windlass, cut=False),
    }
    if os.geteuid() == 0 and shutil.which("ip", path=netns.search_path(os.environ.get("PATH"))):
        ways["windlass, node cut off"] = partial(windlass, cut=True)
    wanted = {
        way: partial(trial, run)
        for way, run in ways.items()
        if not chosen.only or any(word in way for word in chosen.only)
    }
    print(f"elastic: {machine()}, {medians(chosen.runs)}, seconds")
    with fresh_home():
        results = in_turn(wanted, chosen.runs)
    report(results, peer="torchrun --nnodes 1:3", title="3 nodes, one is lost", figure="loss to next step")
    if chosen.smoke:
        require_figures()


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
