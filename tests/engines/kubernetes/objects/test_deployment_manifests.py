"""Objects of deployments: pods, options of targets, sources of models, exposure, and the init container's program."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from windlass.engines.deployments import DeploymentRequest
from windlass.engines.kubernetes.objects.deployment_manifests import (
    ModelFiles,
    filled,
    id_of,
    model_program_text,
    owned_objects,
    owner_job,
    server_template,
)
from windlass.engines.kubernetes.objects.exposure_manifests import server_service
from windlass.engines.kubernetes.objects.manifests import PIECE_BYTES
from windlass.engines.kubernetes.objects.package import FILE
from windlass.engines.kubernetes.objects.pod_template import target_shape
from windlass.plan.exposure import Exposure
from windlass.spec.targets import KubernetesTarget

Json = dict[str, Any]
NOW = 1_800_000_000.0
ASKED = DeploymentRequest("digits", Path("model"), NOW + 7200, "ana@example.com", run_id="digits-1a2b", cpus=0.5)
PATCH = {"runtimeClassName": "gvisor", "containers": [{"name": "node", "env": [{"name": "X", "value": "1"}]}]}
COMPANY: Json = {
    "tolerations": ["dedicated=ml:NoSchedule"],
    "node_selector": {"pool": "ml"},
    "annotations": {"cost-center": "4711"},
    "labels": {"team": "ml"},
    "image_pull_secrets": ["registry"],
    "env": {"LANG": "C.UTF-8"},
    "pod": {
        "spec": {"runtimeClassName": "gvisor", "containers": [{"name": "node", "env": [{"name": "X", "value": "1"}]}]}
    },
}


def template(files: ModelFiles = ModelFiles(1), changed: Json | None = None, **target: Any) -> Json:  # noqa: B008
    return server_template(shape(**target), replace(ASKED, **(changed or {})), files)


def shape(**target: Any) -> Any:
    made = KubernetesTarget.model_validate({"name": "lab", "context": "lab", "image": "trainer:1", **target})
    return target_shape(made, "team", "digits")


def test_the_server_runs_without_privileges_and_with_its_own_certificate() -> None:
    spec = template()["spec"]
    [server] = spec["containers"]
    assert server["command"] == [
        "python3", "-m", "windlass.serving", "/windlass/model", "--host", "0.0.0.0", "--port", "8443",
        "--certificate", "/windlass/credentials/tls.crt", "--key", "/windlass/credentials/tls.key",
        "--token-file", "/windlass/credentials/token",
    ]  # fmt: skip
    assert {one["name"]: one["value"] for one in server["env"]}["PYTHONPATH"] == "/windlass/server/server.zip"
    assert server["resources"]["requests"] == server["resources"]["limits"] == {"cpu": "500m", "memory": str(2 << 30)}
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["automountServiceAccountToken"] is False
    for one in (server, *spec["initContainers"]):
        assert one["securityContext"]["readOnlyRootFilesystem"] is True
        assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    for probe, path in (("livenessProbe", "/live"), ("readinessProbe", "/ping"), ("startupProbe", "/live")):
        assert server[probe]["httpGet"] == {"path": path, "port": 8443, "scheme": "HTTPS"}


def test_options_of_the_server_replace_neither_its_credentials_nor_its_port() -> None:
    [server] = template(changed={"server_options": ("--batch", "8", "--token-file", "")})["spec"]["containers"]
    assert server["command"][3:9] == ["/windlass/model", "--batch", "8", "--token-file", "", "--host"]
    assert server["command"][-2:] == ["--token-file", "/windlass/credentials/token"]  # the last one counts


def test_pods_have_the_options_of_the_target_and_its_patch() -> None:
    made = template(**COMPANY)
    assert made["metadata"]["labels"]["team"] == "ml"
    assert made["metadata"]["annotations"]["cost-center"] == "4711"
    spec = made["spec"]
    assert spec["tolerations"] == [{"key": "dedicated", "value": "ml", "effect": "NoSchedule", "operator": "Equal"}]
    assert (spec["nodeSelector"], spec["runtimeClassName"]) == ({"pool": "ml"}, "gvisor")
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    names = [one["name"] for one in spec["containers"][0]["env"]]
    assert ("LANG" in names, "X" in names) == (True, True)


def test_each_deployment_selects_only_its_own_pods() -> None:
    for name in ("digits", "letters"):
        objects = {kind: one for one in made_for(name=name) for _, kind, _ in [id_of(one)]}
        selected = objects["Service"]["spec"]["selector"]
        assert selected == objects["Deployment"]["spec"]["selector"]["matchLabels"]
        labels = objects["Deployment"]["spec"]["template"]["metadata"]["labels"]
        assert selected["windlass.dev/deployment"] == name
        assert selected.items() <= labels.items()
        assert all("windlass.dev/run" not in one["metadata"]["labels"] for one in objects.values())


def made_for(files: ModelFiles = ModelFiles(1), **changed: Any) -> list[Json]:  # noqa: B008
    return list(owned_objects(shape(), replace(ASKED, **changed), files, has_aws_controller=False))


def test_a_gpu_is_a_limit_and_its_taint_is_tolerated() -> None:
    spec = template(changed={"gpus": 1})["spec"]
    assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert spec["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert "affinity" not in spec


def test_replicas_prefer_separate_nodes() -> None:
    [rule] = template(changed={"replicas": 2})["spec"]["topologySpreadConstraints"]
    assert (rule["topologyKey"], rule["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")


def test_a_claim_is_mounted_read_only() -> None:
    spec = template(ModelFiles(1, "results", "windlass/digits-1a2b/output"))["spec"]
    [volume] = [one for one in spec["volumes"] if one["name"] == "windlass-source"]
    assert volume["persistentVolumeClaim"] == {"claimName": "results", "readOnly": True}
    [init] = spec["initContainers"]
    assert init["command"][-3:] == [
        "/windlass/model",
        "/windlass/source/windlass/digits-1a2b/output",
        "/windlass/code.d",
    ]


def test_an_object_store_is_read_by_an_init_container_with_the_secrets() -> None:
    made = template(ModelFiles(1, path="s3://b/model/"), {"secrets": ("keys",), "service_account": "reader"})
    fetch, model = made["spec"]["initContainers"]
    assert fetch["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert "envFrom" not in made["spec"]["containers"][0]
    assert made["spec"]["serviceAccountName"] == "reader"
    assert model["command"][-2] == "/windlass/source/model"
    kinds = [f"{kind} {name}" for _, kind, name in map(id_of, made_for(ModelFiles(1, path="s3://b/model/")))]
    assert "ConfigMap digits-transfer" in kinds


@pytest.mark.parametrize(("replicas", "mode"), [(1, "ReadWriteOnce"), (2, "ReadWriteMany")])
def test_a_claim_for_several_replicas_is_shared(replicas: int, mode: str) -> None:
    files = ModelFiles(claim="digits-model", path="model", made_bytes=1 << 30, storage_class="efs")
    [claim] = [one for one in made_for(files, replicas=replicas) if one["kind"] == "PersistentVolumeClaim"]
    assert (claim["spec"]["accessModes"], claim["spec"]["storageClassName"]) == ([mode], "efs")


def test_data_is_added_only_when_objects_are_created() -> None:
    model = bytes(PIECE_BYTES) + b"rest"
    data = {}
    for one in made_for(ModelFiles(2, path="s3://b/model/")):
        assert "data" not in one
        assert "binaryData" not in one
        made = filled(one, {"token": b"secret"}, b"server", model)
        data[id_of(one)[1:]] = {**made.get("data", {}), **made.get("binaryData", {})}
    assert data["Secret", "digits"] == {"token": "c2VjcmV0"}
    assert data["ConfigMap", "digits-server"] == {"server.zip": "c2VydmVy"}
    assert data["ConfigMap", "digits-model-1"] == {"piece": "cmVzdA=="}
    assert list(data["ConfigMap", "digits-transfer"]) == [FILE]


def test_an_inference_service_has_the_pod_of_the_server() -> None:
    [made] = [one for one in made_for(uses_kserve=True, max_replicas=3) if one["kind"] == "InferenceService"]
    predictor = made["spec"]["predictor"]
    assert [one["name"] for one in predictor["containers"]] == ["kserve-container"]
    assert (predictor["minReplicas"], predictor["maxReplicas"]) == (1, 3)
    assert predictor["labels"]["windlass.dev/deployment"] == "digits"
    assert made["metadata"]["annotations"]["serving.kserve.io/deploymentMode"] == "RawDeployment"


def test_the_owner_names_owner_run_and_objects() -> None:
    job = owner_job(shape(), ASKED, "abc", [("v1", "Secret", "digits")], NOW)
    notes = job["metadata"]["annotations"]
    assert notes["windlass.dev/owner"] == "ana@example.com"
    assert notes["windlass.dev/model-of-run"] == "digits-1a2b"
    assert notes["windlass.dev/deployment-objects"] == "Secret/digits"
    assert (job["spec"]["activeDeadlineSeconds"], job["metadata"]["labels"]["windlass.dev/user"]) == (
        7200,
        "ana-example.com",
    )


@pytest.mark.parametrize("is_aws", [True, False])
def test_an_exposed_service_admits_only_the_named_addresses(is_aws: bool) -> None:
    exposure = Exposure(("203.0.113.7/32",))
    made = server_service("digits", "team", {}, {"a": "b"}, 8443, exposure, has_aws_controller=is_aws)
    assert (made["spec"]["type"], made["spec"]["loadBalancerSourceRanges"]) == ("LoadBalancer", ["203.0.113.7/32"])
    assert made["spec"].get("loadBalancerClass") == ("service.k8s.aws/nlb" if is_aws else None)
    scheme = made["metadata"].get("annotations", {}).get("service.beta.kubernetes.io/aws-load-balancer-scheme")
    assert scheme == ("internet-facing" if is_aws else None)


def test_a_service_is_inside_the_cluster_by_default() -> None:
    made = server_service("digits", "team", {}, {"a": "b"}, 8443, None, has_aws_controller=True)
    assert made["spec"] == {
        "type": "ClusterIP", "selector": {"a": "b"}, "ports": [{"name": "https", "port": 443, "targetPort": 8443}]
    }  # fmt: skip


# -- the program of the init container --------------------------------------------------------------------------------


def prepared(model: Path, source: str = "", pieces: str = "") -> str:
    """Runs the program as the pod does; returns its error."""
    words = [sys.executable, "-I", "-S", "-c", model_program_text(), str(model), source, pieces]
    return subprocess.run(words, capture_output=True, text=True, check=False).stderr


def test_code_from_config_maps_is_put_beside_links_to_the_files_of_a_volume(tmp_path: Path) -> None:
    for name in ("model", "pieces", "volume/code", "own/code"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "volume" / "weights.bin").write_text("weights")
    (tmp_path / "volume" / "code" / "predict.py").write_text("old")
    (tmp_path / "own" / "code" / "predict.py").write_text("new")
    with tarfile.open(tmp_path / "model.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "own" / "code", "code")
    data = (tmp_path / "model.tar.gz").read_bytes()
    (tmp_path / "pieces" / "000").write_bytes(data[:50])
    (tmp_path / "pieces" / "001").write_bytes(data[50:])
    (tmp_path / "pieces" / "..data").mkdir()
    model = tmp_path / "model"
    for _ in range(2):  # the kubelet may start the container again
        assert prepared(model, str(tmp_path / "volume"), str(tmp_path / "pieces")) == ""
        assert (model / "weights.bin").read_text() == "weights"
        assert (model / "code" / "predict.py").read_text() == "new"


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    assert "the model is not there: /absent/digits" in prepared(tmp_path / "model", "/absent/digits")
    assert "the folder of the model is empty" in prepared(tmp_path / "model")
