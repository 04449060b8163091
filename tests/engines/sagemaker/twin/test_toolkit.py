"""AWS's own training toolkit, unchanged, runs in hosts of the twin as in containers of SageMaker."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from pathlib import Path

import pytest
from tests.engines.sagemaker.twin.conftest import GRACE_SECONDS
from tests.engines.sagemaker.twin.jobs import ROLE, ended, output

from windlass.engines.sagemaker.twin.service import Twin

ROOT = Path(__file__).parents[4]
ENVIRONMENT = ROOT / ".cache/sagemaker-env"
GROUP = "homogeneousCluster"
PATIENCE_SECONDS = 600.0
"""Each host imports torch and the toolkit: 40 s of two busy cores."""
DOCUMENTED = {
    "SM_CHANNELS", "SM_CHANNEL_CODE", "SM_CURRENT_HOST", "SM_CURRENT_INSTANCE_TYPE", "SM_HOSTS", "SM_HPS", "SM_HP_LR",
    "SM_INPUT_DIR", "SM_INPUT_CONFIG_DIR", "SM_INPUT_DATA_CONFIG", "SM_LOG_LEVEL", "SM_MODEL_DIR",
    "SM_NETWORK_INTERFACE_NAME", "SM_NUM_CPUS", "SM_NUM_GPUS", "SM_OUTPUT_DIR", "SM_OUTPUT_DATA_DIR",
    "SM_RESOURCE_CONFIG", "SM_TRAINING_ENV",
}  # fmt: skip
SCRIPT = textwrap.dedent(
    """
    import json, os, sys
    import torch, torch.distributed as dist
    if os.environ["SM_HP_FAIL"] == "yes":
        raise ValueError("the script has failed")
    dist.init_process_group("gloo")
    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total)
    found = {name: value for name, value in os.environ.items() if name.startswith("SM_")}
    with open(os.environ["SM_MODEL_DIR"] + "/rank-%d.json" % dist.get_rank(), "w") as file:
        json.dump({"sum": total.item(), "size": dist.get_world_size(), "variables": found}, file)
    dist.destroy_process_group()
    """
)


@pytest.fixture(scope="module")
def toolkit() -> Path:
    subprocess.run(["bash", str(ROOT / "tools/sagemaker-env.sh")], check=True, timeout=PATIENCE_SECONDS)
    return ENVIRONMENT


def job(home: Path, name: str, count: int, *, fail: str = "no") -> dict[str, object]:
    """A job as the SDK of SageMaker makes it for PyTorch: values of hyperparameters are JSON."""
    (home / "code").mkdir()
    (home / "code/train.py").write_text(SCRIPT)
    hyperparameters = {
        "sagemaker_program": "train.py", "sagemaker_submit_directory": "/opt/ml/input/data/code",
        "sagemaker_torch_distributed_enabled": True, "sagemaker_distribution_instance_groups": [GROUP],
        "sagemaker_instance_type": "ml.c5.xlarge", "lr": 0.1, "fail": fail,
    }  # fmt: skip
    source = {"S3DataType": "S3Prefix", "S3Uri": f"file://{home}/code"}
    return {
        "TrainingJobName": name,
        "RoleArn": ROLE,
        "AlgorithmSpecification": {"TrainingImage": "pytorch-training", "TrainingInputMode": "File"},
        "HyperParameters": {key: json.dumps(value) for key, value in hyperparameters.items()},
        "Environment": {
            "SAGEMAKER_TRAINING_MODULE": "sagemaker_pytorch_container.training:main", "GLOO_SOCKET_IFNAME": "lo",
        },
        "InputDataConfig": [{"ChannelName": "code", "DataSource": {"S3DataSource": source}}],
        "OutputDataConfig": {"S3OutputPath": f"file://{home}/store", "CompressionType": "NONE"},
        "ResourceConfig": {"InstanceType": "ml.c5.xlarge", "InstanceCount": count, "VolumeSizeInGB": 1},
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
    }  # fmt: skip


def twin_of(home: Path, toolkit: Path) -> Twin:
    if os.geteuid():
        pytest.skip("needs root")  # the code is at /opt/ml, as the hyperparameters say
    return Twin(home, os.environ, grace_seconds=GRACE_SECONDS, python=str(toolkit / "bin/python"))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("count", [1, 2])
def test_the_toolkit_gives_a_script_its_ranks_and_variables(home: Path, toolkit: Path, count: int) -> None:
    twin = twin_of(home, toolkit)
    twin.create(job(home, "aws", count))
    found = ended(twin, "aws", PATIENCE_SECONDS)
    assert found["TrainingJobStatus"] == "Completed", (found, output(twin, "aws"))
    ranks = [json.loads((home / f"store/aws/output/model/rank-{rank}.json").read_text()) for rank in range(count)]
    assert [(one["sum"], one["size"]) for one in ranks] == [(count * (count + 1) / 2, count)] * count
    hosts = [f"algo-{at + 1}" for at in range(count)]
    for rank, one in enumerate(ranks):
        variables = one["variables"]
        assert set(variables) >= DOCUMENTED
        assert json.loads(variables["SM_HOSTS"]) == hosts
        assert variables["SM_CURRENT_HOST"] == hosts[rank]
        assert (variables["SM_MODEL_DIR"], variables["SM_CHANNEL_CODE"]) == ("/opt/ml/model", "/opt/ml/input/data/code")
        assert variables["SM_HP_LR"] == "0.1"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_error_of_a_script_is_the_failure_reason_of_the_job(home: Path, toolkit: Path) -> None:
    twin = twin_of(home, toolkit)
    twin.create(job(home, "error", 1, fail="yes"))
    found = ended(twin, "error", PATIENCE_SECONDS)
    assert found["TrainingJobStatus"] == "Failed"
    assert found["FailureReason"].startswith("AlgorithmError: ")
    assert "the script has failed" in found["FailureReason"], found["FailureReason"]
