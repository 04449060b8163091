"""A plan contains the staging of data sets in a claim, and the upload of outputs from one."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from tests.engines.kubernetes.planning.test_plan import CLUSTER, CODE, FACTS, TARGET, blockers, planned, pod_spec

from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.planning.export import manifests
from windlass.engines.kubernetes.reading.preflight.pod_admission import run_pods
from windlass.errors import JobFileError, UsageError
from windlass.plan.plan import Plan
from windlass.plan.steps import (
    CheckJobStep,
    DataClaimStep,
    ManifestStep,
    NodeStep,
    StageJobStep,
    StageStep,
    TransferStep,
    UploadJobStep,
    UploadStep,
)
from windlass.spec.sections import DataClaim

DIGITS = {"name": "digits", "source": "s3://bucket/digits/"}
CLAIM = {"data": {"size": "200GiB", "storage_class": "efs"}}
THERE = dataclasses.replace(FACTS, cluster=dataclasses.replace(CLUSTER, claims=frozenset(("windlass-data", "sets"))))
RESULTS = {"results": {"size": "1GiB"}}


def asked(made: Plan, kind: type[ManifestStep]) -> dict[str, Any]:
    """Returns the request to the program in the pod of a Job."""
    [job] = made.manifests(kind)
    [container] = job["spec"]["template"]["spec"]["containers"]
    variables = {one["name"]: one["value"] for one in container["env"]}
    return dict(json.loads(variables["WINDLASS_TRANSFER"]))


def test_job_stages_a_data_set_at_the_path_of_the_ranks() -> None:
    made = planned(data=[DIGITS], kubernetes=CLAIM)
    assert not blockers(made)
    claim, job, program = made.manifests(DataClaimStep, StageJobStep, TransferStep)
    assert claim["metadata"]["name"] == "windlass-data"
    assert claim["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": str(200 << 30)}},
        "storageClassName": "efs",
    }
    assert layout.RUN_LABEL not in claim["metadata"]["labels"], "no run owns it"
    assert (job["metadata"]["name"], program["metadata"]["name"]) == ("digits-7f3k2-data", "digits-7f3k2-transfer")
    link = "/windlass/data/runs/team-a/digits-7f3k2/digits"
    assert asked(made, StageJobStep) == {"kind": "stage", "root": "/windlass/data", "sets": [{**DIGITS, "link": link}]}
    assert made.every(NodeStep)[0].spec.env["WINDLASS_DATA_DIGITS"] == link
    [mount] = [one for one in pod_spec(made)["containers"][0]["volumeMounts"] if one["name"] == "data"]
    [staging] = [
        one for one in job["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] if one["name"] == "claim"
    ]
    assert mount == {"name": "data", "mountPath": "/windlass/data", "subPath": "windlass-data", "readOnly": True}
    assert (staging["mountPath"], staging["subPath"]) == (mount["mountPath"], mount["subPath"])


def test_existing_claim_is_used_unchanged() -> None:
    assert planned(THERE, data=[DIGITS], kubernetes=CLAIM).manifests(DataClaimStep) == []
    made = planned(THERE, data=[DIGITS], kubernetes={"data": {"claim": "sets"}})
    assert not blockers(made)
    [volume] = [one for one in pod_spec(made)["volumes"] if one["name"] == "data"]
    assert volume["persistentVolumeClaim"] == {"claimName": "sets"}


def test_file_from_a_server_is_staged_without_the_jobs_proxy() -> None:
    url = "https://example.com/digits.tar"
    made = planned(data=[{**DIGITS, "source": url}], env={"HTTPS_PROXY": "http://proxy:3128"}, kubernetes=CLAIM)
    assert not blockers(made)
    assert [one["source"] for one in asked(made, StageJobStep)["sets"]] == [url]
    [container] = made.manifests(StageJobStep)[0]["spec"]["template"]["spec"]["containers"]
    assert {"name": "HTTPS_PROXY", "value": "http://proxy:3128"} in container["env"]
    assert "-S" in container["command"] + container.get("args", []), "the standard library is enough"


def test_a_target_names_the_claim_for_jobs_that_do_not() -> None:
    target = TARGET.model_copy(update={"data": DataClaim(claim="sets")})
    made = planned(THERE, target, data=[DIGITS])
    assert made.manifests(StageJobStep)[0]["spec"]["template"]["spec"]["volumes"][1] == {
        "name": "claim",
        "persistentVolumeClaim": {"claimName": "sets"},
    }
    assert planned(THERE, target, data=[DIGITS], kubernetes=CLAIM).every(StageStep) != []
    assert planned(THERE, target).manifests(TransferStep) == [], "nothing is staged"


def test_the_outputs_are_uploaded_from_the_claim_of_the_results() -> None:
    made = planned(outputs="s3://bucket/runs", kubernetes=RESULTS)
    assert not blockers(made)
    to = "s3://bucket/runs/digits-7f3k2/"
    upload = made.only(UploadStep)
    assert (upload.source, upload.destination, upload.at) == ("/windlass/results/output", to, "end")
    assert asked(made, UploadJobStep) == {
        "kind": "upload",
        "name": "outputs",
        "source": "/windlass/results/output",
        "destination": to,
        "state": "/windlass/results/upload",
    }
    [job] = made.manifests(UploadJobStep)
    spec = job["spec"]["template"]["spec"]
    assert spec["volumes"][1]["persistentVolumeClaim"] == {"claimName": "digits-7f3k2"}
    assert spec["containers"][0]["volumeMounts"][1]["subPath"] == "windlass/digits-7f3k2"


def test_output_store_is_checked_by_a_pod_without_a_claim() -> None:
    made = planned(
        outputs="s3://bucket/runs", secrets=["s3-keys"], kubernetes={**RESULTS, "service_account": "trainer"}
    )
    assert asked(made, CheckJobStep) == {
        "kind": "check",
        "destination": "s3://bucket/runs/digits-7f3k2/",
        "pause_seconds": 10,
    }
    [check], [upload] = made.manifests(CheckJobStep), made.manifests(UploadJobStep)
    assert check["metadata"]["name"] == "digits-7f3k2-outputs-check"
    spec, other = check["spec"]["template"]["spec"], upload["spec"]["template"]["spec"]
    assert [volume["name"] for volume in spec["volumes"]] == ["program", "tmp"]
    assert spec["serviceAccountName"] == other["serviceAccountName"] == "trainer"
    assert spec["containers"][0]["envFrom"] == other["containers"][0]["envFrom"]
    assert planned(outputs="runs", kubernetes=RESULTS).manifests(CheckJobStep) == []


def test_outputs_are_uploaded_at_checkpoints_on_request() -> None:
    made = planned(outputs={"to": "s3://bucket/runs", "at": "checkpoint"}, kubernetes=RESULTS)
    assert made.only(UploadStep).at == "checkpoint"
    [step] = [step for step in made.steps if step.kind == "upload"]
    assert step.summary.endswith("after each checkpoint and after the last attempt")
    with pytest.raises(JobFileError, match="names no store"):
        planned(outputs={"to": "runs", "at": "checkpoint"}, kubernetes=RESULTS)


def test_transfer_pods_get_only_the_jobs_store_credentials() -> None:
    made = planned(
        data=[DIGITS],
        secrets=["s3-keys"],
        env={"AWS_ENDPOINT_URL": "http://minio:9000", "NCCL_DEBUG": "INFO"},
        kubernetes={**CLAIM, "service_account": "trainer"},
        resources={"gpus": 4},
        facts=dataclasses.replace(FACTS, cluster=dataclasses.replace(CLUSTER, secrets=frozenset(("s3-keys",)))),
    )
    assert not blockers(made)
    spec = made.manifests(StageJobStep)[0]["spec"]["template"]["spec"]
    [container] = spec["containers"]
    names = [one["name"] for one in container["env"]]
    assert names == ["HOME", "AWS_ENDPOINT_URL", "WINDLASS_TRANSFER", "WINDLASS_TRANSFER_RESULT"]
    assert container["envFrom"] == [{"secretRef": {"name": "s3-keys"}}]
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("trainer", False)
    assert "nvidia.com/gpu" not in json.dumps(container)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"data": [DIGITS]}, "data-claim"),
        ({"data": [DIGITS], "kubernetes": {"data": {"claim": "sets"}}}, "claim-missing"),
        ({"data": [{**DIGITS, "source": "hf://bucket/digits/"}], "kubernetes": CLAIM}, "data-unknown"),
        ({"data": [{**DIGITS, "source": "digits"}]}, "data-remote"),
        ({"data": [{"name": f"d{at}", "source": "s3://b/d"} for at in range(13)], "kubernetes": CLAIM}, "data-many"),
        ({"outputs": "s3://bucket/runs"}, "outputs-claim"),
        ({"outputs": "hf://bucket/runs", "kubernetes": RESULTS}, "outputs"),
        ({"outputs": "runs", "kubernetes": RESULTS}, "outputs"),
        ({"outputs": "https://host/runs", "kubernetes": RESULTS}, "outputs"),
    ],
)
def test_unsupported_data_and_outputs_are_refused(fields: dict[str, Any], code: str) -> None:
    assert set(blockers(planned(**fields))) == {code}


@pytest.mark.parametrize("scheme", ["gs", "az"])
def test_other_stores_need_a_library_in_the_image(scheme: str) -> None:
    data, env = {**DIGITS, "source": f"{scheme}://bucket/digits/"}, {"AZURE_STORAGE_ACCOUNT_NAME": "lab", "X": "1"}
    made = planned(
        data=[data], outputs=f"{scheme}://bucket/runs", env=env, kubernetes={**CLAIM, **RESULTS}, facts=FACTS
    )
    assert not blockers(made)
    assert [note.code for note in made.notes if note.code.endswith("-obstore")] == ["image-obstore"]
    for job in made.manifests(StageJobStep, UploadJobStep):
        [container] = job["spec"]["template"]["spec"]["containers"]
        assert container["command"][1:-1] == ["-I"], "what is installed in the image can be imported"
        assert "AZURE_STORAGE_ACCOUNT_NAME" in [one["name"] for one in container["env"]]
        assert "X" not in [one["name"] for one in container["env"]]
    [container] = planned(data=[DIGITS], kubernetes=CLAIM).manifests(StageJobStep)[0]["spec"]["template"]["spec"][
        "containers"
    ]
    assert container["command"][1:-1] == ["-I", "-S"]


@pytest.mark.parametrize(
    ("fields", "of_target", "named"),
    [
        ({}, {}, "localhost/base:1"),
        ({"image": "own:1"}, {}, "own:1"),
        ({"image": "own:1"}, {"supervisor_image": "helper:1"}, "helper:1"),
        ({}, {"image": None}, "of the job"),
        ({"kubernetes": {**RESULTS, "runtime": "torch-distributed"}}, {}, "of the runtime"),
    ],
)
def test_image_of_the_transfer_pods_needs_the_library(
    fields: dict[str, Any], of_target: dict[str, Any], named: str
) -> None:
    target = TARGET.model_copy(update=of_target)
    made = planned(target=target, **{"outputs": "gs://bucket/runs", "kubernetes": RESULTS, **fields})
    [note] = [note for note in made.notes if note.code == "image-obstore"]
    assert f"with obstore, which the image {named} must contain" in note.message
    [container] = made.manifests(UploadJobStep)[0]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == named or named.startswith("of the ")


def test_ranks_that_access_other_stores_need_the_library_in_the_jobs_image() -> None:
    made = planned(checkpoint={"folder": "az://bucket/saved"})
    assert not blockers(made)
    assert [note.code for note in made.notes if note.code.endswith("-obstore")] == ["ranks-obstore"]


def test_a_path_in_a_claim_and_a_stream_need_no_staging() -> None:
    sets = [{"name": "disk", "source": "/sets/digits"}, {**DIGITS, "via": "stream"}]
    made = planned(data=sets, volumes=[{"claim": "sets", "path": "/sets"}], facts=THERE)
    assert not blockers(made)
    assert made.every(StageStep) == []
    assert made.every(NodeStep)[0].spec.env["WINDLASS_DATA_DIGITS"] == "s3://bucket/digits/"


def test_dry_run_includes_transfer_pods_without_counting_them_against_quotas() -> None:
    made = planned(data=[DIGITS], outputs="s3://bucket/runs", kubernetes={**CLAIM, **RESULTS})
    found = {one.what: one.most for one in run_pods(made)}
    assert found["the pod of Job digits-7f3k2-data"] == found["the pod of Job digits-7f3k2-outputs"] == 0


def test_export_refuses_data_that_a_supervisor_stages() -> None:
    assert CODE is not None
    with pytest.raises(UsageError, match="data digits: a supervisor stages it"):
        manifests(planned(data=[DIGITS], kubernetes=CLAIM), CODE.data, 0.0)
    found = manifests(planned(outputs="s3://bucket/runs", kubernetes=RESULTS), CODE.data, 0.0)
    assert [note.code for note in found.notes] == ["written-outputs"]
    assert "digits-7f3k2-transfer" not in json.dumps(found.objects)


def test_every_object_of_a_plan_is_checked_on_import() -> None:
    made = planned(data=[DIGITS], outputs="s3://bucket/runs", kubernetes={**CLAIM, **RESULTS})
    unnamed = {step.kind for step in made.every(ManifestStep) if not step.names}
    assert unnamed == {"data-claim"}, "a claim that outlives its run has a name of its own"


def test_dry_run_covers_every_pod() -> None:
    made = planned(data=[DIGITS], outputs="s3://bucket/runs", kubernetes={**CLAIM, **RESULTS})
    jobs = {step.request["metadata"]["name"] for step in made.steps if step.kind.endswith("-job")}
    assert jobs == {f"digits-7f3k2-{name}" for name in ("data", "outputs", "outputs-check", "cp")}
    asked = {pods.what.rpartition(" ")[2] for pods in run_pods(made)}
    assert asked >= jobs
