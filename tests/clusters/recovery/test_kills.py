"""kill -9 of Windlass, of Terraform or of both during up and down loses nothing (real Terraform, emulated AWS)."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from tests.clusters.recovery import program
from tests.fakeaws.emulator import Emulator
from tests.helpers.until import passed, until

from windlass.clusters.recovery import RecoveryReport
from windlass.clusters.terraform import process
from windlass.clusters.terraform.folder import ClusterFolder, LocalBackend, S3Backend
from windlass.worker.process import of_session, send

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

LINES: Final = {"up": 24, "down": 20}
"""Number of lines that the apply of the small configuration prints."""
LATER_SECONDS: Final = 0.5
"""Maximum seconds from a printed line to the kill: the launch template takes 6 s, in which nothing is printed."""
PATIENCE_SECONDS: Final = 400.0
"""Time limit in seconds: each command starts Terraform and its provider several times, which takes seconds of CPU."""
CYCLES: Final = 5
"""Number of cycles; each kills once in up and once in down."""


@dataclass
class Scene:
    """A cluster in the emulated account."""

    home: Path
    name: str
    backend: LocalBackend | S3Backend
    environ: Mapping[str, str]
    aws: Emulator

    def __post_init__(self) -> None:
        self.folder = ClusterFolder.of(self.home, self.name)

    def start(self, action: str) -> subprocess.Popen[bytes]:
        """Starts the program that will be killed."""
        self.home.mkdir(parents=True, exist_ok=True)
        backend = asdict(self.backend)
        argv = [str(self.home), self.name, json.dumps(backend), json.dumps(dict(self.environ)), action]
        with (self.home / f"{action}.log").open("wb") as log:
            root = Path(__file__).parents[3]
            return subprocess.Popen(
                [sys.executable, "-m", "tests.clusters.recovery.program", *argv],
                cwd=root,
                env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{root / 'src'}:{root}"},
                stdout=log,
                stderr=log,
            )

    def kill(self, action: str, victim: str, num_lines: int, seconds: float) -> None:
        """Starts up or down, and kills it a number of seconds after the given line of its apply."""
        child = self.start(action)
        log = self.home / f"{action}.log"
        record = until(lambda: self.applying() or child.poll() is not None, log.read_text, PATIENCE_SECONDS)
        if not isinstance(record, process.RunningCommand):  # the apply had finished before it could be observed
            assert child.returncode == 0, log.read_text()
            return
        until(
            lambda: child.poll() is not None or len(record.log.read_bytes().splitlines()) >= num_lines,
            log.read_text,
            PATIENCE_SECONDS,
        )
        passed(seconds)
        if victim in ("windlass", "both"):
            child.kill()
        if victim in ("terraform", "both") and record.is_alive:
            for pid in [record.pid] if victim == "terraform" else of_session(record.pid):
                send(pid, signal.SIGKILL)
        child.wait(PATIENCE_SECONDS)

    def applying(self) -> process.RunningCommand | None:
        """Returns the running apply."""
        record = process.record_of(self.folder.path)
        return record if record and record.command == "apply" and record.pid else None

    def recover(self) -> RecoveryReport:
        """Runs the recovery that the next command would start with."""
        with self.folder.locked("test"):
            driver = program.terraform_of(self.folder, self.environ)
            report = program.recovered(driver, self.environ)
            missing = self.existing() - {one.id for one in driver.state()}
            assert not missing, (missing, report)
            assert report.is_clean, report
            return report

    def existing(self) -> set[str]:
        """Returns the ids of all existing objects of this cluster, in Terraform's format."""
        ec2, iam = self.aws.client("ec2"), self.aws.client("iam")
        filters = [{"Name": "tag:windlass.dev/cluster", "Values": [self.name]}]
        found = {one["VpcId"] for one in ec2.describe_vpcs(Filters=filters)["Vpcs"]}
        found |= {one["SubnetId"] for one in ec2.describe_subnets(Filters=filters)["Subnets"]}
        templates = ec2.describe_launch_templates()["LaunchTemplates"]
        found |= {one["LaunchTemplateId"] for one in templates if one["LaunchTemplateName"].startswith(f"{self.name}-")}
        buckets = self.aws.client("s3").list_buckets()["Buckets"]
        found |= {one["Name"] for one in buckets if one["Name"].startswith(f"{self.name}-")}
        roles = [one["RoleName"] for one in iam.list_roles()["Roles"] if one["RoleName"].startswith(f"{self.name}-")]
        policies = {f"{role}:{one}" for role in roles for one in iam.list_role_policies(RoleName=role)["PolicyNames"]}
        return found | set(roles) | policies

    def finish_up(self) -> None:
        """Applies, and checks that a second plan is clean."""
        with self.folder.locked("test"):
            driver = program.terraform_of(self.folder, self.environ)
            driver.apply(driver.plan())
            second = driver.plan()
            assert second.summary.is_empty, second.summary
            assert self.existing() == {one.id for one in driver.state()}

    def finish_down(self) -> None:
        """Destroys, and checks that no object remains."""
        with self.folder.locked("test"):
            driver = program.terraform_of(self.folder, self.environ)
            driver.apply(driver.plan(destroy=True))
            assert not driver.state()
        assert not self.existing()


@pytest.mark.nightly
@pytest.mark.parametrize("victim", ["windlass", "terraform", "both"])
@pytest.mark.parametrize("store", ["local", "s3"])
def test_emulated_kill_9_during_up_and_down_leaves_no_unmanaged_resources(
    store: str,
    victim: str,
    shared_aws: Emulator,
    terraform: dict[str, str],
    tmp_path: Path,
) -> None:
    """The moments of the kills are seeded; each half of a cycle starts where the previous one ended."""
    environ = {**terraform, **shared_aws.environ}
    name = f"kill-{store}-{victim}"
    backend: Any = LocalBackend()
    if store == "s3":
        shared_aws.client("s3").create_bucket(Bucket=f"state-{victim}")
        backend = S3Backend(f"state-{victim}", f"{name}.tfstate", "us-east-1", endpoint=shared_aws.url)
    scene = Scene(tmp_path, name, backend, environ, shared_aws)
    moments = random.Random(f"{store} {victim}")
    for _ in range(CYCLES):
        for action, finish in (("up", scene.finish_up), ("down", scene.finish_down)):
            scene.kill(action, victim, moments.randint(1, LINES[action]), moments.random() * LATER_SECONDS)
            scene.recover()
            finish()
