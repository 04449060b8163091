"""AWS's programs for SageMaker containers run unchanged in emulated hosts, and scripts for them run as jobs of
Windlass.

The toolkit, the drivers of the SDK's third version and Windlass's worker run the same script, which must observe the
same variables in each.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.engines.sagemaker.twin.truth import (
    HYPERPARAMETERS,
    PATIENCE_SECONDS,
    Home,
    Ranks,
    by_drivers,
    by_toolkit,
    run_twin,
    run_worker,
)
from tests.helpers.once import once

ROOT = Path(__file__).parents[4]
ENVIRONMENT = ROOT / ".cache/sagemaker-env"
TOOLKIT, DRIVERS, WORKER = "toolkit", "drivers", "worker"
PROCS = {TOOLKIT: 1, DRIVERS: 2, WORKER: 2}
"""Ranks per host. The toolkit starts one for each GPU, and one without GPUs."""
OWN = {
    # Channels in which the SDKs send code and drivers; scripts do not see Windlass's channels.
    "SM_CHANNEL_CODE",
    "SM_CHANNEL_SM_DRIVERS",
    # Settings of the SDKs for AWS's launchers.
    "SM_DISTRIBUTED_CONFIG",
    "SM_DISTRIBUTED_DRIVER_DIR",
    "SM_DISTRIBUTION_INSTANCE_GROUPS",
    "SM_FRAMEWORK_MODULE",
    "SM_FRAMEWORK_PARAMS",
    # Variables of AWS's images.
    "SM_DLC_TORCH_VERSION",
}
"""Variables that Windlass's worker does not set."""
PLACES = {"SM_MODULE_DIR", "SM_SOURCE_DIR"}
"""Variables with the location of the code: Windlass unpacks it from an archive, outside its channel."""
TRAINING_ENV = {
    "channel_input_dirs", "current_host", "current_instance_type", "hosts", "hyperparameters", "input_config_dir",
    "input_dir", "log_level", "model_dir", "network_interface_name", "num_cpus", "num_gpus", "output_data_dir",
    "resource_config", "job_name",
}  # fmt: skip
"""Fields of SM_TRAINING_ENV that both the toolkit and the drivers have."""
Ran = Callable[[str, int], Ranks]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: AWS's code is at /opt/ml"),
]


@pytest.fixture(scope="module")
def environment() -> Path:
    subprocess.run(["bash", str(ROOT / "tools/sagemaker-env.sh")], check=True, timeout=PATIENCE_SECONDS)
    return ENVIRONMENT


@pytest.fixture(scope="module")
def ran(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Returns a function that runs the script in one way on some hosts and returns what its ranks observed; each
    combination runs once for all test processes.
    """

    def found_by(way: str, hosts: int) -> Ranks:
        home = Home(tmp_path_factory.mktemp(f"{way}-{hosts}"))
        if way == WORKER:
            return run_worker(home, hosts, PROCS[way])
        if way == TOOLKIT:
            request = by_toolkit(home, environment, hosts)
        else:
            request = by_drivers(home, environment, hosts, distributed={"process_count_per_node": PROCS[way]})
        found, written = run_twin(home, environment, request)
        assert found["TrainingJobStatus"] == "Completed", (found, written)
        return home.model(request["TrainingJobName"])

    def run(way: str, hosts: int) -> Ranks:
        said = once(tmp_path_factory, f"{way}-on-{hosts}", lambda: json.dumps(found_by(way, hosts)))
        ranks: Ranks = json.loads(said)
        return ranks

    return run


each_way = pytest.mark.parametrize("way", [TOOLKIT, DRIVERS, WORKER])
each_size = pytest.mark.parametrize("hosts", [2, pytest.param(1, marks=pytest.mark.nightly)])


@each_way
@each_size
def test_ranks_are_numbered_from_host_to_host_and_reach_each_other(ran: Ran, way: str, hosts: int) -> None:
    procs, found = PROCS[way], ran(way, hosts)
    size = procs * hosts
    assert [(one["rank"], one["host"], one["local_rank"], one["size"]) for one in found] == [
        (rank, f"algo-{rank // procs + 1}", rank % procs, size) for rank in range(size)
    ]
    assert {one["sum"] for one in found} == {size * (size + 1) / 2}


@each_way
@each_size
def test_a_script_finds_its_hyperparameters_data_and_hosts(ran: Ran, way: str, hosts: int) -> None:
    expected = {name.replace("-", "_"): value for name, value in HYPERPARAMETERS.items()}
    for one in ran(way, hosts):
        assert one["args"] == {**expected, "fail": "", "train": "/opt/ml/input/data/train"}
        assert one["hps"] == HYPERPARAMETERS
        assert one["hosts"] == [f"algo-{at + 1}" for at in range(hosts)]
        assert (one["data"], one["gpus"], one["socket"]) == ("1,2\n", 0, "lo")
        assert one["variables"]["SM_MODEL_DIR"] == "/opt/ml/model"


@pytest.mark.parametrize("way", [TOOLKIT, DRIVERS])
@each_size
def test_worker_of_windlass_sets_same_variables(ran: Ran, way: str, hosts: int) -> None:
    for host in range(hosts):
        theirs = ran(way, hosts)[host * PROCS[way]]["variables"]
        ours = ran(WORKER, hosts)[host * PROCS[WORKER]]["variables"]
        assert theirs["SM_CURRENT_HOST"] == ours["SM_CURRENT_HOST"]
        assert theirs.keys() - ours.keys() <= OWN
        different = {
            name for name in theirs.keys() & ours.keys() if _comparable(theirs, name) != _comparable(ours, name)
        }
        assert different <= PLACES, {name: (theirs[name], ours[name]) for name in different}


@pytest.mark.parametrize("way", [TOOLKIT, DRIVERS])
def test_the_error_of_a_script_is_the_failure_reason_of_the_job(tmp_path: Path, environment: Path, way: str) -> None:
    home = Home(tmp_path)
    request = (by_toolkit if way == TOOLKIT else by_drivers)(home, environment, 1, fail="on request")
    found, written = run_twin(home, environment, request)
    assert found["TrainingJobStatus"] == "Failed"
    assert found["FailureReason"].startswith("AlgorithmError: ")
    # The drivers report only the command; the script's output is in the log.
    reason = "the script has failed: on request" if way == TOOLKIT else "CalledProcessError"
    assert reason in found["FailureReason"], found["FailureReason"]
    assert any("the script has failed: on request" in line for line in written)


def test_the_driver_of_plain_scripts_runs_on_every_host(tmp_path: Path, environment: Path) -> None:
    home = Home(tmp_path)
    request = by_drivers(home, environment, 2)
    found, written = run_twin(home, environment, request)
    assert found["TrainingJobStatus"] == "Completed", (found, written)
    ranks = {one["host"]: one for one in home.model("drivers")}
    assert ranks.keys() == {"algo-1", "algo-2"}
    assert [ranks[host]["variables"]["SM_CURRENT_HOST_RANK"] for host in sorted(ranks)] == ["0", "1"]
    assert all(one["hps"] == HYPERPARAMETERS for one in ranks.values())


def _comparable(variables: dict[str, str], name: str) -> Any:
    """Returns the value of a variable without the parts that differ by design."""
    try:
        value = json.loads(variables[name])
    except ValueError:
        return variables[name]
    channels = {"code", "sm_drivers"}
    if name == "SM_CHANNELS":
        return sorted(set(value) - channels)
    if name == "SM_INPUT_DATA_CONFIG":
        return _without(value, channels)
    if name == "SM_USER_ARGS":  # the toolkit sorts the arguments
        return sorted(zip(value[::2], value[1::2], strict=True))
    if name == "SM_TRAINING_ENV":
        found = {key: value[key] for key in TRAINING_ENV}
        return {
            **found,
            "channel_input_dirs": _without(found["channel_input_dirs"], channels),
            "job_name": None,
        }
    return value


def _without(value: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: one for name, one in value.items() if name not in names}
