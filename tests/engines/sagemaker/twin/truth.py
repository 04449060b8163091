"""Runs one script for SageMaker with AWS's toolkit, the drivers of the SDK's third version, and Windlass's worker.

AWS's programs are unchanged: `tools/sagemaker-env.sh` installs them, and they are started as the SDKs do.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import tarfile
import textwrap
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.engines.harness import Harness
from tests.engines.sagemaker.planning import HERE
from tests.engines.sagemaker.twin.conftest import GRACE_SECONDS
from tests.engines.sagemaker.twin.jobs import ROLE, ended, output
from tests.helpers.golang import locked
from tests.helpers.ports import quiet_port

from windlass.engines.sagemaker.twin.service import Twin

GROUP = "homogeneousCluster"
PATIENCE_SECONDS = 600.0
"""Time limit in seconds. Each host imports torch and the toolkit, which takes 40 s on two busy cores."""
INSTANCE = "ml.c5.xlarge"
HYPERPARAMETERS: Mapping[str, Any] = {"lr": 0.1, "layers": [16, 8], "title": "a b", "batch-size": 32}
SCRIPT = textwrap.dedent(
    """
    import argparse, json, os

    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float)
    parser.add_argument("--layers", type=json.loads)
    parser.add_argument("--title")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--fail", default="")
    parser.add_argument("--train", default=os.environ["SM_CHANNEL_TRAIN"])
    args = parser.parse_args()
    if args.fail:
        raise ValueError("the script has failed: " + args.fail)
    rank, size, total = int(os.environ.get("RANK", "0")), 1, 1.0
    if "RANK" in os.environ:
        import torch, torch.distributed as dist

        dist.init_process_group("gloo")
        rank, size = dist.get_rank(), dist.get_world_size()
        tensor = torch.tensor([rank + 1.0])
        dist.all_reduce(tensor)
        total = tensor.item()
        dist.destroy_process_group()
    found = {
        "rank": rank, "local_rank": int(os.environ.get("LOCAL_RANK", "0")), "size": size, "sum": total,
        "args": vars(args), "data": open(os.path.join(args.train, "data.csv")).read(),
        "hps": json.loads(os.environ["SM_HPS"]), "hosts": json.loads(os.environ["SM_HOSTS"]),
        "host": os.environ["SM_CURRENT_HOST"], "gpus": int(os.environ["SM_NUM_GPUS"]),
        "variables": {name: value for name, value in os.environ.items() if name.startswith("SM_")},
        "socket": os.environ.get("NCCL_SOCKET_IFNAME"),
    }
    name = "%s-%d.json" % (found["host"], found["local_rank"])
    with open(os.path.join(os.environ["SM_MODEL_DIR"], name), "w") as file:
        json.dump(found, file)
    """
)
Ranks = list[dict[str, Any]]
"""Observations of the script, by rank."""


@dataclass(frozen=True)
class Home:
    """A folder with the script, its data and the results of jobs."""

    path: Path

    def __post_init__(self) -> None:
        for name in ("code", "data"):
            (self.path / name).mkdir(parents=True, exist_ok=True)
        (self.path / "code/train.py").write_text(SCRIPT)
        (self.path / "data/data.csv").write_text("1,2\n")

    def model(self, name: str) -> Ranks:
        """Returns the observations in the model of an emulated job, by rank."""
        with tarfile.open(self.path / f"store/{name}/output/model.tar.gz") as tar:
            tar.extractall(self.path / f"models/{name}", filter="data")
        return ranks_in(self.path / f"models/{name}")


def ranks_in(model: Path) -> Ranks:
    """Returns the observations that ranks have written to a model folder, by rank."""
    return sorted((json.loads(path.read_text()) for path in model.glob("*.json")), key=lambda one: one["rank"])


def by_toolkit(home: Home, environment: Path, hosts: int, **hyperparameters: str) -> dict[str, Any]:
    """Returns the request of a job as the SDK's second version makes it for PyTorch: values of hyperparameters are
    JSON.
    """
    own = {
        "sagemaker_program": "train.py",
        "sagemaker_submit_directory": "/opt/ml/input/data/code",
        "sagemaker_torch_distributed_enabled": True,
        "sagemaker_distribution_instance_groups": [GROUP],
        "sagemaker_instance_type": INSTANCE,
    }
    given = {**own, **HYPERPARAMETERS, **hyperparameters}
    return {
        **_request(home, "toolkit", hosts),
        "AlgorithmSpecification": {"TrainingImage": "pytorch-training", "TrainingInputMode": "File"},
        "HyperParameters": {key: json.dumps(value) for key, value in given.items()},
        "Environment": {"SAGEMAKER_TRAINING_MODULE": "sagemaker_pytorch_container.training:main", **_network()},
    }


def by_drivers(
    home: Home, environment: Path, hosts: int, *, distributed: Mapping[str, Any] | None = None, **hyperparameters: str
) -> dict[str, Any]:
    """Returns the request of a job as `ModelTrainer` of the SDK's third version makes it.

    Its channel `sm_drivers` has the layout of the SDK's code, and the program in it is made from the SDK's templates.
    """
    package = next((environment / "lib").glob("python3*/site-packages/sagemaker/train"))
    templates = _module(package / "templates.py")
    folder = home.path / "sm_drivers"
    shutil.copytree(package / "container_drivers", folder, dirs_exist_ok=True)
    driver = templates.EXECUTE_BASIC_SCRIPT_DRIVER
    if distributed:
        driver = templates.EXEUCTE_DISTRIBUTED_DRIVER.format(driver_name="Torchrun", driver_script="torchrun_driver.py")
    program = templates.TRAIN_SCRIPT_TEMPLATE.format(
        working_dir="cd /opt/ml/input/data/code \n", install_requirements="", execute_driver=driver
    )
    (folder / "sm_train.sh").write_text(program)
    (folder / "sourcecode.json").write_text(json.dumps({"source_dir": "code", "entry_script": "train.py"}))
    (folder / "distributed.json").write_text(json.dumps(distributed or {}))
    constants = _module(package / "constants.py")
    request = _request(home, "drivers", hosts)
    given = {**HYPERPARAMETERS, **hyperparameters}
    return {
        **request,
        "AlgorithmSpecification": {
            "TrainingImage": "pytorch-training",
            "TrainingInputMode": "File",
            "ContainerEntrypoint": constants.DEFAULT_CONTAINER_ENTRYPOINT,
            "ContainerArguments": constants.DEFAULT_CONTAINER_ARGUMENTS,
        },
        "HyperParameters": {
            key: value if isinstance(value, str) else json.dumps(value) for key, value in given.items()
        },
        "Environment": _network(),
        "InputDataConfig": [*request["InputDataConfig"], _channel("sm_drivers", folder)],
    }


def run_twin(home: Home, environment: Path, request: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """Runs a job and returns its description and all output of its hosts.

    Jobs run one after the other: their hosts share the network of this machine, and AWS's programs use a fixed port.
    """
    python = str(environment / "bin/python")
    twin = Twin(home.path, os.environ, grace_seconds=GRACE_SECONDS, python=python)
    name = request["TrainingJobName"]
    with locked(environment.with_name(f"{environment.name}.ports")):
        twin.create(request)
        return ended(twin, name, PATIENCE_SECONDS), output(twin, name)


def run_worker(home: Home, hosts: int, procs: int) -> Ranks:
    """Runs the script as a job of Windlass on the target `sagemaker-local`, and returns its observations by rank."""
    way = replace(HERE, patience_seconds=PATIENCE_SECONDS)
    with closing(Harness(way, home.path / "worker")) as harness:
        words = [word for name, value in HYPERPARAMETERS.items() for word in (f"--{name}", _text(value))]
        run = harness.start(
            "train.py",
            *words,
            base=home.path / "code",
            nodes=hosts,
            procs_per_node=procs,
            resources={"instance": INSTANCE},
            data=[{"name": "train", "source": f"file://{home.path}/data"}],
        )
        return ranks_in(Path(run.succeeded().status.output_dir))


def _request(home: Home, name: str, hosts: int) -> dict[str, Any]:
    return {
        "TrainingJobName": name,
        "RoleArn": ROLE,
        "InputDataConfig": [_channel("code", home.path / "code"), _channel("train", home.path / "data")],
        "OutputDataConfig": {"S3OutputPath": f"file://{home.path}/store"},
        "ResourceConfig": {"InstanceType": INSTANCE, "InstanceCount": hosts, "VolumeSizeInGB": 1},
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
    }


def _network() -> dict[str, str]:
    """Returns variables for the rendezvous on this machine; the port is free, and torchrun uses it on one host."""
    return {"GLOO_SOCKET_IFNAME": "lo", "PET_MASTER_PORT": str(quiet_port())}


def _channel(name: str, folder: Path) -> dict[str, Any]:
    source = {"S3DataType": "S3Prefix", "S3Uri": f"file://{folder}", "S3DataDistributionType": "FullyReplicated"}
    return {"ChannelName": name, "DataSource": {"S3DataSource": source}}


def _module(path: Path) -> ModuleType:
    """Imports a file of the SDK on its own, because its package imports modules that training does not need."""
    spec = importlib.util.spec_from_file_location(f"sdk_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
