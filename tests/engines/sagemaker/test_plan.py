"""The plan for SageMaker is pure: it contains the complete request, and blockers for unsupported settings."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.engines.sagemaker.planning import FACTS, plan_here, planned, problems, request

from windlass.actions.jobs import planned_job
from windlass.engines.sagemaker.instances import num_gpus
from windlass.engines.sagemaker.plan import plan
from windlass.engines.sagemaker.request import for_attempt
from windlass.errors import JobFileError
from windlass.plan.plan import Plan
from windlass.spec.job import Job
from windlass.spec.targets import SageMakerLocalTarget

GOLDEN = Path(__file__).with_name("golden")
VPC = {"subnets": ["subnet-1"], "security_groups": ["sg-1"], "kms_key": "alias/training", "encrypt_traffic": True}
TRAINING_PLAN = "arn:aws:sagemaker:us-east-1:123456789012:training-plan/p"
ISOLATED = {"network_isolation": True}
STREAMED = {"name": "text", "source": "s3://bucket/text/", "via": "stream"}
CASES: dict[str, dict[str, Any]] = {
    "efa": {"nodes": 2, "procs_per_node": "auto", "resources": {"instance": "ml.p4d.24xlarge"}, "timeout": "2h"},
    "spot": {"sagemaker": {"spot": True, "max_wait": "6h"}, "timeout": "2h", "restarts": 3},
    "warm-pool": {"sagemaker": {"warm_pool": "10min", "volume": "100GiB"}},
    "training-plan": {"sagemaker": {"training_plan": TRAINING_PLAN}},
    "vpc": {"target": VPC},
    "fast-file": {
        "data": [
            {"name": "coco", "source": "s3://bucket/coco/", "via": "mount"},
            {"name": "digits", "source": "s3://bucket/digits/"},
            {"name": "text", "source": "s3://bucket/text/", "via": "stream"},
        ],
        "progress": r"step (?P<step>\d+)/(\d+) loss (?P<loss>[\d.]+)",
    },
}


def blockers(made: Plan) -> dict[str, str]:
    return {note.code: note.message for note in made.notes if note.blocks}


@pytest.mark.parametrize("name", CASES)
def test_request_equals_golden_file_and_botocore_accepts_it(name: str) -> None:
    made = planned(**CASES[name])
    assert not blockers(made)
    assert problems(request(made)) == ""
    path = GOLDEN / f"{name}.json"
    assert request(made) == json.loads(path.read_text())


@pytest.mark.parametrize(
    ("instance", "fields", "warned"),
    [
        ("ml.m5.xlarge", {"nodes": 2}, True),
        ("ml.m5.xlarge", {"nodes": 2, "env": {"ACCELERATE_USE_CPU": "true"}}, False),
        ("ml.g5.xlarge", {"nodes": 2}, False),
        ("ml.p9.xlarge", {"nodes": 2}, False),
        ("ml.m5.xlarge", {}, False),
    ],
)
def test_accelerate_ranks_that_would_train_separately_on_cpu_are_noted(
    instance: str, fields: dict[str, Any], warned: bool
) -> None:
    made = planned(replace(FACTS, code=replace(FACTS.code, imports=("accelerate",))), {"instance": instance}, **fields)
    assert ("accelerate-alone" in {note.code for note in made.notes}) == warned
    assert "accelerate-alone" not in {note.code for note in planned(target={"instance": instance}, **fields).notes}


def test_the_same_inputs_give_the_same_plan_byte_for_byte() -> None:
    assert planned(nodes=2).to_text() == planned(nodes=2).to_text()
    assert Plan.from_json(json.loads(planned(nodes=2).to_text())) == planned(nodes=2)


def test_one_rank_is_started_for_each_gpu_of_instance_type() -> None:
    assert planned(**CASES["efa"]).world_size == 16


@pytest.mark.parametrize(
    ("kind", "gpus"),
    [
        ("ml.g5.xlarge", 1),
        ("ml.g5.48xlarge", 8),
        ("ml.p4d.24xlarge", 8),
        ("ml.g4dn.metal", 8),
        ("ml.m5.xlarge", 0),
        ("ml.p3.8xlarge", 4),
        ("ml.m99.xlarge", 0),
        ("ml.p9.xlarge", None),
        ("ml.trn1.2xlarge", None),
        ("ml.trn2u.48xlarge", None),
        ("local", None),
    ],
)
def test_gpu_counts_of_instance_types_are_known(kind: str, gpus: int | None) -> None:
    assert num_gpus(kind) == gpus


def test_each_metric_captures_only_its_own_group() -> None:
    [step, loss] = request(planned(**CASES["fast-file"]))["AlgorithmSpecification"]["MetricDefinitions"]
    line = "[3] step 7/90 loss 0.25"
    found = {one["Name"]: re.search(one["Regex"], line) for one in (step, loss)}
    assert {name: match and match.groups() for name, match in found.items()} == {"step": ("7",), "loss": ("0.25",)}


@pytest.mark.parametrize("pattern", [r"[(]a\)(?P<step>\d+)", r"(?:x|(y))(?P<step>\d+)", r"[]()](?P<step>\d+)"])
def test_brackets_without_capture_are_unchanged(pattern: str) -> None:
    [metric] = request(planned(progress=pattern))["AlgorithmSpecification"]["MetricDefinitions"]
    assert re.compile(metric["Regex"]).groups == 1


def test_later_attempt_is_another_job_with_remaining_time() -> None:
    first = request(planned(**CASES["spot"]))
    third = for_attempt(first, "digits-7f3k2", 3, 600.0)
    assert problems(third) == ""
    assert third["TrainingJobName"] == "digits-7f3k2-3"
    assert third["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"].endswith("/digits-7f3k2/attempt-3/")
    assert third["StoppingCondition"] == {"MaxRuntimeInSeconds": 600, "MaxWaitTimeInSeconds": 600 + 4 * 3600}
    assert {"Key": "windlass:attempt", "Value": "3"} in third["Tags"]
    assert third["CheckpointConfig"] == first["CheckpointConfig"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"facts": replace(FACTS, role="", role_problem=("no credentials", "log in"))}, "role-unknown"),
        ({"target": {"image": None}}, "image-missing"),
        ({"target": {"instance": None}}, "instance-missing"),
        ({"resources": {"instance": "g5.xlarge"}}, "instance-unknown"),
        ({"launcher": "mpi"}, "mpi"),
        ({"secrets": ["token"], "target": ISOLATED}, "secrets"),
        ({"data": [STREAMED], "target": ISOLATED}, "data-isolated"),
        ({"nodes": 2, "checkpoint": {"every": "10 steps"}, "target": ISOLATED}, "checkpoint-isolated"),
        ({"checkpoint": {"folder": "s3://bucket/saved/"}, "target": ISOLATED}, "checkpoint-isolated"),
        ({"procs_per_node": "auto", "resources": {"instance": "ml.p99.48xlarge"}}, "gpus-unknown"),
        ({"resources": {"gpus": 4}}, "gpus-few"),
        ({"resources": {"gpus": 1, "gpu_type": "T4"}}, "gpu-type-other"),
        ({"resources": {"cpus": 5}}, "cpus-few"),
        ({"resources": {"memory": "17GiB"}}, "memory-little"),
        ({"volumes": [{"claim": "c", "path": "/c"}]}, "volumes"),
        ({"outputs": "s3://bucket/out/"}, "outputs"),
        ({"python": ".venv/bin/python"}, "python-relative"),
        ({"data": [{"name": "d", "source": "data"}]}, "data-remote"),
        ({"data": [{"name": "d", "source": "gs://bucket/d"}]}, "data-unknown"),
        ({"data": [{"name": "d", "source": "https://example.com/d.tar"}]}, "data-unknown"),
        ({"data": [{"name": "windlass", "source": "s3://bucket/d"}]}, "data-name"),
        ({"data": [{"name": f"d{n}", "source": "s3://bucket/d"} for n in range(19)]}, "data-many"),
        ({"sagemaker": {"spot": True, "max_wait": "1h"}, "timeout": "2h"}, "max-wait-short"),
        ({"sagemaker": {"spot": True, "max_wait": "1h"}}, "max-wait-short"),
        ({"sagemaker": {"warm_pool": "7h"}}, "warm-pool-long"),
        ({"secrets": [f"a-secret-with-a-long-name-{n}" for n in range(20)]}, "secrets-many"),
    ],
)
def test_unsupported_settings_block_the_plan(fields: dict[str, Any], code: str) -> None:
    assert code in blockers(planned(**fields))


def test_instance_type_with_requested_resources_is_accepted() -> None:
    asked = {"gpus": 1, "gpu_type": "nvidia-A10G", "cpus": 4, "memory": "16GiB"}
    assert not blockers(planned(resources=asked))


@pytest.mark.parametrize(("source", "is_noted"), [("s3://bucket/digits", True), ("s3://bucket/digits/", False)])
def test_source_without_trailing_slash_is_noted_as_prefix(source: str, is_noted: bool) -> None:
    made = planned(data=[{"name": "digits", "source": source}])
    assert ("data-prefix" in {note.code for note in made.notes}) is is_noted


def test_fields_without_effect_are_noted() -> None:
    assert "shm-unused" in {note.code for note in planned(resources={"shm": "2GiB"}).notes}
    job = Job(name="digits", run="train.py", image="train:1", secrets=["tokens"])
    made = plan(job, SageMakerLocalTarget(name="here"), FACTS, "digits-7f3k2")
    notes = {note.code: note for note in made.notes}
    assert "image-unused" in notes
    assert "the login of this shell" in notes["secrets-role"].message


def test_files_that_local_hosts_would_not_find_block_the_plan(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "there").mkdir()
    data = [
        {"name": name, "source": source}
        for name, source in (
            ("a", "missing"),
            ("b", "there"),
            ("c", f"file://{tmp_path}/missing/"),
            ("d", "s3://bucket/missing/"),
        )
    ]
    job = Job(name="digits", run="train.py", data=data, python="./venv/bin/python")
    made = plan_here(job, tmp_path, tmp_path / "home", "digits-7f3k2")
    assert [note.message for note in made.notes if note.blocks] == [
        f"no interpreter at {tmp_path}/venv/bin/python",
        f"data a: {tmp_path}/missing does not exist",
        f"data c: {tmp_path}/missing does not exist",
    ]


def test_local_hosts_read_the_checked_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in ("job/sub", "job/digits", "more"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "job/sub/train.py").touch()
    data = [{"name": "digits", "source": "digits"}, {"name": "more", "source": "~/more"}]
    job = Job(name="digits", run="train.py", code=str(tmp_path / "job/sub"), data=data)
    made = plan_here(job, tmp_path / "job", tmp_path / "home", "digits-7f3k2")
    assert "data-missing" not in blockers(made)
    assert made.nodes.contract["WINDLASS_DATA_DIGITS"] == f"{tmp_path}/job/digits"
    assert made.nodes.contract["WINDLASS_DATA_MORE"] == f"{tmp_path}/more"
    assert planned_job(made, {}).base == tmp_path / "job"


def test_kubernetes_options_are_noted() -> None:
    notes = {note.code for note in planned(kubernetes={"via": "trainjob", "runtime": "torch"}).notes}
    assert {"via-unused", "runtime-unused"} <= notes
    assert "via-unused" not in {note.code for note in planned(kubernetes={"via": "auto"}).notes}


@pytest.mark.parametrize(
    ("procs", "instance", "is_noted"),
    [
        (2, "ml.g5.xlarge", True),
        (8, "ml.g5.12xlarge", True),
        (4, "ml.g5.12xlarge", False),
        (8, "ml.c5.xlarge", False),
        ("auto", "ml.g5.xlarge", False),
    ],
)
def test_more_ranks_than_gpus_are_noted(procs: int | str, instance: str, is_noted: bool) -> None:
    made = planned(procs_per_node=procs, resources={"instance": instance})
    assert ("gpus-shared" in {note.code for note in made.notes}) is is_noted


def test_an_instance_type_that_is_probably_misspelt_is_noted() -> None:
    [note] = [one for one in planned(resources={"instance": "ml.g5.xlrge"}).notes if one.code == "instance-unknown"]
    assert (note.fix, note.blocks) == ("did you mean g5.xlarge?", False)
    for kind in ("ml.g5.xlarge", "ml.p3.2xlarge"):
        assert "instance-unknown" not in {one.code for one in planned(resources={"instance": kind}).notes}


def test_note_on_hang_says_that_no_stacks_are_recorded() -> None:
    restarted, left = (
        {note.code: note.message for note in planned(hang="10min", restarts=times).notes} for times in (3, 0)
    )
    assert "600 s is stopped and restarted" in restarted["hang-stacks"]
    assert "600 s continues" in left["hang-stacks"]
    assert "hang-stacks" not in {note.code for made in (planned(), planned(hang=None)) for note in made.notes}


@pytest.mark.parametrize(
    ("storage", "source", "codes"),
    [
        (None, "file:///data", []),
        ("file:///store", "s3://bucket/d", []),
        ("s3://bucket/windlass/", "s3://bucket/d", []),
        ("/store", "s3://bucket/d", ["storage-unknown"]),
        ("gs://bucket/windlass/", "file://data", ["storage-unknown", "data-unknown"]),
    ],
)
def test_local_hosts_read_and_write_s3_and_folders(storage: str | None, source: str, codes: list[str]) -> None:
    job = Job(name="digits", run="train.py", data=[{"name": "d", "source": source}])
    made = plan(job, SageMakerLocalTarget(name="here", storage=storage), FACTS, "digits-7f3k2")
    assert list(blockers(made)) == codes


def test_other_stores_need_library_in_image_and_network() -> None:
    data = [{"name": "digits", "source": "az://bucket/digits/", "via": "stream"}]
    made = planned(data=data, checkpoint={"folder": "gs://bucket/saved"})
    assert not blockers(made)
    [note] = [one for one in made.notes if one.code == "ranks-obstore"]
    assert "az://bucket/digits/" in note.message
    assert {"data-isolated", "checkpoint-isolated"} <= set(
        blockers(planned(data=data, checkpoint={"folder": "gs://bucket/saved"}, target=ISOLATED))
    )


def test_network_isolation_allows_transfers_by_sagemaker() -> None:
    data = [{"name": "digits", "source": "s3://bucket/digits/"}]
    made = planned(data=data, checkpoint={"every": "10 steps"}, target=ISOLATED)
    assert not blockers(made)
    assert request(made)["EnableNetworkIsolation"] is True
    assert request(made)["CheckpointConfig"]["LocalPath"] == "/opt/ml/checkpoints"


@pytest.mark.parametrize("fields", [{"procs_per_node": 8}, {"procs_per_node": "auto", "resources": {"gpus": 8}}])
def test_unknown_instance_type_needs_procs_per_node(fields: dict[str, Any]) -> None:
    made = planned(target={"instance": "ml.p99.48xlarge"}, **fields)
    assert (blockers(made), made.procs_per_node) == ({}, 8)


def test_warm_pool_is_noted_as_billed() -> None:
    [note] = [one for one in planned(nodes=2, sagemaker={"warm_pool": "10min"}).notes if one.code == "warm-pool"]
    assert "2 instances are kept" in note.message
    assert "600 s" in note.message


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"spot": True, "warm_pool": "10min"}, "cannot be used with warm_pool"),
        ({"max_wait": "2h"}, "add spot: true"),
        ({"training_plan": "p"}, "is no ARN of a training plan"),
        ({"training_plan": TRAINING_PLAN, "spot": True}, "is reserved capacity"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(JobFileError, match=says):
        planned(sagemaker=options)
