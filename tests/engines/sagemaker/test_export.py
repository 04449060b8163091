"""A plan is exported as a request for other programs to send, and as an object of ACK: the same job, without a
supervisor.

ACK's own CRD is not part of these tests: `ack_training_job.schema.json` was written from the fields that it publishes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import boto3
import jsonschema
import pytest
from tests.engines.sagemaker.planning import BUCKET, CODE, ROLE, planned, problems
from tests.engines.sagemaker.planning import request as body_of
from tests.engines.sagemaker.test_plan import CASES
from tests.fakeaws.control_plane import ControlPlane
from tests.helpers.machine import Machine
from tests.helpers.until import until
from tests.servers.s3 import s3_server

from windlass.engines.sagemaker.engine import SageMakerLocalEngine
from windlass.engines.sagemaker.export import manifests, request
from windlass.errors import WindlassError
from windlass.plan.plan import Plan
from windlass.runs.context import here
from windlass.spec.yamltext import read_documents

SCHEMA = json.loads(Path(__file__).with_name("ack_training_job.schema.json").read_text())
TARGETS = f"""
aws:
  kind: sagemaker
  region: us-east-1
  role: {ROLE}
  storage: s3://{BUCKET}/windlass/
  image: train:1
  instance: ml.m5.xlarge
  python: {sys.executable}
"""
SCRIPT = """
import os
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
with open(os.path.join(os.environ["WINDLASS_OUTPUT_DIR"], f"rank-{os.environ['RANK']}"), "w") as file:
    file.write(os.environ["WORLD_SIZE"])
"""


def object_of(made: Plan) -> dict[str, Any]:
    [found] = manifests(made, CODE.data, 0.0).objects
    return dict(found)


def codes(notes: Any) -> set[str]:
    return {note.code for note in notes}


@pytest.mark.parametrize("name", CASES)
def test_exported_request_and_object_equal_that_of_plan(name: str) -> None:
    made = planned(**CASES[name])
    body, one = request(made, CODE.data, 0.0).body, object_of(made)
    assert body == body_of(made)
    assert problems(body) == ""
    jsonschema.validate(one, SCHEMA)
    spec = one["spec"]
    assert spec["resourceConfig"]["instanceType"] == body["ResourceConfig"]["InstanceType"]
    assert spec["environment"] == body["Environment"]
    assert [channel["dataSource"]["s3DataSource"]["s3URI"] for channel in spec["inputDataConfig"]] == [
        channel["DataSource"]["S3DataSource"]["S3Uri"] for channel in body["InputDataConfig"]
    ]


def test_object_lacks_only_fields_that_ack_lacks() -> None:
    made = planned(**CASES["vpc"])
    body, spec = body_of(made), object_of(made)["spec"]
    lost = {name for name in body if name.lower() not in {field.lower() for field in spec}}
    assert lost == {"ProfilerConfig"}
    algorithm = {name.lower() for name in spec["algorithmSpecification"]}
    missing = {name for name in body["AlgorithmSpecification"] if name.lower() not in algorithm}
    assert missing == {"ContainerEntrypoint"}
    assert "written-start" in codes(manifests(made, CODE.data, 0.0).notes)


def test_a_field_that_ack_does_not_have_is_refused_by_the_schema() -> None:
    one = object_of(planned())
    one["spec"]["algorithmSpecification"]["containerEntrypoint"] = ["python3"]
    with pytest.raises(jsonschema.ValidationError, match="containerEntrypoint"):
        jsonschema.validate(one, SCHEMA)


def test_notes_name_features_that_need_supervisor() -> None:
    assert codes(request(planned(restarts=3), CODE.data, 0.0).notes) == {"written-restarts", "written-model"}
    [note] = request(planned(), CODE.data, 0.0).notes
    assert (note.code, "find the job with --on aws alone" in note.message) == ("written-model", True)


def test_uploaded_files_are_those_of_the_request_channels() -> None:
    made = planned(nodes=2)
    found = request(made, CODE.data, 0.0)
    folders = {str(Path(f"{found.upload.address}{name}").parent) for name in found.upload.files}
    channels = [one["DataSource"]["S3DataSource"]["S3Uri"] for one in found.body["InputDataConfig"]]
    assert folders == {str(Path(address)) for address in channels}
    assert found.upload.files[f"code/{CODE.digest}/code.tar.gz"] == CODE.data


def test_a_target_on_this_machine_has_no_request_for_others() -> None:
    with pytest.raises(WindlassError, match="plan -o request"):
        SageMakerLocalEngine.export_request(planned(), here())


@pytest.mark.slow
def test_command_prints_request_and_manifest_and_writes_files_once(machine: Machine) -> None:
    machine.write("targets.yaml", TARGETS)
    machine.write("train.py", SCRIPT)
    words = ("plan", "train.py", "--on", "aws")
    done = machine.windlass(*words, "-o", "request", "--files", "up")
    assert done.returncode == 0, done.stderr
    assert problems(json.loads(done.stdout)) == ""
    assert f"aws s3 cp --recursive up s3://{BUCKET}/windlass/" in done.stderr
    assert len([path for path in (machine.folder / "up").rglob("*") if path.is_file()]) == 4
    again = machine.windlass(*words, "-o", "manifest", "--files", "up")
    assert again.returncode == 2
    assert "up exists and is not an empty folder" in again.stderr
    shown = machine.windlass(*words, "-o", "manifest")
    [document], _ = read_documents(shown.stdout, "manifest.yaml")
    jsonschema.validate(document, SCHEMA)
    assert "--files FOLDER" in shown.stderr


@pytest.mark.slow
def test_the_written_request_trains_once_its_files_are_in_the_store(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.write("targets.yaml", TARGETS)
    machine.write("train.py", SCRIPT)
    words = ("plan", "train.py", "--on", "aws", "--nodes", "2", "-o", "request", "--files", "up")
    body = json.loads(machine.windlass(*words).stdout)
    with s3_server(tmp_path / "s3") as server:
        store = server.client()
        store.create_bucket(Bucket=BUCKET)
        for path in (machine.folder / "up").rglob("*"):
            if path.is_file():
                key = f"windlass/{path.relative_to(machine.folder / 'up')}"
                store.put_object(Bucket=BUCKET, Key=key, Body=path.read_bytes())
        plane = ControlPlane(tmp_path / "plane", {**os.environ, **server.environ()})
        plane.start()
        try:
            for name, value in {**server.environ(), **plane.environ}.items():
                monkeypatch.setenv(name, value)
            client = boto3.client("sagemaker")
            client.create_training_job(**body)
            job = body["TrainingJobName"]

            def state() -> str:
                return str(client.describe_training_job(TrainingJobName=job)["TrainingJobStatus"])

            until(lambda: state() not in ("InProgress", "Stopping"), state)
            assert state() == "Completed", client.describe_training_job(TrainingJobName=job)
            key = f"{body['OutputDataConfig']['S3OutputPath']}/{job}/output/model.tar.gz"
            model = store.get_object(Bucket=BUCKET, Key=key.removeprefix(f"s3://{BUCKET}/"))["Body"].read()
        finally:
            plane.stop()
    (tmp_path / "model.tar.gz").write_bytes(model)
    listed = subprocess.run(["tar", "tzf", tmp_path / "model.tar.gz"], capture_output=True, text=True, check=True)
    assert {"rank-0", "rank-1"} <= {Path(name).name for name in listed.stdout.split()}
