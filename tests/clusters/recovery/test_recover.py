"""Recovery handles a lost state, an unsent state, and duplicates (real Terraform, emulated AWS)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.clusters.recovery import program
from tests.fakeaws.emulator import Emulator

from windlass.clusters.recovery import needs_recovery
from windlass.clusters.terraform import Terraform
from windlass.clusters.terraform.folder import ClusterFolder, S3Backend

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
KEY = "clusters/terraform.tfstate"


@dataclass
class Scene:
    """A running cluster of the small configuration with its state in S3."""

    terraform: Terraform
    environ: Mapping[str, str]
    aws: Emulator

    @property
    def name(self) -> str:
        """Name of the cluster."""
        return self.terraform.folder.name

    def lose_state(self) -> bytes:
        """Deletes the state, as a kill within the first 20 seconds would; returns its content."""
        s3, where = self.aws.client("s3"), {"Bucket": f"{self.name}-state", "Key": KEY}
        content: bytes = s3.get_object(**where)["Body"].read()
        s3.delete_object(**where)
        return content

    def tags(self, type: str, name: str) -> Any:
        """Returns tags as Terraform sets them."""
        tags = {"Name": name, "windlass.dev/cluster": self.name, "windlass.dev/managed-by": "terraform"}
        return [{"ResourceType": type, "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}]


@pytest.fixture
def scene(
    shared_aws: Emulator, terraform: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Scene]:
    """Yields a separate cluster in the shared account."""
    name = f"rec-{abs(hash(request.node.name)) % 10**9}"
    shared_aws.client("s3").create_bucket(Bucket=f"{name}-state")
    environ = {**terraform, **shared_aws.environ}
    driver = program.terraform_of(ClusterFolder.of(tmp_path, name), environ)
    with driver.folder.locked("test"):
        program.prepare(driver, S3Backend(f"{name}-state", KEY, "us-east-1", endpoint=shared_aws.url))
        driver.apply(driver.plan())
        yield Scene(driver, environ, shared_aws)


# in CI, `tests/clusters/terraform/test_terraform.py` covers a lost state, with a cluster that it creates anyway
@pytest.mark.nightly
def test_emulated_lost_state_is_rebuilt(scene: Scene) -> None:
    before = {one.address: one.id for one in scene.terraform.state()}
    scene.lose_state()
    report = program.recovered(scene.terraform, scene.environ)
    assert report.is_clean
    assert {one.address for one in report.imported} == set(before)
    assert {one.address: one.id for one in scene.terraform.state()} == before
    assert scene.terraform.plan().summary.is_empty
    assert not needs_recovery(scene.terraform.folder)
    assert not list(scene.terraform.folder.path.glob("windlass*recovery*"))
    assert not program.recovered(scene.terraform, scene.environ).imported


@pytest.mark.nightly
def test_emulated_unsent_state_is_pushed(scene: Scene) -> None:
    (scene.terraform.folder.path / "errored.tfstate").write_bytes(scene.lose_state())
    assert needs_recovery(scene.terraform.folder)
    report = program.recovered(scene.terraform, scene.environ)
    assert not (scene.terraform.folder.path / "errored.tfstate").exists()
    assert not report.imported
    assert scene.terraform.plan().summary.is_empty


@pytest.mark.nightly
def test_emulated_duplicates_and_orphans_are_reported(scene: Scene) -> None:
    ec2 = scene.aws.client("ec2")
    kept = next(one.id for one in scene.terraform.state() if one.type == "aws_vpc")
    extra = ec2.create_vpc(CidrBlock="10.9.0.0/16", TagSpecifications=scene.tags("vpc", scene.name))["Vpc"]["VpcId"]
    specification = scene.tags("subnet", "stray")
    stray = ec2.create_subnet(VpcId=extra, CidrBlock="10.9.1.0/24", TagSpecifications=specification)["Subnet"][
        "SubnetId"
    ]
    report = program.recovered(scene.terraform, scene.environ)
    assert not report.is_clean
    assert [(one.type, one.kept, one.extra) for one in report.duplicates] == [("aws_vpc", kept, (extra,))]
    assert [(one.type, one.id, one.name) for one in report.orphans] == [("aws_subnet", stray, "stray")]


@pytest.mark.nightly
def test_emulated_one_duplicate_is_imported_and_the_other_reported(scene: Scene) -> None:
    ec2 = scene.aws.client("ec2")
    kept = next(one.id for one in scene.terraform.state() if one.type == "aws_vpc")
    extra = ec2.create_vpc(CidrBlock="10.9.0.0/16", TagSpecifications=scene.tags("vpc", scene.name))["Vpc"]["VpcId"]
    scene.lose_state()
    report = program.recovered(scene.terraform, scene.environ)
    (found,) = report.duplicates
    assert set(found.ids) == {kept, extra}
    assert found.kept in {one.id for one in scene.terraform.state()}


@pytest.mark.nightly
def test_emulated_dependents_of_an_incomplete_resource_are_imported_without_replacement(scene: Scene) -> None:
    before = {one.address: one.id for one in scene.terraform.state()}
    lost = next(address for address in before if address.startswith("aws_subnet."))
    for address in before:
        if address != lost and not address.startswith("data."):
            scene.terraform.taint(address)
    scene.terraform.forget([lost])
    report = program.recovered(scene.terraform, scene.environ)
    assert [one.address for one in report.imported] == [lost]
    state = scene.terraform.state()
    assert {one.address: one.id for one in state} == before
    tainted = {one.address for one in state if one.is_tainted}
    assert tainted == set(before) - {lost} - set(report.untainted)
