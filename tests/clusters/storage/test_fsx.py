"""FSx for Lustre tasks run against an emulated FSx API."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.fakeaws.emulator import Emulator, emulated_aws
from tests.helpers.clock import FakeClock

from windlass.clusters.aws import Aws, AwsError
from windlass.clusters.storage.fsx import begin_export, exists, linked, under_way, wait
from windlass.errors import EngineError


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with emulated_aws(tmp_path_factory.mktemp("aws")) as running:
        yield running


@pytest.fixture
def system(account: Emulator) -> str:
    ec2 = account.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.1.0/24")["Subnet"]["SubnetId"]
    made = account.client("fsx").create_file_system(
        FileSystemType="LUSTRE",
        StorageCapacity=1200,
        SubnetIds=[subnet],
        LustreConfiguration={"DeploymentType": "SCRATCH_2"},
    )
    return str(made["FileSystem"]["FileSystemId"])


@pytest.fixture
def aws(account: Emulator) -> Aws:
    return Aws(environ=account.environ)


def test_emulated_an_export_is_started_once_and_waited_for(aws: Aws, system: str) -> None:
    task = begin_export(aws, system, "s3/results")
    assert under_way(aws, system, "s3/results") == task
    seen: list[str] = []
    wait(aws, task, lambda state, _share: seen.append(state), FakeClock())
    assert seen[-1] == "SUCCEEDED"
    assert under_way(aws, system, "s3/results") == ""


def test_emulated_waiting_for_an_export_that_was_cancelled_fails(account: Emulator, aws: Aws, system: str) -> None:
    task = begin_export(aws, system, "s3")
    account.client("fsx").cancel_data_repository_task(TaskId=task)
    with pytest.raises(EngineError, match=f"{task} is CANCEL"):
        wait(aws, task, lambda _state, _share: None, FakeClock())


@pytest.mark.slow
def test_emulated_missing_file_system_is_reported(aws: Aws) -> None:
    with pytest.raises(AwsError, match="fs-0123456789abcdef0"):
        begin_export(aws, "fs-0123456789abcdef0", "s3")


def test_emulated_whole_file_system_is_exported_by_one_task(account: Emulator, aws: Aws, system: str) -> None:
    fsx = account.client("fsx")
    assert (exists(aws, system), linked(aws, system)) == (True, ())
    fsx.create_data_repository_association(
        FileSystemId=system, FileSystemPath="/", DataRepositoryPath="s3://results/train/"
    )
    assert linked(aws, system) == ("/",)
    task = begin_export(aws, system, "/")
    assert (under_way(aws, system, "/"), under_way(aws, system, "s3")) == (task, "")
    [made] = fsx.describe_data_repository_tasks(TaskIds=[task])["DataRepositoryTasks"]
    assert made["Paths"] == []
    fsx.delete_file_system(FileSystemId=system)
    assert (exists(aws, system), exists(aws, "fs-0123456789abcdef0")) == (False, False)
