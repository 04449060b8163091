"""Each policy statement is needed: without it, the command fails and names an action of the statement (emulated).

CI tests two statements; `make nightly` and `make test-aws` test all.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import pytest
from tests.clusters.eks.configuration import SERVICES
from tests.clusters.policies.cases import CASES, UNSEEN, Case, Step
from tests.clusters.policies.clusters import ACCOUNT, EVERYTHING, cluster
from tests.clusters.policies.limited import LimitedUser, emulated_environ
from tests.fakeaws.emulator import Emulator, emulated_aws
from tests.fakeaws.emulator.fixtures import terraform  # noqa: F401

from windlass.clusters.aws import AccessDenied, Aws
from windlass.clusters.eks.variables import variables
from windlass.clusters.policies import Purpose, Statement, statements
from windlass.clusters.policies.documents import documents
from windlass.clusters.recovery import recover
from windlass.clusters.storage.fsx import begin_export
from windlass.clusters.terraform import Terraform, TerraformFailed, find_program
from windlass.clusters.terraform.folder import Backend, ClusterFolder, LocalBackend, S3Backend
from windlass.errors import WindlassError

ALL: Final = {one.sid: one for one in statements(cluster(), ACCOUNT, Purpose.UP)}


def all_statements() -> list[Any]:
    """Returns the statements that have a case, most of them marked as long tests."""
    often = random.Random("0").sample(sorted(CASES), 2)
    return [pytest.param(sid, marks=() if sid in often else pytest.mark.nightly) for sid in sorted(CASES)]


def test_each_statement_has_a_case_or_a_reason() -> None:
    assert set(CASES) | set(UNSEEN) == set(ALL)
    assert set(CASES) & set(UNSEEN) == set()


class AtOnce(Terraform):
    """Plans and applies in one command. Starting the provider takes most of the time here, and `terraform` then does it
    once.
    """

    def apply_at_once(self, target: str, *, destroy: bool = False) -> None:
        self._run("apply", ["-json", "-auto-approve", f"-target={target}", *["-destroy"] * destroy])


class Life:
    """Runs Terraform as the limited user, in a separate folder."""

    def __init__(self, folder: Path, aws: Emulator, user: LimitedUser) -> None:
        self.aws, self.user = aws, user
        self.folder = ClusterFolder.of(folder / "home", "vision")
        self.terraform = AtOnce(find_program(user.environ), self.folder, user.environ)

    def write(self, change: Mapping[str, Any] | None = None, *, in_bucket: bool = False) -> None:
        backend = S3Backend("team-state", "clusters/vision.tfstate", "us-east-1", endpoint=self.aws.url)
        write(self.folder, self.aws.url, change or {}, backend if in_bucket else LocalBackend())
        self.terraform.init()

    def apply(self, target: str) -> None:
        self.terraform.apply_at_once(target)

    def apply_in_bucket(self, target: str) -> None:
        self.write(in_bucket=True)
        self.apply(target)

    def destroy(self, target: str) -> None:
        self.terraform.apply_at_once(target, destroy=True)

    def allow(self, *without: Statement) -> None:
        self.user.attach(documents("all", [one for one in ALL.values() if one not in without]))


def write(folder: ClusterFolder, url: str, change: Mapping[str, Any], backend: Backend) -> None:
    found = variables(cluster(EVERYTHING + "tags: {team: vision}\n"), dict.fromkeys(SERVICES, url))
    found["gpu_pools"]["h100"]["efa_interfaces"] = 4
    found["gpu_pools"]["a10g"] |= {"efa_interfaces": 0, "placement_group": False}
    folder.write(files("windlass.clusters") / "eks", found | {"bucket_force_destroy": True} | dict(change), backend)


@pytest.fixture(scope="module")
def initialised(tmp_path_factory: pytest.TempPathFactory, terraform: dict[str, str]) -> Path:  # noqa: F811
    """Returns a folder in which `terraform init` has run."""
    home = tmp_path_factory.mktemp("initialised")
    folder = ClusterFolder.of(home, "vision")
    write(folder, "http://127.0.0.1:9", {}, LocalBackend())
    Terraform(find_program(terraform), folder, terraform).init()
    return home


@pytest.fixture
def life(tmp_path: Path, initialised: Path, terraform: dict[str, str]) -> Iterator[Life]:  # noqa: F811
    shutil.copytree(initialised, tmp_path / "home", symlinks=True)
    with emulated_aws(tmp_path / "aws", auth=True, environ=emulated_environ(tmp_path)) as aws:
        yield Life(tmp_path, aws, LimitedUser(aws, tmp_path, terraform))


def fail(life: Life, case: Case, missing: Statement) -> WindlassError:
    """Runs the operation that must fail without the statement, and returns its error."""
    life.allow()
    if case.step is Step.STATE:
        life.aws.client("s3").create_bucket(Bucket="team-state")
        life.allow(missing)
        shutil.rmtree(life.folder.path)  # the backend of an existing folder cannot be changed
        return failing(lambda: life.apply_in_bucket("aws_iam_role.flow"))
    if case.step is Step.EXPORT:
        return _export(life, missing)
    life.write(case.change if case.step is Step.RECOVER else None)
    if case.step in (Step.CHANGE, Step.DESTROY):
        life.apply(case.target)
        life.write(case.change)
    if missing.sid == "EmptyBucket":
        life.aws.client("s3").put_object(Bucket="windlass-vision-123456789012", Key="result", Body=b"1")
    life.allow(missing)
    if case.step is Step.RECOVER:
        with Aws(environ=life.user.environ) as aws, pytest.raises(AccessDenied) as denied:
            recover(life.terraform, aws)
        return denied.value
    return failing(lambda: (life.destroy if case.step is Step.DESTROY else life.apply)(case.target))


def failing(act: Callable[[], object]) -> TerraformFailed:
    with pytest.raises(TerraformFailed) as caught:
        act()
    return caught.value


def _export(life: Life, missing: Statement) -> WindlassError:
    ec2 = life.aws.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/20")["Subnet"]["SubnetId"]
    system = life.aws.client("fsx").create_file_system(
        FileSystemType="LUSTRE",
        StorageCapacity=1200,
        SubnetIds=[subnet],
        Tags=[{"Key": "windlass.dev/cluster", "Value": "vision"}],
    )["FileSystem"]["FileSystemId"]
    with Aws(environ=life.user.environ) as aws:
        assert begin_export(aws, system, "first")
        life.allow(missing)
        with pytest.raises(AccessDenied) as caught:
            begin_export(aws, system, "second")
    return caught.value


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("sid", all_statements())
def test_command_without_a_statement_fails_and_names_the_missing_action_emulated(life: Life, sid: str) -> None:
    missing = ALL[sid]
    error = fail(life, CASES[sid], missing)
    # S3 answers a HEAD request for the state without a message, so only the hint names the action.
    named = [one for one in missing.actions if f"perform: {one} " in error.message or f"allow {one};" in error.hint]
    assert named, f"{error.message} {error.hint}"
    assert "allow " in error.hint
