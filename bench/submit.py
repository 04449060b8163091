"""From a command to an object that the cluster has accepted, and from an edited line to its first output in a pod.

    .venv/bin/python bench/submit.py [TIMES] [--smoke]

The peer is kubectl with the manifests that Windlass makes, ready in a file: it neither packs code, nor asks what the
cluster has, nor has the objects tried before any is made, nor keeps the run. It applies on the server's side, for the
other way stores each object once more in an annotation, which has no room for the code. The cluster is a test bed of
this machine, so this needs root. In the first part pods find no machine: nothing but the submission is at work.

The third part submits a TrainJob and has the Kubeflow SDK as its peer, which says by a script what the job is. Its
runtime is in the cluster beforehand; Windlass brings the run's own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import BIN, ROOT, fresh_home, in_turn, machine, measure, peers, report, report_columns, start, table
from onbed import aim, make_namespace
from tests.cluster.bed.cluster import Bed
from tests.cluster.bed.sharing import alone, operating
from tests.cluster.harnesses import plan_on
from tools import size

from windlass.engines.kubernetes.running.backend import KubernetesBackend
from windlass.runs.history import History
from windlass.runs.phase import Phase
from windlass.runs.record import Status, Times
from windlass.spec.job import Job

NAMESPACE = "wl-bench-submit"
WINDLASS, KUBECTL = "windlass run", "kubectl apply"
PEER = KUBECTL
SDK = "Kubeflow SDK"
NOWHERE = {"resources": {"instance": "none-such"}}
RUNTIME = "bench"
BY_SDK = """
from kubeflow.common.types import KubernetesBackendConfig
from kubeflow.trainer import CustomTrainerContainer, TrainerClient

where = KubernetesBackendConfig(context={context!r}, namespace={namespace!r}, config_file={config!r})
trainer = CustomTrainerContainer(image={image!r}, num_nodes=2)
print(TrainerClient(where).train(runtime={runtime!r}, trainer=trainer))
"""


class Catcher:
    """In place of a client: keeps what would be made."""

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []

    def create(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        found = json.loads(json.dumps(manifest))
        found["metadata"].pop("ownerReferences", None)  # that owner will never be there
        self.made.append(found)
        return {**manifest, "metadata": {**manifest["metadata"], "uid": "0"}}

    create_if_absent = create

    def find(self, *_: object, **__: object) -> dict[str, Any]:
        return {"items": []}


class Record:
    """As much of a run's record as its objects are made from."""

    def __init__(self, run_id: str) -> None:
        now = time.time()
        self.status = Status(
            id=run_id, name="bench", target="bed", phase=Phase.STARTING, times=Times(now, now), output_dir=""
        )
        self.writer = self
        self.history = History()

    def events(self) -> list[Any]:
        return []


class Bench:
    """One bed, one folder with a job."""

    def __init__(self, bed: Bed, home: Path) -> None:
        self.bed, self.home = bed, home
        self.number = 0
        self.target = aim(bed, NAMESPACE, home)
        self.before: Path | None = None

    def job(self, **fields: Any) -> Job:
        """The job, in its file too, with a script that says something new."""
        self.number += 1
        (self.home / "code").mkdir(exist_ok=True)
        (self.home / "code" / "script.py").write_text(f"print('line {self.number} of the script', flush=True)\n")
        told = {"name": "bench", "run": "script.py", "code": "code", "kubernetes": {"via": "job"}, **fields}
        (self.home / "job.yaml").write_text(json.dumps(told))
        return Job(**told)

    def manifests(self, job: Job) -> Path:
        """A file with the objects of a run of the job."""
        run_id = f"bench-k{self.number:04}"
        plan = plan_on(self.target, self.bed.kubeconfig, job, self.home, self.home, run_id)
        backend = KubernetesBackend(plan, self.home)
        backend.close()
        backend.client = catcher = Catcher()  # type: ignore[assignment]
        backend.create_first(Record(run_id), backend.create_shared())  # type: ignore[arg-type]
        path = self.home / f"{run_id}.json"
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": catcher.made}))
        return path

    def kubectl(self, *words: str | Path) -> list[str | Path]:
        return [self.bed.program, f"--context={self.bed.context}", "-n", NAMESPACE, *words]

    def jobs(self) -> int:
        return len(self.bed.kubectl("get", "jobs", "-n", NAMESPACE, "-o", "name").split())

    def clear(self) -> None:
        """Between two trials nothing of the last one goes on."""
        windlass = str(BIN / "windlass")
        listed = subprocess.run([windlass, "ps", "-a", "-o", "json"], cwd=self.home, capture_output=True, text=True)
        for run in json.loads(listed.stdout):
            subprocess.run([windlass, "stop", run["id"], "--now"], cwd=self.home, capture_output=True)
            subprocess.run([windlass, "rm", "--force", run["id"]], cwd=self.home, capture_output=True)
        self.bed.kubectl("delete", "jobs,configmaps,services", "-n", NAMESPACE, "-l", "windlass.dev/run")
        self.bed.kubectl("wait", "--for=delete", "pods", "-n", NAMESPACE, "-l", "windlass.dev/run", "--timeout=60s")

    # -- trials -------------------------------------------------------------------------------------------------------

    def accepted_windlass(self) -> float:
        self.job(nodes=2, launcher="plain", **NOWHERE)
        cost = measure([BIN / "windlass", "run", "job.yaml", "--on", "bed", "--detach"], cwd=self.home)
        assert self.jobs() == 1, "the command has ended, and there is no Job"
        self.clear()
        return cost.wall_seconds

    def accepted_kubectl(self) -> float:
        path = self.manifests(self.job(nodes=2, launcher="plain", **NOWHERE))
        cost = measure(self.kubectl("apply", "--server-side", "-f", path), cwd=self.home)
        assert self.jobs() == 1
        self.clear()
        return cost.wall_seconds

    def trained_windlass(self) -> dict[str, float]:
        self.job(nodes=2, launcher="plain", **{**NOWHERE, "kubernetes": {"via": "trainjob"}})
        cost = measure([BIN / "windlass", "run", "job.yaml", "--on", "bed", "--detach"], cwd=self.home)
        assert self._trainjobs() == 1
        self.clear()
        self.bed.kubectl("wait", "--for=delete", "trainjobs", "--all", "-n", NAMESPACE, "--timeout=60s")
        return {"s": cost.wall_seconds, "mb": cost.peak_mb}

    def trained_sdk(self) -> dict[str, float]:
        script = self.home / "by_sdk.py"
        script.write_text(
            BY_SDK.format(
                context=self.bed.context,
                namespace=NAMESPACE,
                config=self.bed.kubeconfig,
                image=self.bed.image,
                runtime=RUNTIME,
            )
        )
        cost = measure([peers("kubeflow") / "python", script], cwd=self.home)
        assert self._trainjobs() == 1
        self.bed.kubectl("delete", "trainjobs", "--all", "-n", NAMESPACE)
        return {"s": cost.wall_seconds, "mb": cost.peak_mb}

    def _trainjobs(self) -> int:
        return len(self.bed.kubectl("get", "trainjobs", "-n", NAMESPACE, "-o", "name").split())

    def runtime(self) -> dict[str, Any]:
        """What the SDK's job stands on; its pods find no machine either."""
        pod = {
            "containers": [{"name": "node", "image": self.bed.image}],
            "nodeSelector": {"node.kubernetes.io/instance-type": "none-such"},
        }
        job = {
            "name": "node",
            "template": {
                "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
                "spec": {"template": {"spec": pod}},
            },
        }
        return {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "ClusterTrainingRuntime",
            "metadata": {"name": RUNTIME, "labels": {"trainer.kubeflow.org/framework": "torch"}},
            "spec": {"mlPolicy": {"numNodes": 1, "torch": {}}, "template": {"spec": {"replicatedJobs": [job]}}},
        }

    def edited_windlass(self) -> float:
        self.job()
        began = time.monotonic()
        return self._first_line([BIN / "windlass", "run", "job.yaml", "--on", "bed"]) - began

    def edited_kubectl(self) -> float:
        path = self.manifests(self.job())
        began = time.monotonic()
        if self.before is not None:
            subprocess.run(self.kubectl("delete", "-f", self.before), check=True, capture_output=True)
        subprocess.run(self.kubectl("apply", "--server-side", "-f", path), check=True, capture_output=True)
        self.before = path
        name = f"job/bench-k{self.number:04}-1"
        return self._first_line(self.kubectl("logs", "-f", name, "--pod-running-timeout=60s")) - began

    def _first_line(self, words: list[str | Path]) -> float:
        """When the command showed the script's line; it is let end."""
        at = None
        while at is None:  # kubectl logs fails where the container has not started
            with subprocess.Popen(
                words, cwd=self.home, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            ) as one:
                for line in _lines(one):
                    if f"line {self.number} of the script" in line:
                        at = at or time.monotonic()
        return at


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stdout is not None
    yield from process.stdout


def main(times: int, smoke: bool) -> None:
    times = 0 if smoke else times
    with alone() as bed, fresh_home() as home:
        make_namespace(bed, NAMESPACE)
        bench = Bench(bed, home)
        accepted = in_turn({KUBECTL: bench.accepted_kubectl, WINDLASS: bench.accepted_windlass}, times)
        report(accepted, peer=PEER, title=f"from the command to a Job that is accepted ({machine()})", figure="s")
        edited = in_turn({KUBECTL: bench.edited_kubectl, WINDLASS: bench.edited_windlass}, times)
        title = "from an edited line to its output (kubectl: delete, apply, logs -f)"
        report(edited, peer=PEER, title=title, figure="s")
        trained = {} if smoke else by_operator(bench, times)
    if smoke:
        return
    report_columns(
        trained,
        peer=SDK,
        title="from the command to a TrainJob that is accepted",
        columns={"s": "s", "mb": "peak MB of the command"},
    )
    print_sizes()


def by_operator(bench: Bench, times: int) -> dict[str, Any]:
    """The figures of a TrainJob."""
    with operating(bench.bed, "trainer"):
        bench.bed.apply(bench.runtime(), namespace=NAMESPACE)
        return in_turn({SDK: bench.trained_sdk, WINDLASS: bench.trained_windlass}, times)


def print_sizes() -> None:
    """What each takes on the disk, without byte code."""
    rows = []
    for name, package in ((WINDLASS, f"{ROOT}[kubernetes]"), (SDK, "kubeflow")):
        with tempfile.TemporaryDirectory(prefix="windlass-bench-") as folder:
            size.install(Path(folder), package)
            found = size.measure(Path(folder))
        rows.append((name, f"{sum(found.values()) / 1e6:.1f}", len(found)))
    table("installed, each in an environment of its own", ["", "MB", "packages"], rows)


if __name__ == "__main__":
    start(main, runs=5)
