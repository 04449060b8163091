"""From `windlass run` to the first step, and from the loss of a rank or a pod to the next, by each way on a cluster.

    .venv/bin/python bench/workloads.py [TIMES] [--only job pytorchjob …] [--smoke]

Two pods of one rank train by DDP over gloo. Then a rank is killed, or one pod is deleted without grace; the clock stops
when rank 0 of the next attempt has made a step. The peer is the operator by itself: a PyTorchJob written by
hand, `restartPolicy: OnFailure`, torchrun as its command with a rendezvous and patience as measured to be the shortest
that is safe, the code in a ConfigMap, applied by kubectl. The cluster is a test bed of this machine, so this needs
root; its operators are the real ones (a first build of them takes minutes). The supervisor of `job-inside` is a pod of
the cluster, and that of the others a process of this machine. `job-spare` is as `job-inside`, with a spare that waits
before a pod is lost.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import BIN, add_smoke, fresh_home, in_turn, machine, report_columns, require_figures
from onbed import aim, make_namespace
from tests.cluster.bed.cluster import Bed
from tests.cluster.bed.sharing import alone, operating
from tests.cluster.harnesses import OPERATORS

from windlass.engines.kubernetes.objects.layout import WORK
from windlass.worker.pod_reuse import WAITING

NAMESPACE = "wl-bench-ways"
INSIDE = "job-inside"
SPARE = "job-spare"
SPARE_PLACE = 2
PEER = "PyTorchJob by itself"
WORKLOADS = ("job", INSIDE, SPARE, "jobset", "trainjob", "pytorchjob", "mpijob")
PATIENCE_SECONDS = 240
PAUSE_SECONDS = 3.0
"""Before each look: it takes processor time from what it looks at, and the logs say when a step was made."""
SCRIPT = """
import os
import time
import torch
import torch.distributed as dist
from torch import nn

print(f"pid {os.getpid()} of the rank", flush=True)
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    optimizer.zero_grad()
    model(torch.rand(8, 16)).sum().backward()
    optimizer.step()
    if dist.get_rank() == 0:
        print(f"stepped at {time.time()}", flush=True)
    time.sleep(0.2)
"""
COLUMNS = {"first": "submit → first step, s", "rank": "rank lost → next, s", "pod": "pod lost → next, s"}


class Bench:
    """One bed with the operators that are asked for, one folder with a job."""

    def __init__(self, bed: Bed, home: Path) -> None:
        self.bed, self.home = bed, home
        self.number = 0
        aim(bed, NAMESPACE, home)
        (home / "code").mkdir()
        (home / "code" / "script.py").write_text(SCRIPT)

    def windlass(self, *words: str) -> str:
        done = subprocess.run([BIN / "windlass", *words], cwd=self.home, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def pods(self, selector: str) -> list[str]:
        found = self.bed.kubectl("get", "pods", "-n", NAMESPACE, "-l", selector, "-o", "name").split()
        return sorted(name.removeprefix("pod/") for name in found)

    def lose(self, pod: str) -> float:
        """Delete a pod at once; gives when."""
        at = time.time()
        self.bed.kubectl("delete", "pod", pod, "-n", NAMESPACE, "--grace-period=0", "--force", "--wait=false")
        return at

    def kill_rank(self, pod: str) -> float:
        """Kill the rank of a pod; gives when."""
        pid = re.findall(r"pid (\d+) of the rank", self._log(pod))[-1]
        program = f"import os, time; print(time.time()); os.kill({pid}, 9)"
        return float(self.bed.kubectl("exec", "-n", NAMESPACE, pod, "--", self.bed.python, "-c", program))

    # -- trials -------------------------------------------------------------------------------------------------------

    def by_windlass(self, way: str) -> dict[str, float]:
        via, supervisor = ("job", "cluster") if way in (INSIDE, SPARE) else (way, "machine")
        aim(self.bed, NAMESPACE, self.home, supervisor=supervisor)
        launcher = "mpi" if via == "mpijob" else "torchrun"
        restarts = {"max": 3, "on": ["failure", "preemption", "node-loss"]}
        job = {
            "name": "bench",
            "run": "script.py",
            "code": "code",
            "nodes": 2,
            "launcher": launcher,
            "kubernetes": {"via": via, **({"spares": 1} if way == SPARE else {})},
            "restarts": restarts,
        }
        (self.home / "job.yaml").write_text(json.dumps(job))
        first, rank = self._by_windlass_once(way, self.kill_rank)
        _, pod = self._by_windlass_once(way, self.lose)
        return {"first": first, "rank": rank, "pod": pod}

    def _by_windlass_once(self, way: str, harm: Callable[[str], float]) -> tuple[float, float]:
        """Seconds until the first step, and from a harm to the last node's pod until the next one.

        Each harm has a run of its own: the second restart in a row waits a second, by policy.
        """
        began = time.time()
        run = json.loads(self.windlass("run", "job.yaml", "--on", "bed", "--detach", "-o", "json"))["id"]
        try:
            first = _wait(partial(self._stepped, run, 1), f"a first step by {way}") - began
            harmed_at = harm(self._last_node(run, way))
            return first, _wait(partial(self._stepped, run, 2), f"another by {way}") - harmed_at
        finally:
            self.windlass("stop", run, "--now")
            self.windlass("rm", "--force", run)
            self._until_gone(f"windlass.dev/run={run}")

    def _last_node(self, run: str, way: str) -> str:
        """The pod of the last node; once the spare waits, where there is one."""
        pods = self.pods(f"windlass.dev/run={run},windlass.dev/attempt")
        if way != SPARE:
            return pods[-1]
        _wait(partial(self._waits, pods[SPARE_PLACE]), "a spare that waits")
        return pods[SPARE_PLACE - 1]

    def _waits(self, pod: str) -> bool:
        """Whether a spare waits for an attempt."""
        command = [self.bed.program, f"--context={self.bed.context}", "-n", NAMESPACE, "exec", pod, "--", "ls", WORK]
        return WAITING in subprocess.run(command, capture_output=True, text=True).stdout.split()

    def _stepped(self, run: str, attempt: int) -> float | None:
        """When rank 0 of an attempt made its first step, if it has."""
        words = ("logs", run, "--attempt", str(attempt), "--rank", "0")
        done = subprocess.run([BIN / "windlass", *words], cwd=self.home, capture_output=True, text=True)
        return _first_step(done.stdout)  # empty before there is such an attempt

    def by_itself(self) -> dict[str, float]:
        self.number += 1
        name = f"byhand-{self.number}"
        path = self.home / f"{name}.json"
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": self._by_hand(name)}))
        selector = f"training.kubeflow.org/job-name={name}"
        began = time.time()
        self.bed.kubectl("apply", "-n", NAMESPACE, "-f", str(path))
        try:
            first = _wait(partial(self._told, selector, 0.0), "a first step by the operator") - began
            killed_at = self.kill_rank(self.pods(selector)[-1])
            rank = (
                _wait(partial(self._told, selector, killed_at), "a step without the rank that was killed") - killed_at
            )
            lost_at = self.lose(self.pods(selector)[-1])
            pod = _wait(partial(self._told, selector, lost_at), "a step without the pod that was lost") - lost_at
            return {"first": first, "rank": rank, "pod": pod}
        finally:
            self.bed.kubectl("delete", "-n", NAMESPACE, "-f", str(path))
            self._until_gone(selector)

    def _told(self, selector: str, since: float) -> float | None:
        """When any pod said that it made the first step after a time, with a pause before where pods were lost."""
        said = [self._log(name) for name in self.pods(selector)]
        return min(filter(None, (_first_step(text, since) for text in said)), default=None)

    def _log(self, pod: str) -> str:
        command = [self.bed.program, f"--context={self.bed.context}", "-n", NAMESPACE, "logs", pod]
        return subprocess.run(command, capture_output=True, text=True).stdout

    def _by_hand(self, name: str) -> list[dict[str, Any]]:
        words = [
            self.bed.python,
            "-m",
            "torch.distributed.run",
            "--nnodes=2",
            "--nproc-per-node=1",
            "--max-restarts=3",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={name}-worker-0:29400",
            f"--rdzv-id={name}",
            "--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=3",
            "/code/script.py",
        ]
        container = {
            "name": "pytorch",
            "image": self.bed.image,
            "command": words,
            "env": [{"name": "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "value": "1"}],
            "volumeMounts": [{"name": "code", "mountPath": "/code"}],
        }
        pod = {"containers": [container], "volumes": [{"name": "code", "configMap": {"name": name}}]}
        worker = {"replicas": 2, "restartPolicy": "OnFailure", "template": {"spec": pod}}
        return [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"script.py": SCRIPT}},
            {
                "apiVersion": "kubeflow.org/v1",
                "kind": "PyTorchJob",
                "metadata": {"name": name},
                "spec": {"pytorchReplicaSpecs": {"Worker": worker}},
            },
        ]

    def _until_gone(self, selector: str) -> None:
        _wait(lambda: not self.pods(selector), f"the end of pods with {selector}")


def _told(name: str, trial: Callable[[], dict[str, float]]) -> dict[str, float]:
    """The figures of a trial, printed as it ends: all together take minutes."""
    found = trial()
    print(f"{name}: {', '.join(f'{COLUMNS[key]} {value:.2f}' for key, value in found.items())}", file=sys.stderr)
    return found


def _first_step(text: str, since: float = 0.0) -> float | None:
    """When the first step after a time was made that follows a pause, if there is one."""
    before = None
    for line in text.splitlines():
        _, found, moment = line.partition("stepped at ")
        if found and float(moment) > since:
            at = float(moment)
            if not since or before is None or at - before > 1:
                return at
        if found:
            before = float(moment)
    return None


def _wait(look: Callable[[], Any], what: str) -> Any:
    """What a look gives once it gives something. None is made at once: what is measured begins now."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while True:
        time.sleep(PAUSE_SECONDS)
        if found := look():
            return found
        assert time.monotonic() < give_up, f"waited in vain for {what}"


@contextmanager
def benched(ways: list[str]) -> Iterator[Bench]:
    """A bed with the operators of these ways."""
    with ExitStack() as open_:
        bed = open_.enter_context(alone())
        home = open_.enter_context(fresh_home())
        for operator in sorted({OPERATORS[way] for way in ways if way in OPERATORS}):
            open_.enter_context(operating(bed, operator))
        make_namespace(bed, NAMESPACE)
        bench = Bench(bed, home)
        bench.windlass("target", "setup", "bed")
        yield bench


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("times", type=int, nargs="?", default=3)
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    add_smoke(parser)
    args = parser.parse_args()
    if args.smoke:
        args.times, args.only = 0, ["job"]
    with benched(args.only if args.smoke else [*args.only, "pytorchjob"]) as bench:
        trials: dict[str, Callable[[], dict[str, float]]] = {} if args.smoke else {PEER: bench.by_itself}
        trials |= {way: partial(bench.by_windlass, way) for way in args.only}
        results = in_turn({name: partial(_told, name, trial) for name, trial in trials.items()}, args.times)
    report_columns(results, peer=PEER, title=f"two pods of one rank each ({machine()})", columns=COLUMNS)
    if args.smoke:
        require_figures()


if __name__ == "__main__":
    main()
