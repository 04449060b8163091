"""Many runs, and runs of many pods, on a cluster: what commands and supervisors take.

    .venv/bin/python bench/scale.py [RUNS [TIMES]] [--smoke]

- `ps` and `status` of 1,000 runs of 8 pods that another machine started, beside `kubectl get` of the same;
- the supervisor of a run of 1,000 pods, in its own pod, at rest;
- 200 runs that are supervised in the cluster, and that nothing follows: what is left on this machine.

The objects are those that the engine makes, in a test bed of this machine, with the status that kubelets would write;
but no scheduler, controller or kubelet has anything to do with the pods. Their connections to the supervisor are made
by one program, of the real protocol code. Needs root, as the bed does.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import BIN, Cost, add_smoke, fresh_home, in_turn, machine, measure, require_figures, spread, table
from onbed import aim, make_namespace
from supervised import many_pods, many_runs, prepared
from tests.cluster.bed.cluster import Bed
from tests.cluster.bed.sharing import alone

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.objects import layout, manifests, pod_template
from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.spec.job import Job

NUM_RUNS = 1000
NUM_PODS = 8
MANY_PODS = 1000
MANY_RUNS = 200
REST_SECONDS = 60.0
SENDERS = 24
NAMESPACE = "wl-bench-scale"
BENCH = "windlass.dev/bench"
Object = dict[str, Any]


def run_id(number: int) -> str:
    return f"digits-{number:05}"


def objects(number: int) -> tuple[Object, Object, list[Object]]:
    """The owner ConfigMap, the Job and the pods of one run, all of whose pods run."""
    job = Job(name="digits", run="train.py", nodes=NUM_PODS)
    shape = pod_template.Shape(run_id(number), NAMESPACE, "job", "localhost/base:1", "python3", 1000, "0" * 64, 1)
    [made] = manifests.attempt(shape, job, 1, NUM_PODS)
    made["spec"]["managedBy"] = BENCH  # the controller leaves it alone
    template = made["spec"]["template"]
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{run_id(number)}-1-{place}-x{place:04}",
                "namespace": NAMESPACE,
                "labels": {**template["metadata"]["labels"], "batch.kubernetes.io/job-name": made["metadata"]["name"]},
                "annotations": {"batch.kubernetes.io/job-completion-index": str(place)},
            },
            "spec": {**template["spec"], "schedulerName": BENCH.replace("/", "-")},
        }
        for place in range(NUM_PODS)
    ]
    return manifests.owner_config_map(shape, job, "boot"), made, pods


def running(name: str) -> Object:
    """The status that a kubelet writes of a pod whose container runs."""
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {
        "phase": "Running",
        "startTime": at,
        "hostIP": "10.0.0.1",
        "podIP": "10.1.0.1",
        "podIPs": [{"ip": "10.1.0.1"}],
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": at}
            for kind in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
        ],
        "containerStatuses": [
            {
                "name": WORKLOADS["job"].container,
                "ready": True,
                "started": True,
                "restartCount": 0,
                "image": "localhost/base:1",
                "imageID": "localhost/base@sha256:" + "0" * 64,
                "containerID": f"containerd://{name:0>64}",
                "state": {"running": {"startedAt": at}},
            }
        ],
    }


def make(client: Client, number: int) -> None:
    owner_config_map, job, pods = objects(number)
    owner = client.create(owner_config_map)
    owner = client.create(manifests.owned(job, owner))
    merge = "application/merge-patch+json"
    state = {"status": {"active": NUM_PODS, "ready": NUM_PODS, "startTime": owner["metadata"]["creationTimestamp"]}}
    client.call("PATCH", f"{client.path('batch/v1', 'Job', job['metadata']['name'])}/status", state, content=merge)
    for pod in pods:
        name = pod["metadata"]["name"]
        client.create(manifests.owned(pod, owner))
        client.call("PATCH", f"{client.path('v1', 'Pod', name)}/status", {"status": running(name)}, content=merge)


@contextmanager
def filled(bed: Bed, num_runs: int) -> Iterator[None]:
    """The namespace with all runs, which are gone with the bed."""
    make_namespace(bed, NAMESPACE)
    began = time.monotonic()
    with closing(Client(bed.context, NAMESPACE, bed.kubeconfig)) as client, ThreadPoolExecutor(SENDERS) as pool:
        list(pool.map(partial(make, client), range(num_runs)))
    print(f"made {num_runs} runs of {NUM_PODS} pods in {time.monotonic() - began:.0f} s")
    time.sleep(10)  # what the cluster does about new objects is done
    yield


def commands(bed: Bed, num_runs: int) -> dict[str, list[str | Path]]:
    kubectl: list[str | Path] = [bed.program, f"--context={bed.context}", "-n", NAMESPACE, "get", "pods"]
    every, one = ["-l", layout.RUN_LABEL], ["-l", layout.selector(run_id(num_runs // 2))]
    windlass = BIN / "windlass"
    return {
        "kubectl get jobs": [*kubectl[:-1], "jobs", *every],
        "kubectl get pods": [*kubectl, *every],
        "windlass ps": [windlass, "ps", "--on", "bed"],
        "windlass ps -o json": [windlass, "ps", "--on", "bed", "-o", "json"],
        "kubectl get pods, one run": [*kubectl, *one],
        "windlass status": [windlass, "status", run_id(num_runs // 2), "--on", "bed", "-o", "json"],
    }


def main(num_runs: int, times: int, num_pods: int, num_supervised: int, rest_seconds: float) -> None:
    with alone() as bed:
        with filled(bed, num_runs), fresh_home() as home:
            aim(bed, NAMESPACE, home)
            words = commands(bed, num_runs)
            results = in_turn({name: partial(measure, command, cwd=home) for name, command in words.items()}, times)
        costs = {name: [cost for cost in found if isinstance(cost, Cost)] for name, found in results.items()}
        print_table(costs, num_runs, times)
        with fresh_home() as home, prepared(bed, home):  # last: 200 pods are busy for minutes
            many_pods(bed, home, num_pods, running, rest_seconds)
            many_runs(bed, home, num_supervised)


def print_table(costs: dict[str, list[Cost]], num_runs: int, times: int) -> None:
    rows, jobs = [], costs["kubectl get jobs"]
    peer = jobs
    for name, found in costs.items():
        peer = found if name.startswith("kubectl") and "json" not in name else peer
        rows.append(
            [
                name,
                spread([cost.wall_seconds for cost in found]),
                f"{median([c.wall_seconds for c in found]) / median([c.wall_seconds for c in peer]):.2f}",
                f"{median([c.wall_seconds for c in found]) / median([c.wall_seconds for c in jobs]):.2f}",
                f"{median([c.cpu_seconds for c in found]):.2f}",
                f"{median([c.peak_mb for c in found]):.0f}",
                f"{median([c.peak_mb for c in found]) / median([c.peak_mb for c in peer]):.2f}",
            ]
        )
    header = ["command", "wall s", "× kubectl", "× get jobs", "CPU s", "peak MB", "× kubectl"]
    title = f"{num_runs:,} runs × {NUM_PODS} pods, medians of {times} ({machine()})"
    table(title, header, rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="?", type=int, default=NUM_RUNS)
    parser.add_argument("times", nargs="?", type=int, default=7)
    add_smoke(parser)
    given = parser.parse_args()
    if given.smoke:
        main(10, 1, 20, 2, 3.0)
        require_figures()
    else:
        main(given.runs, given.times, MANY_PODS, MANY_RUNS, REST_SECONDS)
