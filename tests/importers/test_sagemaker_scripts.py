"""Scripts of SageMaker's SDK are read as syntax: literals become a job, the rest is listed, and nothing is run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.importers.shapes import fields

from windlass.errors import JobFileError
from windlass.importers.convert import Imported, import_text
from windlass.spec.parse import parse_targets

OLD = """
import sagemaker
from sagemaker.pytorch import PyTorch
TRAIN = "s3://bucket/train/"
common = {"epochs": 3, "lr": 0.1, "api_token": "abcdefgh12345neverinanylist"}
estimator = PyTorch(
    entry_point="train.py", source_dir="src/", role=sagemaker.get_execution_role(), instance_count=2,
    image_uri="123456789012.dkr.ecr.us-east-1.amazonaws.com/train:1", instance_type="ml.g5.xlarge",
    hyperparameters=common, distribution={"torch_distributed": {"enabled": True}}, use_spot_instances=True,
    max_run=3600, max_wait=7200, output_path="s3://bucket/out/", volume_size=100, environment={"NCCL_DEBUG": "INFO"},
    subnets=["subnet-1"], security_group_ids=["sg-1"], volume_kms_key="alias/training", brand_new=4,
)
estimator.fit({
    "train": TRAIN,
    "val": sagemaker.inputs.TrainingInput("s3://bucket/val/", input_mode="FastFile", distribution="ShardedByS3Key"),
    "other": f"s3://{bucket}/x",
}, wait=False)
"""
NEW = """
from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, InputData, SourceCode, StoppingCondition
from sagemaker.train.distributed import Torchrun
trainer = ModelTrainer(
    training_image="train:1", role="arn:aws:iam::123456789012:role/training", base_job_name="llama",
    source_code=SourceCode(source_dir=".", entry_script="train.py", requirements="requirements.txt"),
    compute=Compute(instance_type="ml.p4d.24xlarge", instance_count=2, keep_alive_period_in_seconds=600),
    stopping_condition=StoppingCondition(max_runtime_in_seconds=600), distributed=Torchrun(process_count_per_node=4),
    hyperparameters={"lr": 0.1}, tags=[Tag(key="team", value="vision")],
)
trainer.train(input_data_config=[InputData(channel_name="train", data_source="s3://bucket/train/")], wait=True)
"""


def read(text: str) -> Imported:
    return import_text(text, "launch.py")


def left_of(made: Imported) -> dict[str, str]:
    return {one.field: one.meaning for one in made.lost}


def target_of(made: Imported) -> dict[str, Any]:
    return parse_targets(made.target)["aws"].model_dump(mode="json", exclude_defaults=True)


def test_an_estimator_becomes_a_job_and_a_target() -> None:
    made = read(OLD)
    assert fields(made) == {
        "name": "job",
        "run": "train.py --epochs 3 --lr 0.1",
        "nodes": 2,
        "procs_per_node": "auto",
        "code": "src",
        "env": {"NCCL_DEBUG": "INFO"},
        "data": [
            {"name": "train", "source": "s3://bucket/train/"},
            {"name": "val", "source": "s3://bucket/val/", "via": "mount"},
        ],
        "timeout": 3600,
        "sagemaker": {"spot": True, "max_wait": 7200},
    }
    assert target_of(made) == {
        "name": "aws",
        "region": "REGION",
        "role": "ROLE",
        "storage": "s3://bucket/out/",
        "image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/train:1",
        "instance": "ml.g5.xlarge",
        "volume": 100 << 30,
        "subnets": ["subnet-1"],
        "security_groups": ["sg-1"],
        "kms_key": "alias/training",
    }


def test_what_a_literal_does_not_say_is_listed_with_its_line_and_no_secret_is() -> None:
    made = read(OLD)
    left = left_of(made)
    assert left.keys() == {
        "PyTorch.role",
        "role",
        "region",
        "PyTorch.hyperparameters.api_token",
        "PyTorch.brand_new",
        "fit.inputs.other",
        "fit.inputs.val.distribution",
    }
    assert left["PyTorch.role"] == "get_execution_role(…) is not run, so its value is not known"
    assert "neverinanylist" not in made.text + made.target + repr(made.left)
    lines = OLD.splitlines()
    [role] = [one for one in made.left if one.field == "PyTorch.role"]
    assert "role=" in lines[role.line - 1]


def test_a_model_trainer_becomes_a_job_and_a_target() -> None:
    made = read(NEW)
    job = fields(made)
    assert (job["name"], job["run"], job["nodes"], job["procs_per_node"]) == ("llama", "train.py --lr 0.1", 2, 4)
    assert (job["timeout"], job["sagemaker"]) == (600, {"warm_pool": 600})
    assert job["data"] == [{"name": "train", "source": "s3://bucket/train/"}]
    assert target_of(made)["tags"] == {"team": "vision"}
    assert job["setup"] == "pip install -r requirements.txt"
    assert left_of(made).keys() == {"region", "storage"}


def test_packages_of_a_model_trainer_are_installed_before_the_rest_of_its_setup() -> None:
    start = 'entry_script="train.py"'
    made = read(NEW.replace(start, 'command="pip install x && torchrun --nproc-per-node 4 train.py"'))
    assert fields(made)["setup"] == "pip install -r requirements.txt || exit\n(pip install x) || exit\n"


def test_nothing_of_a_script_is_run(tmp_path: Path) -> None:
    made = tmp_path / "made"
    read(f"open({str(made)!r}, 'w')\n" + OLD.replace("brand_new=4", f"brand_new=open({str(made)!r}, 'w')"))
    assert not made.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "makes no training job"),
        ("def (:", "cannot be read as Python"),
        ("a\0b", "cannot be read as Python"),
        (OLD + OLD, r"makes 2 training jobs \(line"),
        ("PyTorch(role='a')", "no literal names the script"),
        ("PyTorch(entry_point=name)", "no literal names the script"),
        (
            "\n".join(f"a{at + 1} = [{', '.join([f'a{at}'] * 10)}]" for at in range(12)) + "\nPyTorch(tags=a12)",
            "more than 10000 values",
        ),
        ("x = " + "-" * 100_000 + "1\nPyTorch(volume_size=x)", "cannot be read as Python"),
    ],
)
def test_what_makes_no_job_is_refused(text: str, message: str) -> None:
    begun = time.process_time()
    with pytest.raises(JobFileError, match=message):
        read(text)
    assert time.process_time() - begun < 20


def test_names_that_stand_for_themselves_are_expressions() -> None:
    made = read("a = [b]\nb = [a]\nPyTorch(entry_point='train.py', tags=a)")
    assert any("is not run" in meaning for meaning in left_of(made).values())
