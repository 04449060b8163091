"""The start program of a host chooses its node, and sets the variables that scripts for SageMaker expect."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import windlass.worker
from windlass.runs import node_events
from windlass.worker.protocol import WorkerFailed

PROGRAM = Path(windlass.worker.__file__).with_name("sagemaker_start.py")
RESOURCES: dict[str, Any] = {
    "current_host": "algo-10",
    "hosts": [f"algo-{n}" for n in (10, 1, 2)],
    "current_instance_type": "ml.p4d.24xlarge",
    "current_group_name": "homogeneousCluster",
    "network_interface_name": "eth1",
    "instance_groups": [{"instance_group_name": "homogeneousCluster", "instance_type": "ml.p4d.24xlarge"}],
}
BOTH = {
    f"SM_{name}"
    for name in (
        "CHANNELS", "CURRENT_HOST", "CURRENT_INSTANCE_TYPE", "HOSTS", "HPS", "INPUT_DIR", "INPUT_CONFIG_DIR",
        "INPUT_DATA_CONFIG", "LOG_LEVEL", "MODEL_DIR", "NETWORK_INTERFACE_NAME", "NUM_CPUS", "NUM_GPUS", "NUM_NEURONS",
        "OUTPUT_DIR", "OUTPUT_DATA_DIR", "RESOURCE_CONFIG", "TRAINING_ENV",
    )
}  # fmt: skip
"""Variables that both the toolkit and the drivers of the SDK set."""
TOO_OLD = next((str(one) for one in Path.home().glob(".pyenv/versions/3.[678].*/bin/python3")), None)
HOSTS = ["algo-1", "algo-2", "algo-10"]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Returns the start program as a module, from the channel of a host without mounts."""
    channel = tmp_path / "algo-1" / "ml" / "input" / "data" / "windlass"
    channel.mkdir(parents=True)
    for name in ("sagemaker_start.py", "boot.py"):
        (channel / name).write_bytes(PROGRAM.with_name(name).read_bytes())
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location("sagemaker_start", channel / "sagemaker_start.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.delitem(sys.modules, "boot")
    return module


def test_hosts_are_numbered_from_one(start: ModuleType) -> None:
    assert sorted(RESOURCES["hosts"], key=start._number) == HOSTS


def test_scripts_get_variables_of_toolkit(start: ModuleType) -> None:
    inputs = {"digits": {"TrainingInputMode": "File"}, "windlass": {}, "windlass-code": {}}
    found = start.variables(
        RESOURCES, {"lr": "0.1", "name": "a b", "layer-sizes": "[1, 2]"}, inputs, HOSTS, ["train.py", "-v"]
    )
    base = start.BASE
    expected = {
        "SM_HOSTS": '["algo-1", "algo-2", "algo-10"]',
        "SM_CURRENT_HOST": "algo-10",
        "SM_CHANNELS": '["digits"]',
        "SM_CHANNEL_DIGITS": f"{base}/input/data/digits",
        "SM_MODEL_DIR": f"{base}/model",
        "SM_HP_LR": "0.1",
        "SM_HP_NAME": "a b",
        "SM_HP_LAYER_SIZES": "[1, 2]",
        "SM_HPS": '{"layer-sizes": [1, 2], "lr": 0.1, "name": "a b"}',
        "SM_HOST_COUNT": "3",
        "SM_CURRENT_HOST_RANK": "2",
        "SM_MASTER_ADDR": "algo-1",
        "SM_NETWORK_INTERFACE_NAME": "eth1",
        "SM_USER_ENTRY_POINT": "train.py",
        "SM_USER_ARGS": '["-v"]',
        "SM_MODULE_NAME": "train",
        "SM_OUTPUT_DATA_DIR": f"{base}/output/data",
        "SM_CURRENT_INSTANCE_TYPE": "ml.p4d.24xlarge",
    }
    assert {name: found.get(name) for name in expected} == expected
    assert found.keys() >= BOTH
    assert all(isinstance(value, str) for value in found.values())


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("--lr 0.1 --layers=[1] -n -3", {"lr": "0.1", "layers": "[1]", "n": "-3"}),
        ("data.csv --resume --name a=b rest", {"resume": "true", "name": "a=b"}),
        ("--empty= --last", {"empty": "", "last": "true"}),
        ("", {}),
    ],
)
def test_arguments_of_the_script_are_its_hyperparameters(start: ModuleType, words: str, found: dict[str, str]) -> None:
    assert start.arguments(words.split()) == found


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["python3", "/opt/ml/windlass/travel/windlass/worker/rank.py", "train.py", "--lr", "1"], "train.py --lr 1"),
        (["python3", "/opt/ml/windlass/travel/windlass/worker/rank.py", "-m", "pkg.train", "-v"], "pkg.train -v"),
        (["./train", "--lr", "1"], "./train --lr 1"),
    ],
)
def test_the_script_is_read_from_the_specs_of_the_nodes(
    start: ModuleType, tmp_path: Path, argv: list[str], words: str
) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_bytes(gzip.compress(json.dumps({"nodes": {"1": {"ranks": [{"argv": argv}]}}}).encode()))
    assert start.script(start._ranks(str(nodes), "1")) == words.split()


@pytest.mark.parametrize(
    ("kind", "variables"),
    [
        ("ml.p4d.24xlarge", {"FI_PROVIDER", "RDMAV_FORK_SAFE", "FI_EFA_USE_DEVICE_RDMA"}),
        ("ml.g5.48xlarge", {"FI_PROVIDER", "RDMAV_FORK_SAFE"}),
        ("ml.g5.xlarge", set()),
        ("ml.m5.xlarge", set()),
        ("ml.local", set()),
    ],
)
def test_efa_is_used_if_instance_type_has_it(start: ModuleType, kind: str, variables: set[str]) -> None:
    found = start.network({**RESOURCES, "current_instance_type": kind})
    assert found.keys() - {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"} == variables
    assert found["NCCL_SOCKET_IFNAME"] == "eth1"


def test_specs_get_the_folders_and_names_of_the_host(start: ModuleType, tmp_path: Path) -> None:
    source, target = tmp_path / "nodes", tmp_path / "placed"
    spec = {
        "env": {"MASTER_ADDR": "algo-1", "OUT": "/opt/ml/model"},
        "cwd": "/opt/ml/windlass/code",
        "keep": "/opt/mlx",
    }
    source.write_bytes(gzip.compress(json.dumps(spec).encode()))
    start._place_nodes(str(source), str(target), ["127.0.0.2", "127.0.0.3"])
    assert json.loads(gzip.decompress(target.read_bytes())) == {
        "env": {"MASTER_ADDR": "127.0.0.2", "OUT": f"{start.BASE}/model"},
        "cwd": f"{start.BASE}/windlass/code",
        "keep": "/opt/mlx",
    }


def failed_start(channel: Path, python: str, **env: str) -> tuple[str, str]:
    """Returns the message of the last event of a host that cannot start, and the text that SageMaker shows."""
    ml = channel.parents[2]
    (ml / "output").mkdir()
    begun = time.time()
    environ = {"PATH": os.environ["PATH"], **env}
    done = subprocess.run([python, "-I", "-S", channel / PROGRAM.name], capture_output=True, text=True, env=environ)
    assert done.returncode == 1, done
    *others, last = done.stdout.splitlines()
    assert others[0].startswith("[w] this host cannot start: "), done
    found = node_events.EventDeduplicator().take(last.removeprefix("[n] ").encode())
    assert isinstance(found, WorkerFailed), done
    assert found.at >= begun
    return found.message, (ml / "output" / "failure").read_text()


def test_host_that_cannot_start_reports_reason_in_last_event(start: ModuleType) -> None:
    channel = Path(start.HERE)
    (channel.parents[1] / "config").mkdir()
    config = channel.parents[1] / "config" / "resourceconfig.json"
    config.write_text(json.dumps({"hosts": ["algo-1"], "current_host": "algo-1"}))
    archive = channel.parent / "windlass-code" / "code.tar.gz"
    message, shown = failed_start(channel, sys.executable, WINDLASS_CODE_DIGEST="ab" * 32)
    assert message == shown == f"FileNotFoundError: [Errno 2] No such file or directory: '{archive}'"


@pytest.mark.skipif(TOO_OLD is None, reason="no Python from 3.6 to 3.8 is kept by pyenv")
def test_host_with_too_old_python_reports_it(start: ModuleType) -> None:
    assert TOO_OLD is not None
    message, shown = failed_start(Path(start.HERE), TOO_OLD, WINDLASS_CODE_DIGEST="ab" * 32)
    assert message == shown
    assert message.startswith(f"Windlass needs Python 3.9 or newer, and {TOO_OLD} of the image is 3.")
