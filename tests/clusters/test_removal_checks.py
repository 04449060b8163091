"""What `cluster down` looks at before it removes anything: by the state of Terraform, not by files of this machine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.clusters.components.fakecluster import FakeCluster
from tests.clusters.eks.test_outputs import VALUES

import windlass.clusters
from windlass.clusters.audit.named import audit_named
from windlass.clusters.aws import Aws, AwsError, Identity, NotThere
from windlass.clusters.down import down
from windlass.clusters.eks.contents import Contents, contents
from windlass.clusters.eks.outputs import FSX_PATH, ApiServer, Outputs, target
from windlass.clusters.find import FILE, OUTPUTS, Named
from windlass.clusters.reconcile import require_account
from windlass.clusters.removal_checks import look, training_jobs
from windlass.clusters.status import status, summary
from windlass.clusters.storage.bucket import Bucket
from windlass.clusters.storage.fsx import EXPORTED, export
from windlass.clusters.terraform.folder import ClusterFolder
from windlass.clusters.terraform.state import state_resources
from windlass.clusters.up import plan_up
from windlass.clusters.working_folder import take_outputs, write_folder
from windlass.engines.kubernetes.objects.layout import RUN_LABEL
from windlass.errors import EngineError, UsageError, WindlassError
from windlass.runs.context import Context
from windlass.spec.parse import parse_cluster

TEXT = "name: vision\nregion: us-west-2\nstate: {bucket: states}\n"
LOGIN = """#!/bin/sh
echo '{"apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential", "status": {"token": "t"}}'
"""
"""In place of `aws eks get-token`."""
SYSTEM = "fs-0123456789abcdef0"


@pytest.fixture
def named(tmp_path: Path) -> Named:
    """A cluster in a home that has nothing of it."""
    folder = ClusterFolder.of(tmp_path / "home", "vision")
    folder.path.mkdir(parents=True)
    return Named(parse_cluster(TEXT), TEXT, folder)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context({"WINDLASS_HOME": str(tmp_path / "home")}, tmp_path)


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "aws").write_text(LOGIN)
    (tmp_path / "bin" / "aws").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    with closing(FakeCluster()) as cluster:
        yield cluster


def state(**types: dict[str, Any]) -> list[Any]:
    """A state with one resource of each of these types."""
    made = [
        {"mode": "managed", "type": type, "name": "main", "instances": [{"attributes": values}]}
        for type, values in types.items()
    ]
    return state_resources(json.dumps({"version": 4, "resources": made}))


def eks(url: str) -> dict[str, Any]:
    return {"id": "vision", "endpoint": url, "certificate_authority": [{"data": "Q0E="}]}


def test_the_state_names_the_api_server_and_the_file_systems() -> None:
    made = state(
        aws_eks_cluster=eks("https://x"),
        aws_vpc={"id": "vpc-1"},
        aws_efs_file_system={"id": "fs-1"},
        aws_fsx_lustre_file_system={"id": "fs-2"},
    )
    found = contents(made, parse_cluster(TEXT))
    api = ApiServer("vision", "us-west-2", "https://x", "Q0E=", "training")
    assert found == Contents(True, api, ("fs-1",), ("fs-2",), "vpc-1")
    assert contents([], parse_cluster(TEXT)) == Contents()


def test_runs_of_others_are_seen_from_a_home_without_outputs(named: Named, context: Context, api: FakeCluster) -> None:
    labels = {"labels": {RUN_LABEL: "digits-ab12"}}
    api.put("v1", "Pod", "digits-0", "training", metadata=labels, status={"phase": "Running"})
    api.put("v1", "Service", "web", "default", spec={"type": "LoadBalancer"})
    url = f"http://127.0.0.1:{api.port}"
    found = look(named, contents(state(aws_eks_cluster=eks(url)), named.cluster), context)
    assert found.active == ("training/digits-0 of run digits-ab12",)
    assert [str(one.ref) for one in found.holdings] == ["Service web in default"]
    assert found.not_looked == ""


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (eks("http://127.0.0.1:9"), "its API server does not answer"),
        ({"id": "vision", "endpoint": None, "certificate_authority": []}, "has no address of its API server"),
    ],
)
@pytest.mark.usefixtures("api")
def test_a_cluster_that_cannot_be_looked_at_is_not_taken_for_empty(
    named: Named, context: Context, made: dict[str, Any], why: str
) -> None:
    found = look(named, contents(state(aws_eks_cluster=made), named.cluster), context)
    assert why in found.not_looked


def test_where_the_state_has_no_cluster_there_is_nothing_to_look_at(named: Named, context: Context) -> None:
    assert look(named, Contents(efs_ids=("fs-1",)), context).not_looked == ""


def test_training_jobs_of_others_with_the_role_of_the_cluster_are_active() -> None:
    arn = "arn:aws:iam::1:role/vision-sagemaker"
    role = {
        "mode": "managed",
        "type": "aws_iam_role",
        "name": "sagemaker",
        "instances": [{"index_key": 0, "attributes": {"id": "vision-sagemaker", "arn": arn}}],
    }
    found = contents(state_resources(json.dumps({"version": 4, "resources": [role]})), parse_cluster(TEXT))
    jobs = {"digits-ab12-1": ("InProgress", arn), "old-1": ("Stopping", arn), "theirs": ("InProgress", "another")}

    def pages(StatusEquals: str) -> list[dict[str, Any]]:  # noqa: N803
        names = [name for name, (state, _) in jobs.items() if state == StatusEquals]
        return [{"TrainingJobSummaries": [{"TrainingJobName": name}]} for name in names]

    client = SimpleNamespace(
        get_paginator=lambda _name: SimpleNamespace(paginate=pages),
        describe_training_job=lambda TrainingJobName: {"RoleArn": jobs[TrainingJobName][1]},  # noqa: N803
    )
    aws: Any = SimpleNamespace(client=lambda _name: client)
    assert training_jobs(found, aws) == (
        "the training job digits-ab12-1 is InProgress",
        "the training job old-1 is Stopping",
    )
    assert training_jobs(Contents(), aws) == ()


@pytest.mark.parametrize("backend", ["", "state: {bucket: states}\n"])
def test_a_login_of_another_account_neither_plans_nor_removes_a_cluster(
    named: Named, context: Context, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """Nothing of it is found there: `up` would make all again, `down` would say that nothing is left."""
    text = f"name: vision\nregion: us-west-2\n{backend}"
    named = replace(named, cluster=parse_cluster(text), text=text)
    made = state(
        aws_eks_cluster={"id": "vision", "arn": "arn:aws:eks:us-west-2:111111111111:cluster/vision"},
        aws_s3_bucket={"id": "b", "arn": "arn:aws:s3:::b"},
    )
    terraform: Any = SimpleNamespace(state=lambda: made, init=lambda: None)
    aws: Any = SimpleNamespace(identity=Identity("222222222222", ""))
    monkeypatch.setattr(Named, "aws", lambda *_: nullcontext(aws))
    monkeypatch.setattr(Named, "terraform", lambda *_: terraform)
    monkeypatch.setattr("windlass.clusters.storage.bucket.look", lambda *_, **_more: Bucket("b", exists=False))
    said = "vision is in account 111111111111, and the login is of account 222222222222"
    for command in (
        lambda: plan_up(named, terraform, context, lambda _event: None),
        lambda: down(named, context, lambda _event: None, lambda *_: True, cast("Any", None), force=True),
        lambda: status(named, context, lambda _event: None),
    ):
        with pytest.raises(UsageError, match=said):
            command()
    aws.identity = Identity("111111111111", "")
    require_account(named, terraform, context)


def test_an_audit_by_a_login_of_another_account_is_refused(
    named: Named, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds nothing there."""
    (named.folder.path / FILE).write_text(TEXT)
    (named.folder.path / OUTPUTS).write_text(json.dumps(VALUES))
    owner = Outputs.of(VALUES).run_role_arn.split(":")[4]
    monkeypatch.setattr(Aws, "identity", Identity("222222222222", ""))
    with pytest.raises(UsageError, match=f"vision is in account {owner}, and the login is of account 222222222222"):
        audit_named("vision", "", context, is_ours=True)


def test_a_bucket_is_not_deleted_where_aws_does_not_say_whose_it_is(
    named: Named, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **_more: Any) -> Bucket:
        raise AwsError("its tags cannot be read")

    class Prepared(Exception):
        """Terraform is made ready."""

    def prepared(*_: Any) -> None:
        raise Prepared

    write_folder(named, context, bucket=Bucket("b", exists=True, owner="vision"))
    monkeypatch.setattr(Named, "aws", lambda *_: nullcontext())
    monkeypatch.setattr(Named, "terraform", prepared)
    monkeypatch.setattr("windlass.clusters.storage.bucket.look", refuse)
    for is_to_delete, error in ((True, AwsError), (False, Prepared)):
        with pytest.raises(error):
            down(named, context, lambda _event: None, lambda *_: True, cast("Any", None), delete_bucket=is_to_delete)


# -- outputs ----------------------------------------------------------------------------------------------------------


def test_a_complete_cluster_of_another_machine_is_up_here(named: Named) -> None:
    assert summary(named).state == "unknown", "its state was not read"
    terraform: Any = SimpleNamespace(outputs=lambda: VALUES)
    assert take_outputs(named, terraform) == Outputs.of(VALUES)
    assert (summary(named, 101).state, summary(named, 101).resources) == ("up", 101)
    assert named.kubeconfig.exists()
    terraform.outputs = lambda: {"name": "vision"}
    assert take_outputs(named, terraform) is None, "an up that has not ended"


# -- FSx --------------------------------------------------------------------------------------------------------------


class Fsx:
    """FSx with one file system."""

    def __init__(self, *links: str, task: str = "SUCCEEDED", failed: int = 0, lifecycle: str = "AVAILABLE") -> None:
        self.links, self.task, self.failed, self.lifecycle = links, task, failed, lifecycle
        self.tasks: list[dict[str, Any]] = []
        self.earlier: list[dict[str, Any]] = []
        """Tasks of an earlier command; they end once they are looked at by their id."""

    def describe_file_systems(self, FileSystemIds: list[str]) -> Any:  # noqa: N803
        if not self.lifecycle:
            raise NotThere("no such file system")
        return {"FileSystems": [{"FileSystemId": FileSystemIds[0], "Lifecycle": self.lifecycle}]}

    def describe_data_repository_associations(self, **_: Any) -> Any:
        return {"Associations": [{"FileSystemPath": one, "Lifecycle": "AVAILABLE"} for one in self.links]}

    def create_data_repository_task(self, **asked: Any) -> Any:
        self.tasks.append(asked)
        return {"DataRepositoryTask": {"TaskId": f"task-{len(self.tasks)}"}}

    def describe_data_repository_tasks(self, TaskIds: tuple[str, ...] = (), **_: Any) -> Any:  # noqa: N803
        if not TaskIds:
            return {"DataRepositoryTasks": self.earlier}
        self.earlier = [one for one in self.earlier if one["TaskId"] not in TaskIds]
        status = {"TotalCount": 5, "SucceededCount": 5 - self.failed, "FailedCount": self.failed}
        return {"DataRepositoryTasks": [{"TaskId": one, "Lifecycle": self.task, "Status": status} for one in TaskIds]}

    def aws(self) -> Aws:
        made: Any = SimpleNamespace(client=lambda _name: self)
        return cast("Aws", made)


WITH_FSX = Contents(fsx_ids=(SYSTEM,))


def exported(named: Named, fsx: Fsx, *, force: bool = False) -> tuple[str, ...]:
    return export(named, WITH_FSX, fsx.aws(), lambda _event: None, force=force)


def test_all_of_a_file_system_is_exported(named: Named) -> None:
    fsx = Fsx("/")
    assert exported(named, fsx) == ()
    assert fsx.tasks == [{"Type": "EXPORT_TO_REPOSITORY", "FileSystemId": SYSTEM, "Report": {"Enabled": False}}]


def test_files_that_were_written_since_an_earlier_export_began_are_exported_too(named: Named) -> None:
    fsx = Fsx("/")
    fsx.earlier = [{"TaskId": "task-0", "Type": "EXPORT_TO_REPOSITORY", "Paths": [], "Lifecycle": "EXECUTING"}]
    assert exported(named, fsx) == ()
    assert fsx.earlier == [], "FSx takes one task at a time"
    assert len(fsx.tasks) == 1


@pytest.mark.parametrize(
    ("fsx", "why", "num_tasks"),
    [
        (Fsx(), "all of it of the file system .* is linked to no bucket", 0),
        (Fsx("/s3"), "all but /s3 of the file system .* is linked to no bucket", 1),
        (Fsx("/", task="FAILED"), r"task-\d is FAILED", 1),
        (Fsx("/", failed=2), r"task-\d is SUCCEEDED with 2 files that failed", 1),
    ],
)
def test_what_is_not_exported_is_not_deleted_but_by_force_which_says_so(
    named: Named, fsx: Fsx, why: str, num_tasks: int
) -> None:
    with pytest.raises((UsageError, EngineError), match=why):
        exported(named, fsx)
    assert len(fsx.tasks) == num_tasks
    [lost] = exported(named, fsx, force=True)
    assert re.search(f"{SYSTEM} was not exported, and went with all its files: .*{why}", lost)


def test_a_file_system_that_fsx_does_not_describe_is_not_taken_for_gone(named: Named) -> None:
    def refuse(**_: Any) -> Any:
        raise AwsError("no answer")

    fsx = Fsx("/")
    fsx.describe_data_repository_associations = refuse  # type: ignore[method-assign]
    with pytest.raises(WindlassError, match="no answer"):
        exported(named, fsx)


@pytest.mark.parametrize("lifecycle", ["", "DELETING"])
def test_a_file_system_that_an_earlier_down_has_deleted_is_not_exported(named: Named, lifecycle: str) -> None:
    fsx = Fsx(lifecycle=lifecycle)
    assert (exported(named, fsx), fsx.tasks) == ((), [])


def test_a_down_that_was_killed_after_the_export_and_the_removal_of_the_link_goes_on(named: Named) -> None:
    exported(named, Fsx("/"))
    assert json.loads((named.folder.path / EXPORTED).read_bytes()) == [SYSTEM]
    assert exported(named, Fsx()) == ()


def test_terraform_links_the_folder_that_target_mounts_and_export_name() -> None:
    text = (Path(windlass.clusters.__file__).with_name("eks") / "fsx.tf").read_text()
    [path] = re.findall(r'^\s*fsx_path\s*=\s*"(.*)"$', text, re.MULTILINE)
    assert re.findall(r"^\s*file_system_path\s*=\s*(.*)$", text, re.MULTILINE) == ["local.fsx_path"]
    fsx = {"fsx_id": SYSTEM, "fsx_dns_name": "fs.example", "fsx_mount_name": "abcd"}
    entry = target(Outputs.of({**VALUES, **fsx}), parse_cluster(f"{TEXT}storage: {{fsx: {{}}}}\n"), "/k")
    assert path == FSX_PATH == entry["file_systems"][0]["path"] == "/", "the claim mounts all of the file system"
