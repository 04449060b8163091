"""Deployments of models in a cluster: created, called, ended by the cluster alone, and never left half.

The server and its certificates are real, as are the API server, its garbage collector and the kubelets. Of KServe only
the definition is real: no controller makes pods of an InferenceService.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Call, home, windlass
from tests.cluster import kserve
from tests.cluster.bed.cluster import Bed, Cluster
from tests.cluster.bed.users import context
from tests.cluster.rights import LIMITED, until_role_is_granted
from tests.cluster.stores import BUCKET, SECRET, pod_store
from tests.helpers.until import passed, until

from windlass.engines.deployments import Deployment, DeploymentPhase, DeploymentRequest, ModelResponse
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.port_forward import open_port
from windlass.engines.kubernetes.objects.deployment_manifests import KSERVE, PORT
from windlass.engines.kubernetes.objects.layout import DEPLOYMENT_LABEL
from windlass.engines.kubernetes.reading.preflight import rbac
from windlass.engines.kubernetes.running.deployments import KubernetesDeployments
from windlass.engines.pinned_http import ServerAccess, send
from windlass.errors import WindlassError
from windlass.plan.exposure import Exposure
from windlass.services.certificates import new_credentials
from windlass.spec.targets import KubernetesTarget

__all__ = ["home", "windlass"]

pytestmark = pytest.mark.timeout(600)
NAME = "digits"
HOUR = 3600.0
PREDICT = """
from pathlib import Path
def load(folder):
    global FACTOR
    FACTOR = float(Path(folder, "factor.txt").read_text())
    return FACTOR
def predict(data, *others):
    return [FACTOR * one for one in data]
"""
TRAIN = """
import os, pathlib
out = pathlib.Path(os.environ["WINDLASS_OUTPUT_DIR"])
out.mkdir(parents=True, exist_ok=True)
(out / "factor.txt").write_text("5")
"""
KINDS = "jobs,deployments,replicasets,pods,services,secrets,configmaps,persistentvolumeclaims,horizontalpodautoscalers"
AGAIN = """
import json, os, sys, time
from pathlib import Path
from windlass.engines.deployments import DeploymentRequest
from windlass.engines.kubernetes.running.deployments import KubernetesDeployments
from windlass.services.certificates import new_credentials
from windlass.spec.targets import KubernetesTarget
target, asked = json.loads(sys.argv[1]), json.loads(sys.argv[2])
found = KubernetesDeployments(KubernetesTarget.model_validate(target), os.environ)
asked = DeploymentRequest(**{**asked, "model": Path(asked["model"])})
say = lambda text: print(text, flush=True)
found.deploy(found.plan(asked), say, new_credentials(asked.name, time.time(), asked.ends_at).files())
"""
"""Program that deploys a model, to be killed."""


class Place:
    """A namespace, and a model that multiplies by 3."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path, user: str = "") -> None:
        self.cluster, self.namespace = cluster, namespace
        self.fields = {
            "name": "bed",
            "context": context(user) if user else cluster.context,
            "namespace": namespace,
            "kubeconfig": cluster.kubeconfig,
            "image": cluster.image,
            "python": cluster.python,
        }
        self.model = folder / "model"
        (self.model / "code").mkdir(parents=True)
        (self.model / "factor.txt").write_text("3")
        (self.model / "code" / "predict.py").write_text(PREDICT)
        self.said: list[str] = []
        self.asked = DeploymentRequest(
            NAME, self.model, time.time() + HOUR, "ana", cpus=0.2, memory_bytes=256 << 20, run_id="digits-1a2b"
        )

    @property
    def deployments(self) -> KubernetesDeployments:
        return KubernetesDeployments(KubernetesTarget.model_validate(self.fields), os.environ)

    def deploy(self, **changed: Any) -> tuple[Deployment, Mapping[str, bytes]]:
        asked = replace(self.asked, **changed)
        credentials = new_credentials(NAME, time.time(), asked.ends_at).files()
        plan = self.deployments.plan(asked)
        return self.deployments.deploy(plan, self.said.append, credentials), credentials

    def begin(self, **changed: Any) -> subprocess.Popen[str]:
        """Starts a process that deploys the model."""
        asked = {"name": NAME, "model": str(self.model), "owner": "ana", "cpus": 0.2, "memory_bytes": 256 << 20}
        words = [
            sys.executable,
            "-c",
            AGAIN,
            json.dumps(self.fields),
            json.dumps({**asked, "ends_at": None, **changed}),
        ]
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)

    def answer(self) -> ModelResponse:
        return self.deployments.invoke(NAME, b"[1, 2]", "application/json", "application/json", 30.0)

    def left(self) -> list[str]:
        """Returns the objects of deployments in the namespace."""
        words = ["get", KINDS, "-n", self.namespace, "-l", DEPLOYMENT_LABEL, "-o", "name"]
        return self.cluster.kubectl(*words).split()


@pytest.fixture
def place(cluster: Cluster, namespace: str, tmp_path: Path) -> Place:
    return Place(cluster, namespace, tmp_path)


def test_a_model_is_deployed_called_and_removed_with_the_printed_rights(
    bed: Bed, namespace: str, tmp_path: Path
) -> None:
    groups = set(bed.kubectl("api-versions").split())
    bed.apply(rbac.role(namespace, rbac.useful(groups)), rbac.binding(namespace, LIMITED), namespace=namespace)
    until_role_is_granted(bed, namespace)
    place = Place(bed, namespace, tmp_path, LIMITED)
    found, credentials = place.deploy(max_replicas=2, exposure=Exposure(("203.0.113.7/32",)))
    assert (found.phase, found.ready_replicas, found.ends_by) == (DeploymentPhase.READY, 1, "cluster")
    assert abs((found.ends_at or 0.0) - (place.asked.ends_at or 0.0)) < 5
    answer = place.answer()
    assert (answer.status, json.loads(answer.body)) == (200, [3.0, 6.0])
    service = json.loads(bed.kubectl("get", "service", NAME, "-n", namespace, "-o", "json"))["spec"]
    assert (service["type"], service["loadBalancerSourceRanges"]) == ("LoadBalancer", ["203.0.113.7/32"])

    pod = bed.kubectl("get", "pods", "-n", namespace, "-l", f"{DEPLOYMENT_LABEL}={NAME}", "-o", "name").split("/")[1]
    with closing(Client(place.fields["context"], namespace, bed.kubeconfig)) as client:
        name = pod.strip()
        wrong = ServerAccess(credentials["tls.crt"], "wrong")
        assert send(open_port(client, name, PORT), wrong, "POST", "/invocations", body=b"[1]", timeout=30).status == 401
        assert plain_answer(open_port(client, name, PORT)) == b""
    [listed] = place.deployments.list()
    assert listed.last_request_at is not None
    assert (listed.last_request_at or 0.0) > (listed.created_at or 0.0)

    removed = place.deployments.undeploy(NAME, place.said.append)
    assert f"HorizontalPodAutoscaler {NAME}" in removed
    assert place.left() == []


def plain_answer(stream: socket.socket) -> bytes:
    """Returns the answer to a request without TLS; empty if the server ends the connection."""
    with stream:
        stream.settimeout(30)
        stream.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
        try:
            return stream.recv(100)
        except ConnectionError:
            return b""


def test_the_end_passes_with_nobody_watching(place: Place) -> None:
    process = place.begin(ends_at=time.time() + 25)
    assert process.stdout is not None
    next(line for line in process.stdout if line.startswith("made 6 objects"))
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert len(place.left()) >= 6
    until(lambda: place.left() == [], lambda: place.left())
    assert place.deployments.list() == ()


@pytest.mark.nightly
def test_a_deploy_that_is_killed_ten_times_is_one_deployment(place: Place) -> None:
    moments = random.Random(48)
    for _ in range(10):
        process = place.begin()
        assert process.stdout is not None
        process.stdout.readline()  # the first object exists from here on
        passed(moments.uniform(0.0, 1.5))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    process = place.begin()
    process.communicate(timeout=300)
    assert process.returncode == 0
    [found] = place.deployments.list()
    assert (found.phase, found.ready_replicas, found.ends_at) == (DeploymentPhase.READY, 1, None)
    assert json.loads(place.answer().body) == [3.0, 6.0]
    place.deployments.undeploy(NAME, place.said.append)
    assert place.left() == []


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("changed", "code", "cause"),
    [
        ({"image": "localhost/absent:1"}, PREDICT, "localhost/absent:1"),
        ({"cpus": 900.0}, PREDICT, "Insufficient cpu"),
        ({}, "raise ValueError('no weights in this model')", "no weights in this model"),
        ({"source": "claim:absent/model"}, PREDICT, "absent is not in the namespace"),
    ],
)
def test_a_failed_deployment_has_its_first_cause_and_leaves_nothing(
    place: Place, changed: dict[str, Any], code: str, cause: str
) -> None:
    (place.model / "code" / "predict.py").write_text(code)
    with pytest.raises(WindlassError, match=cause):
        place.deploy(**changed)
    assert place.left() == []


@pytest.mark.nightly
def test_a_large_model_is_copied_to_a_claim_and_a_claim_is_read(place: Place) -> None:
    place.fields["data"] = {"size": "1GiB", "storage_class": "bed"}  # type: ignore[assignment]
    (place.model / "weights.bin").write_bytes(random.Random(1).randbytes(4 << 20))
    place.deploy(replicas=2)
    assert json.loads(place.answer().body) == [3.0, 6.0]
    other = place.model.parent / "other"
    (other / "code").mkdir(parents=True)
    (other / "code" / "predict.py").write_text(PREDICT)
    place.deploy(name="again", model=other, source=f"claim:{NAME}-model/model")
    answer = place.deployments.invoke("again", b"[5]", "application/json", "application/json", 30.0)
    assert json.loads(answer.body) == [15.0]
    for name in ("again", NAME):
        place.deployments.undeploy(name, place.said.append)
    assert place.left() == []


@pytest.mark.nightly
def test_a_model_is_fetched_from_an_object_store(bed: Bed, namespace: str, tmp_path: Path) -> None:
    place = Place(bed, namespace, tmp_path)
    with pod_store(bed, namespace, tmp_path / "buckets") as store:
        store.server.client().put_object(Bucket=BUCKET, Key="model/factor.txt", Body=b"7")
        (place.model / "factor.txt").unlink()
        place.fields["env"] = store.fields["env"]
        place.deploy(source=f"s3://{BUCKET}/model/", secrets=(SECRET,))
        assert json.loads(place.answer().body) == [7.0, 14.0]
        place.deployments.undeploy(NAME, place.said.append)


@pytest.mark.nightly
def test_the_results_of_a_run_are_deployed_by_commands(
    place: Place, windlass: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", place.cluster.kubeconfig)
    fields = {name: text for name, text in place.fields.items() if name not in ("name", "kubeconfig")}
    Path("targets.yaml").write_text(json.dumps({"bed": {"kind": "kubernetes", **fields}}))
    Path("code").mkdir()
    Path("code/train.py").write_text(TRAIN)
    Path("code/predict.py").write_text(PREDICT)
    results = {"size": "1GiB", "storage_class": "bed"}
    job = {"name": NAME, "run": "train.py", "code": "code", "kubernetes": {"results": results}}
    Path("job.yaml").write_text(json.dumps(job))
    trained = windlass("run", "--on", "bed", "-q")
    assert trained.code == 0, trained.err
    run = windlass("ps", "-a", "-q").out.strip()

    deployed = windlass("deploy", run, "--on", "bed", "--for", "10min", "--cpus", "0.2", "--memory", "256MiB")
    assert deployed.code == 0, deployed.err
    Path("sample.json").write_text("[2]")
    asked = windlass("invoke", NAME, "sample.json", "--on", "bed", "-o", "json")
    assert (asked.code, asked.json["body"]) == (0, [10.0]), asked.err
    [listed] = windlass("services", "--on", "bed", "-o", "json").json["services"]
    assert (listed["name"], listed["phase"], listed["run"], listed["ends_by"]) == (NAME, "ready", run, "cluster")
    assert windlass("deploy", run, "--on", "bed", "--gpus", "1").code == 2
    closed = windlass("undeploy", NAME, "--on", "bed")
    assert closed.code == 0, closed.err
    assert place.left() == []


@pytest.fixture
def kserve_definition(bed: Bed) -> Iterator[None]:
    try:
        bed.kubectl("create", "-f", str(kserve.definition()))
        until(lambda: KSERVE in bed.kubectl("api-versions").split())
        yield
    finally:
        bed.kubectl("delete", "crd", kserve.DEFINITION)


@pytest.mark.nightly
def test_an_inference_service_is_admitted(place: Place, kserve_definition: None) -> None:
    process = place.begin(uses_kserve=True)
    assert process.stdout is not None
    next(line for line in process.stdout if line.startswith("made 5 objects"))
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    words = ["get", "inferenceservice", NAME, "-n", place.namespace, "-o", "json"]
    predictor = json.loads(place.cluster.kubectl(*words))["spec"]["predictor"]
    assert [one["name"] for one in predictor["containers"]] == ["kserve-container"]
    assert predictor["labels"][DEPLOYMENT_LABEL] == NAME
    [found] = place.deployments.list()
    assert (found.phase, found.replicas, found.ready_replicas) == (DeploymentPhase.CREATING, 1, 0)
    place.deployments.undeploy(NAME, place.said.append)
    assert place.cluster.kubectl("get", "inferenceservices", "-n", place.namespace, "-o", "name") == ""
