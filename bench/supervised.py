"""Runs that their cluster supervises, in numbers: one supervisor with many pods, and many runs that nothing follows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from common import BIN, ROOT, table
from onbed import aim, make_namespace
from tests.cluster.bed.cluster import Bed
from tests.cluster.harnesses import plan_on, set_up

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.engine import KubernetesEngine
from windlass.engines.kubernetes.objects.labels import COMPONENT, SUPERVISOR
from windlass.engines.kubernetes.supervisor.record import ClusterRecord
from windlass.runs.events import NodeStarted
from windlass.runs.store import Store
from windlass.spec.job import Job

NAMESPACE = "wl-bench-supervised"
BENCH = "windlass.dev/bench"
SENDERS = 24
REST_SECONDS = 60.0
SETTLE_SECONDS = 45.0
"""Until what happens at the beginning is over, such as the first reports."""
WAIT_SECONDS = 300.0
REQUESTS = re.compile(
    r'^apiserver_flowcontrol_dispatched_requests_total\{flow_schema="service-accounts".*\} (\S+)$', re.M
)
Object = dict[str, Any]


@contextmanager
def prepared(bed: Bed, home: Path) -> Iterator[None]:
    """A namespace whose runs are supervised inside, as target `bed` of `home`."""
    make_namespace(bed, NAMESPACE)
    set_up(bed, NAMESPACE)
    aim(bed, NAMESPACE, home)
    (home / "code").mkdir(exist_ok=True)
    (home / "code" / "script.py").write_text("print('hello')\n")
    yield


def wait_for(what: str, found: Callable[[], Any]) -> Any:
    """The first true value of `found`."""
    give_up = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < give_up:
        if result := found():
            return result
        time.sleep(0.2)
    sys.exit(f"{what}: not after {WAIT_SECONDS:.0f} s")


# -- one supervisor, many pods ----------------------------------------------------------------------------------------


def many_pods(bed: Bed, home: Path, num: int, status_of: Callable[[str], Object], rest_seconds: float) -> None:
    """Print what the supervisor of a run of `num` pods takes, at rest."""
    run_id = "many-00001"
    target = aim(bed, NAMESPACE, home)
    job = Job(
        name="many", run="script.py", code=str(home / "code"), nodes=num, launcher="plain", kubernetes={"via": "job"}
    )
    plan = plan_on(target, bed.kubeconfig, job, home, home, run_id)
    for step in plan.steps:
        if step.kind == "attempt":
            step.request["spec"]["managedBy"] = BENCH  # the pods are made below: no controller, and no kubelet
    with closing(Store(home)) as store, closing(Client(bed.context, NAMESPACE, bed.kubeconfig)) as client:
        KubernetesEngine(store).submit(plan)
        [made] = client.find("batch/v1", "Job", f"windlass.dev/run={run_id},windlass.dev/attempt=1")["items"]
        with ThreadPoolExecutor(SENDERS) as pool:
            list(pool.map(partial(make_pod, client, made, status_of), range(num)))
        pod = wait_for("a supervisor", lambda: supervisor_pod(client, run_id))
        with fake_pods(bed, pod, run_id, num) as fake:
            idle, began = look(fake), time.monotonic()
            fake.stdin.write("begin\n")
            record = ClusterRecord(client, run_id)
            wait_for("events of all nodes", lambda: num_started(record) == num)
            recorded_in = time.monotonic() - began
            time.sleep(SETTLE_SECONDS if rest_seconds > 10 else 2)
            before, asked = look(fake), requests(bed)
            time.sleep(rest_seconds)
            after, asked = look(fake), requests(bed) - asked
        rows = [
            ["without pods", f"{idle['rss_mb']:.0f}", "", f"{idle['threads']:.0f}", f"{idle['files']:.0f}", "", "", ""],
            [
                f"{num:,} pods",
                f"{after['rss_mb']:.0f}",
                f"{after['peak_mb']:.0f}",
                f"{after['threads']:.0f}",
                f"{after['files']:.0f}",
                f"{asked / rest_seconds:.2f}",
                f"{100 * (after['cpu_seconds'] - before['cpu_seconds']) / rest_seconds:.1f}",
                f"{recorded_in:.1f}",
            ],
        ]
        header = ["supervisor", "RSS MB", "peak MB", "threads", "files", "requests/s", "CPU %", "all events recorded s"]
        table(f"one run, at rest for {rest_seconds:.0f} s; requests as the API server counts them", header, rows)
        bed.kubectl("delete", "job", "-n", NAMESPACE, f"{run_id}-supervisor", "--wait=true")


def make_pod(client: Client, job: Object, status_of: Callable[[str], Object], place: int) -> None:
    template, name = job["spec"]["template"], f"{job['metadata']['name']}-{place}-x{place:04}"
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "controller": True,
        "blockOwnerDeletion": True,
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
    }
    meta = {
        "name": name,
        "namespace": NAMESPACE,
        "ownerReferences": [owner],
        "labels": {**template["metadata"]["labels"], "batch.kubernetes.io/job-name": job["metadata"]["name"]},
        "annotations": {"batch.kubernetes.io/job-completion-index": str(place)},
    }
    spec = {**template["spec"], "schedulerName": BENCH.replace("/", "-")}
    client.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    merge = "application/merge-patch+json"
    client.call("PATCH", f"{client.path('v1', 'Pod', name)}/status", {"status": status_of(name)}, content=merge)


def supervisor_pod(client: Client, run_id: str) -> str:
    """Name of the supervisor's pod that runs; empty for none."""
    selector = f"windlass.dev/run={run_id},{COMPONENT}={SUPERVISOR}"
    found = client.find("v1", "Pod", selector)["items"]
    return next((one["metadata"]["name"] for one in found if one["status"].get("phase") == "Running"), "")


def num_started(record: ClusterRecord) -> int:
    return sum(event.kind == NodeStarted.kind for event in record.events())


@contextmanager
def fake_pods(bed: Bed, pod: str, run_id: str, num: int) -> Iterator[Any]:
    text = (ROOT / "bench" / "fake_pods.py").read_text()
    words = [bed.program, f"--context={bed.context}", "exec", "-i", "-n", NAMESPACE, pod, "--",
             bed.python, "-I", "-S", "-c", text, run_id, str(num)]  # fmt: skip
    env = {**os.environ, "KUBECONFIG": bed.kubeconfig}
    with subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as fake:
        yield fake
        fake.kill()


def look(fake: Any) -> dict[str, float]:
    fake.stdin.write("look\n")
    found: dict[str, float] = json.loads(fake.stdout.readline())
    return found


def requests(bed: Bed) -> float:
    """How many requests of service accounts outside of `kube-system` the API server has taken: the supervisors'."""
    return sum(map(float, REQUESTS.findall(bed.kubectl("get", "--raw", "/metrics"))))


# -- many runs that nothing follows -----------------------------------------------------------------------------------


def many_runs(bed: Bed, home: Path, num: int) -> None:
    """Submit runs, and print what of them is left on this machine. Their pods find no node: none starts."""
    taint = ("taint", "nodes", "--all", f"{BENCH}=yes:NoSchedule")
    bed.kubectl(*taint)
    job = {"name": "digits", "run": "script.py", "code": "code", "launcher": "plain", "kubernetes": {"via": "job"}}
    (home / "job.yaml").write_text(json.dumps(job))
    try:
        began = time.monotonic()
        words = [str(BIN / "windlass"), "run", "job.yaml", "--on", "bed", "--detach"]
        with ThreadPoolExecutor(2) as pool:
            for done in pool.map(lambda _: subprocess.run(words, cwd=home, capture_output=True, text=True), range(num)):
                if done.returncode:
                    sys.exit(done.stderr)
        seconds = time.monotonic() - began
        pids = list(processes(home))
        memory = sum(map(resident_mb, pids))
        rows = [[f"{num} runs", f"{seconds / num:.2f}", len(pids), f"{memory:.0f}"]]
        table("runs that nothing follows", ["", "s a submission", "local processes", "MB"], rows)
    finally:
        bed.kubectl(*taint[:-1], f"{BENCH}-")


def processes(home: Path) -> Iterator[int]:
    """Processes that were started by commands with this home."""
    for path in Path("/proc").iterdir():
        try:
            if path.name.isdigit() and f"WINDLASS_HOME={home}".encode() in (path / "environ").read_bytes().split(b"\0"):
                yield int(path.name)
        except OSError:
            continue


def resident_mb(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"VmRSS:\s+(\d+)", text)
    return int(found[1]) / 1024 if found else 0.0
