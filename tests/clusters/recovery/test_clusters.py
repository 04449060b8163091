"""A whole cluster is recovered after a kill during up and after the loss of its state (real Terraform, emulated
AWS).
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import pytest
from tests.clusters.recovery import program
from tests.fakeaws.emulator import Emulator
from tests.helpers.until import until

from windlass.clusters.terraform import Action, Terraform, TerraformError, process
from windlass.clusters.terraform.folder import ClusterFolder, S3Backend

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(1800)]
SERVICES: Final = (
    "budgets", "cloudcontrolapi", "cloudformation", "ec2", "ecr", "efs", "eks", "events", "fsx", "iam", "kms", "logs",
    "s3", "sqs", "sts",
)  # fmt: skip
VARIABLES: Final[Mapping[str, Any]] = {
    "nat": "per-zone",
    "repositories": ["demo/train"],
    "karpenter": True,
    "efs": {"throughput": "elastic"},
    "sagemaker": True,
    "budget": {"limit_usd": 100, "email": "a@example.com"},
    "endpoint_public_cidrs": ["203.0.113.0/24"],
    "user_principals": ["arn:aws:iam::123456789012:role/users"],
    "fsx": {"size_gib": 1200, "deployment": "SCRATCH_2", "export": True, "export_deleted": False},
    "gpu_pools": {
        "g": {
            "instance_types": ["g6.12xlarge"],
            "capacity": "spot",
            "min": 0,
            "max": 2,
            "efa_interfaces": 1,
            "placement_group": True,
            "disk_gib": 200,
            "disk_throughput_mibs": 600,
            "parallel_pull": True,
            "ami_type": "AL2023_x86_64_NVIDIA",
            "labels": {},
            "taint": True,
        },
    },
}
KILLED_AFTER: Final = 70
"""Number of complete resources, of 111, before the kill."""


def up_killed(terraform: Terraform) -> None:
    """Runs an apply and kills it halfway."""
    plan = terraform.plan()

    def kill() -> None:
        os.kill(until(lambda: _amid(terraform)), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(TerraformError, match="was killed by signal 9"):
        terraform.apply(plan)
    killer.join()


def _amid(terraform: Terraform) -> int:
    """Returns the pid of the apply once it has progressed far enough; 0 before."""
    record = process.record_of(terraform.folder.path)
    if record is None or record.command != "apply" or not record.log.exists():
        return 0
    return record.pid if record.log.read_text().count('"apply_complete"') >= KILLED_AFTER else 0


def managed(driver: Terraform) -> set[str]:
    """Returns the addresses in the state, without data sources."""
    return {one.address for one in driver.state() if one.mode == "managed"}


def test_emulated_whole_cluster_is_recovered_after_kill_9_and_a_lost_state(
    shared_aws: Emulator, terraform: dict[str, str], tmp_path: Path
) -> None:
    """The first kill comes before any state is written. Later, the state of the finished cluster is deleted and
    recovered.
    """
    shared_aws.client("s3").create_bucket(Bucket="states")
    environ = {**terraform, **shared_aws.environ}
    driver = program.terraform_of(ClusterFolder.of(tmp_path, "whole"), environ)
    backend = S3Backend("states", "whole.tfstate", "us-east-1", endpoint=shared_aws.url)
    configuration = Path(str(files("windlass.clusters") / "eks"))
    with driver.folder.locked("test"):
        program.prepare(driver, backend, configuration, endpoints=dict.fromkeys(SERVICES, shared_aws.url), **VARIABLES)
        up_killed(driver)
        report = program.recovered(driver, environ)
        assert report.lock is not None
        assert report.is_clean, report
        driver.apply(driver.plan())
        assert driver.plan().summary.is_empty
        before = managed(driver)
        shared_aws.client("s3").delete_object(Bucket="states", Key="whole.tfstate")
        report = program.recovered(driver, environ)
        assert report.is_clean, report
        missing = before - managed(driver)
        assert {one.partition(".")[0] for one in missing} <= {"aws_default_security_group"}
        replaced = [
            (one.address, one.changed, one.reason)
            for one in driver.plan().summary.changes
            if one.action is Action.REPLACE
        ]
        assert replaced == []
        driver.apply(driver.plan(destroy=True))
        assert driver.state() == []
