"""Example S3: CIFAR-10 from its archive to a bucket, and by a training job of two hosts to a model."""

from __future__ import annotations

import importlib.util
import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import jsonschema
import pytest
import torch
from tests.engines.sagemaker.planning import BUCKET, CODE, FACTS, FIELDS, problems, request
from tests.engines.sagemaker.test_export import SCHEMA
from tests.examples import tiny_sets
from tests.examples.prepare import script_of
from tests.helpers.machine import Machine
from tests.servers.http_files import file_host
from tests.servers.s3 import S3Server, s3_server

from windlass.engines.sagemaker.export import manifests
from windlass.engines.sagemaker.plan import plan
from windlass.spec.parse import parse_job
from windlass.spec.targets import SageMakerTarget
from windlass.train.checkpoint.export import read_tensors

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/systems/s3-cifar10"
SET = f"s3://{BUCKET}/datasets/cifar10-dataset/"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """train.py, imported."""
    spec = importlib.util.spec_from_file_location("example_s3", EXAMPLE / "train.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_job_is_a_request_and_an_object_of_ack_for_a_pipeline() -> None:
    path = EXAMPLE / "job.yaml"
    made = plan(parse_job(path.read_text(), str(path)), SageMakerTarget(**FIELDS), FACTS, "cifar10-7f3k2")
    assert not [note for note in made.notes if note.blocks]
    assert problems(request(made)) == ""
    [one] = manifests(made, CODE.data, 0.0).objects
    jsonschema.validate(one, SCHEMA)
    assert one["spec"]["resourceConfig"]["instanceCount"] == 2


def test_a_pickle_that_calls_a_function_is_no_batch(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / script.FOLDER).mkdir()
    (tmp_path / script.FOLDER / "test_batch").write_bytes(pickle.dumps(os.getcwd))
    with pytest.raises(pickle.UnpicklingError, match=r"getcwd does not belong into a batch"):
        script.load(tmp_path, ("test_batch",))


def loss_of(network: torch.nn.Module, data: Path, script: ModuleType) -> float:
    """Mean loss of the training images."""
    images, labels = script.load(data, script.TRAINING).tensors
    with torch.no_grad():
        return float(torch.nn.functional.cross_entropy(network(images), labels))


@pytest.fixture
def server(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with s3_server(machine.folder.parent / "s3") as made:
        made.client().create_bucket(Bucket=BUCKET)
        for name, value in made.environ().items():
            monkeypatch.setenv(name, value)
        yield made


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_goes_from_the_archive_to_a_bucket_and_by_two_hosts_to_a_model(
    machine: Machine, server: S3Server, script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = machine.folder.parent / "set"
    shutil.copytree(EXAMPLE, machine.folder, dirs_exist_ok=True)
    archives = tiny_sets.cifar10()
    monkeypatch.setenv("WINDLASS_HOME", str(machine.home))
    with file_host(archives) as host:
        words = ["--archives", str(machine.folder.parent / "archives"), "--folder", str(prepared), "--to", SET]
        script_of("s3-cifar10", archives).main(["--url", f"{host.address}/cifar-10-python.tar.gz", *words])
    machine.write("targets.yaml", f"here: {{kind: sagemaker-local, storage: 's3://{BUCKET}/windlass/'}}\n")
    job = machine.folder / "job.yaml"
    job.write_text(job.read_text().replace("s3://bucket/datasets/cifar10-dataset/", SET))

    settings = ("--set", "run=train.py --epochs 30 --batch 7 --lr 0.05")
    done = machine.windlass("run", str(job), "--on", "here", *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "(world size 2)" in done.stdout
    status = machine.status()
    home = Path(status["output_dir"])
    network = script.make_network()
    network.load_state_dict(read_tensors(str(home / "model.safetensors")))
    assert (home / "code/inference.py").read_bytes() == (EXAMPLE / "train.py").read_bytes()
    stored = {one["Key"] for one in server.client().list_objects_v2(Bucket=BUCKET, Prefix="windlass/")["Contents"]}
    assert f"windlass/runs/{status['id']}/output/{status['id']}-1/output/model.tar.gz" in stored
    torch.manual_seed(0)
    assert loss_of(network, prepared, script) < loss_of(script.make_network(), prepared, script) / 2
