"""Imported jobs are accepted by a real API server, and exported plans train there without Windlass."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import operated
from tests.cluster.bed.cluster import Cluster
from tests.cluster.bed.host import wait_for
from tests.cluster.objects import claim
from tests.engines.kubernetes.planning.test_imported_pods import (
    NAMES,
    differences,
    fields,
    original,
    planned,
    reasons,
)
from tests.importers.shapes import FILES, FOLDER, form_of, imported
from tests.importers.shapes import fields as fields_of

from windlass.importers.convert import import_text
from windlass.spec.job import Job

WINDLASS = Path(sys.executable).with_name("windlass")
DIGITS = Path(__file__).parents[2] / "examples" / "01-digits"
PRIORITIES = {"high", "normal", "urgent", "windlass-test-high"}
NOT_THE_MANIFESTS = {"data-remote", "gpu-type-missing", "mount-driver", "mount-write"}
"""Blockers that depend on this cluster or version, and not on how a manifest was imported."""
RUNTIME = "nvidia"
PRIVILEGED = {*(f"company-{name}" for name in NAMES), "h07-job-indexed", "h09-init-and-sidecar", "s4-maskrcnn"}
"""Manifests whose pods use their host, which pod security `restricted` refuses."""
REFUSED = "cluster-refuses"
MISSING = re.compile(r": (ConfigMap|Secret) (\S+) (?:is not in the namespace|has no key (\S+)$)")
PATIENCE_SECONDS = 120.0
"""Time limit in seconds: operators come and go in a shared cluster, and their webhooks are unreachable for a moment
then."""

pytestmark = [pytest.mark.operators, pytest.mark.timeout(900)]


class User:
    """A user's shell in a folder with a target."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        self.cluster, self.namespace, self.folder = cluster, namespace, folder
        self.env = {**os.environ, "WINDLASS_HOME": str(folder / "home"), "KUBECONFIG": cluster.kubeconfig}
        there = {
            "kind": "kubernetes",
            "context": cluster.context,
            "namespace": namespace,
            "image": cluster.image,
            "python": cluster.python,
            "data": {"size": "1GiB", "storage_class": "bed"},
        }
        (folder / "targets.yaml").write_text(json.dumps({"bed": there}))

    def windlass(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([WINDLASS, *words], cwd=self.folder, env=self.env, capture_output=True, text=True)

    def allow_privileged(self) -> None:
        """Puts the namespace under pod security `privileged`."""
        standard = "pod-security.kubernetes.io/enforce=privileged"
        self.cluster.kubectl("label", "namespace", self.namespace, standard, "--overwrite")

    def create_missing(self, notes: list[dict[str, Any]]) -> bool:
        """Creates the ConfigMaps, Secrets and keys that a plan names as missing; returns whether there are any."""
        found = [match for one in notes if (match := MISSING.search(one["message"]))]
        for kind, name, key in map(re.Match.groups, found):
            made = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}}
            text = {"stringData" if kind == "Secret" else "data": {key: "x"}} if key else {}
            self.cluster.apply({**made, **text}, namespace=self.namespace)
        return bool(found)

    def phase(self) -> str:
        """Returns the phase of the target's only run; empty if there is none."""
        runs = json.loads(self.windlass("ps", "--on", "bed", "-o", "json").stdout)
        return str(runs[0]["phase"]) if runs else ""


@pytest.fixture
def user(cluster: Cluster, namespace: str, tmp_path: Path) -> User:
    return User(cluster, namespace, tmp_path)


@pytest.fixture(scope="module")
def classes(cluster: Cluster) -> Iterator[None]:
    """Priority classes and the runtime class that the manifests name."""
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1}
    made = [{**kind, "metadata": {"name": name}} for name in sorted(PRIORITIES)]
    runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "runc", "metadata": {"name": RUNTIME}}
    cluster.apply(*made, runtime, namespace="default")
    yield
    cluster.kubectl("delete", "priorityclass", *sorted(PRIORITIES), "--ignore-not-found")
    cluster.kubectl("delete", "runtimeclass", RUNTIME, "--ignore-not-found")


def what_it_needs(job: Job, namespace: str) -> list[dict[str, Any]]:
    """Returns the objects that a job names and does not create."""
    secrets = [*job.secrets, *job.kubernetes.image_pull_secrets]
    patched = [one.get("persistentVolumeClaim", {}) for one in job.kubernetes.pod.get("spec", {}).get("volumes", ())]
    claims = {volume.claim for volume in job.volumes} | {one.get("claimName") for one in patched}
    found = [claim(name) for name in sorted(filter(None, claims))]
    found += [{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}} for name in secrets]
    if job.kubernetes.service_account is not None:
        found.append(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": job.kubernetes.service_account}}
        )
    if job.queue is not None:
        found += operated.queue(job.queue, namespace, "64")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_api_server_accepts_the_objects_of_an_imported_job(
    path: Path, user: User, classes: None, operator: Callable[[str], None]
) -> None:
    job = imported(path).job
    if job.launcher == "mpi":
        operator("mpi-operator")
    if job.queue is not None:
        operator("kueue")
    if path.stem in PRIVILEGED:
        user.allow_privileged()
    if needed := what_it_needs(job, user.namespace):
        user.cluster.apply(*needed, namespace=user.namespace)
    flag = [] if form_of(path) == "kubernetes" else [f"--{form_of(path)}"]
    made = user.windlass("import", str(path), *flag, "--to", "job.yaml")
    assert made.returncode == 0, made.stderr
    if job.script_kind == "script" and not job.script_argv[0].startswith("/"):
        script = user.folder / job.script_argv[0]
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text("")
    via = "mpijob" if job.launcher == "mpi" else "jobset" if job.nodes.max > 1 else "job"
    words = ["--set", f"kubernetes.namespace={user.namespace}", "--set", f"kubernetes.via={via}"]
    give_up = time.monotonic() + PATIENCE_SECONDS
    while True:
        planned = user.windlass("plan", "job.yaml", "--on", "bed", *words, "-o", "json")
        assert planned.stdout, planned.stderr
        notes: list[dict[str, Any]] = json.loads(planned.stdout)["notes"]
        blockers = [note for note in notes if note["blocks"] and note["code"] not in NOT_THE_MANIFESTS]
        is_waiting = user.create_missing(blockers) or any(note["code"] == REFUSED for note in blockers)
        if not is_waiting or time.monotonic() > give_up:
            break
    assert not blockers, blockers


OF_THE_API_SERVER = {
    r"metadata\.(uid|creationTimestamp)": "of the pod itself",
    r"container\.mounts\./var/run/secrets/kubernetes\.io/serviceaccount\.": "pods of a run have no token",
    r"spec\.initContainers\.\w+\.mounts\./var/run/secrets/kubernetes\.io/serviceaccount\.": "nor have these",
    r"spec\.(enableServiceLinks|restartPolicy|terminationGracePeriodSeconds)": "defaults that a run does not use",
    r"spec\.tolerations\.node\.kubernetes\.io/": "lost pods are replaced sooner",
    r"container\.terminationMessagePolicy": "the end of the log is the message",
}
"""Fields that the API server sets in the pods of an original and a run differently, with the reason."""


@pytest.mark.parametrize("name", NAMES)
def test_api_server_stores_the_same_pod_for_the_original_and_the_imported_job(
    name: str, user: User, classes: None
) -> None:
    path = FOLDER / f"company-{name}.yaml"
    made = imported(path)
    user.allow_privileged()
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "trainer"}}
    user.cluster.apply(account, namespace=user.namespace)
    stored = []
    for template in (original(path), planned(made, "mpijob" if name == "mpijob" else "job")[1][-1]):
        meta = {**template["metadata"], "name": "pod", "namespace": user.namespace}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"]}
        made_of = user.cluster.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(pod))
        stored.append(json.loads(made_of))
    theirs, ours = stored
    assert differences(fields(theirs), fields(ours, made.job), reasons(name) | OF_THE_API_SERVER) == []


@pytest.mark.parametrize("via", ["job", "jobset"])
def test_exported_objects_train_and_can_be_imported_as_the_same_job(via: str, user: User) -> None:
    job = {
        "name": "digits",
        "run": "train.py --epochs 2",
        "code": str(DIGITS),
        "nodes": 2,
        "procs_per_node": 2,
        "resources": {"cpus": 0.5, "memory": "4GiB", "shm": "64MiB"},
        "grace": "5s",
        "timeout": "15min",
        "kubernetes": {"via": via},
    }
    (user.folder / "job.yaml").write_text(json.dumps(job))
    written = user.windlass("plan", "--on", "bed", "-o", "manifest")
    assert written.returncode == 0, written.stderr
    [head] = [line for line in written.stdout.splitlines() if line.startswith("# Run ")]
    run_id = head.split()[2]
    selector = f"windlass.dev/run={run_id}"
    kubectl = user.cluster.kubectl
    kubectl("apply", "-f", "-", stdin=written.stdout)

    def pods() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(
            kubectl("get", "pods", "-n", user.namespace, "-l", selector, "-o", "json")
        )["items"]
        return found

    def ended() -> bool:
        phases = [pod["status"]["phase"] for pod in pods()]
        assert "Failed" not in phases, kubectl("logs", "-n", user.namespace, "-l", selector, "--tail=50", "--prefix")
        return phases == ["Succeeded"] * 2

    wait_for(ended, "the pods have succeeded", seconds=600)
    first = min(pods(), key=lambda pod: str(pod["metadata"]["name"]))
    assert "test accuracy" in kubectl("logs", "-n", user.namespace, first["metadata"]["name"])
    assert user.windlass("status", run_id, "--on", "bed", "-o", "json").returncode == 0
    wait_for(lambda: user.phase() == "succeeded", "the run has succeeded", seconds=300)

    back = fields_of(import_text(written.stdout, "run.yaml"))
    assert back["resources"] == {"cpus": 0.5, "memory": 4 << 30, "shm": 64 << 20}
    assert (back["image"], back["nodes"], back["timeout"]) == (user.cluster.image, 2, 900.0)

    [delete] = [line.removeprefix("#   kubectl ") for line in written.stdout.splitlines() if "kubectl delete" in line]
    kubectl(*delete.split(), "--wait=true")
    words = ("get", "configmaps,services,jobs,jobsets,pods", "-n", user.namespace, "-l", selector, "-o", "name")
    wait_for(lambda: not kubectl(*words).strip(), "all objects to be gone", seconds=300)


def test_failed_exported_run_is_shown_as_failed(user: User) -> None:
    job = {"name": "broken", "command": ["sh", "-c", "echo no; exit 3"], "restarts": 2, "kubernetes": {"via": "job"}}
    (user.folder / "job.yaml").write_text(json.dumps(job))
    written = user.windlass("plan", "--on", "bed", "-o", "manifest-json")
    assert written.returncode == 0, written.stderr
    assert "restarts: 2, and no supervisor starts" in written.stderr
    user.cluster.kubectl("apply", "-f", "-", stdin=written.stdout)
    wait_for(lambda: user.phase() == "failed", "the run has failed", seconds=300)
