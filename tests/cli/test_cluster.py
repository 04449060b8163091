"""`cluster` without Terraform and AWS; other tests are in tests/clusters."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pexpect
import pytest
from tests.cli.conftest import WINDLASS, Call, loaded_by
from tests.cli.test_json import hold
from tests.clusters.eks.test_outputs import VALUES
from tests.helpers.clock import FakeClock

from windlass.actions.targets import find_target
from windlass.cli.cluster import _agree_to_remove
from windlass.cli.cluster_progress import Progress
from windlass.cli.clustertext import audit_lines, plan_lines, removed_lines, status_lines
from windlass.clusters.audit.prices import priced
from windlass.clusters.audit.report import AuditReport, FoundObject, PriceKey, Unknown
from windlass.clusters.components.resources import Ref
from windlass.clusters.down import ClusterRemoved
from windlass.clusters.eks.contents import Contents
from windlass.clusters.eks.outputs import Outputs
from windlass.clusters.find import StageStarted, Warned, find
from windlass.clusters.holdings import Holding
from windlass.clusters.plan import ClusterPlan
from windlass.clusters.removal_checks import ClusterUsage
from windlass.clusters.security_groups import AddedRule
from windlass.clusters.status import ClusterStatus, ClusterSummary
from windlass.clusters.terraform import Action, Change
from windlass.clusters.terraform.events import (
    Diagnostic,
    ResourceDone,
    ResourceProgress,
    ResourceStarted,
    TerraformNote,
)
from windlass.clusters.working_folder import connect
from windlass.pricing.cluster import Estimate, PoolCost, Row
from windlass.pricing.table import embedded
from windlass.runs.context import here


def plain(text: str, *_colour: str, **_style: bool) -> str:
    return text


@pytest.fixture(autouse=True)
def _no_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)


# -- init -------------------------------------------------------------------------------------------------------------


def test_init_writes_a_file_that_can_be_read(windlass: Call) -> None:
    words = ("--name", "vision", "--region", "us-west-2", "--gpus", "g5.12xlarge:8", "--spot", "--efs")
    said = windlass("cluster", "init", *words, "--allow", "203.0.113.7/32")
    assert said.code == 0
    assert "Next: windlass cluster plan" in said.out
    cluster = find(None, here()).cluster
    assert (cluster.name, cluster.region, cluster.network.public_access) == ("vision", "us-west-2", ("203.0.113.7/32",))
    [pool] = cluster.gpus
    assert (pool.name, pool.instances, pool.max, pool.capacity) == ("g5-12xlarge", ("g5.12xlarge",), 8, "spot")


def test_init_overwrites_only_with_force(windlass: Call) -> None:
    hold("cluster-init", windlass("cluster", "init", "--region", "us-west-2", "-o", "json").json)
    again = windlass("cluster", "init", "--region", "us-east-1")
    assert (again.code, "exists already" in again.err) == (2, True)
    assert windlass("cluster", "init", "--region", "us-east-1", "--force").code == 0
    assert find(None, here()).cluster.region == "us-east-1"


def test_init_without_a_terminal_reports_the_defaults_used(windlass: Call) -> None:
    said = windlass("cluster", "init", "--region", "us-west-2", "--spot")
    assert (
        said.err == "no questions were asked, because there is no terminal; used: --name training, no --gpus, --efs\n"
    )
    words = ("--name", "vision", "--region", "us-west-2", "--gpus", "g5.12xlarge:8", "--spot", "--efs", "--force")
    assert windlass("cluster", "init", *words).err == ""


def test_init_does_not_ask_if_the_file_exists(windlass: Call, environ: dict[str, str]) -> None:
    Path("cluster.yaml").write_text("name: vision\nregion: us-west-2\n")
    program, *words = [*WINDLASS, "cluster", "init"]
    child = pexpect.spawn(program, words, env=dict(environ), encoding="utf-8", timeout=100, dimensions=(24, 250))
    child.expect(pexpect.EOF)
    assert "exists already" in str(child.before)
    assert "Name of the cluster" not in str(child.before)


def test_init_repeats_a_question_after_an_invalid_answer(windlass: Call, environ: dict[str, str]) -> None:
    program, *words = [*WINDLASS, "cluster", "init"]
    child = pexpect.spawn(program, words, env=dict(environ), encoding="utf-8", timeout=100)
    for question, wrong, said, right in (
        ("Name of the cluster", "V!", "is not a legal name", "vision"),
        ("AWS region", "mars", "is not an AWS region", "us-west-2"),
        ("GPU instance types", "g5.12xlrge:2", "did you mean g5.12xlarge", "g5.12xlarge:2 p4d.24xlarge:1"),
    ):
        child.expect(question)
        child.sendline(wrong)
        child.expect_exact(said)
        child.expect(question)
        child.sendline(right)
    for _ in ("Spot", "EFS"):
        child.expect("y/N|Y/n")
        child.sendline("")
    child.expect(pexpect.EOF)
    cluster = find(None, here()).cluster
    assert (cluster.name, cluster.region, [pool.max for pool in cluster.gpus]) == ("vision", "us-west-2", [2, 1])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpus", "g5.12xlrge:2"), "did you mean g5.12xlarge?"),
        (("--gpus", "g5.12xlarge:many"), "'many' is not a number of nodes"),
        (("--region", "mars"), "'mars' is not an AWS region"),
        (("--name", "V!"), "is not a legal name"),
        (("--allow", "0.0.0.0/0"), "opens the API server to the Internet"),
    ],
)
def test_invalid_answers_are_refused_and_nothing_is_written(windlass: Call, words: tuple[str, ...], said: str) -> None:
    done = windlass("cluster", "init", *words)
    assert (done.code, said in done.err) == (2, True), done.err
    assert not Path("cluster.yaml").exists()


# -- which cluster ----------------------------------------------------------------------------------------------------


def test_a_folder_without_a_cluster_file_says_how_to_write_one(windlass: Call) -> None:
    done = windlass("cluster", "up")
    assert (done.code, "windlass cluster init" in done.err) == (2, True)


def test_missing_file_is_not_read_as_a_cluster_name(windlass: Call) -> None:
    done = windlass("cluster", "plan", "vision.yaml")
    assert (done.code, "there is no file vision.yaml in" in done.err) == (2, True)


def test_unknown_cluster_name_lists_the_existing_clusters(windlass: Call, home: Path) -> None:
    Path("vision.yaml").write_text("name: vision\nregion: us-west-2\n")
    assert windlass("cluster", "export", "vision.yaml").code == 0
    (home / "clusters/vison").mkdir()  # as left by a command that finds no Terraform
    done = windlass("cluster", "down", "vison")
    assert (done.code, "clusters of this user: vision\n" in done.err) == (2, True)


def test_cluster_file_is_kept_with_the_cluster(windlass: Call, home: Path) -> None:
    Path("vision.yaml").write_text("name: vision\nregion: us-west-2\n")
    (home / "clusters/vision").mkdir(parents=True)
    for name in ("killed.json", "mine.tf"):
        (home / "clusters/vision" / name).write_text("")
    done = windlass("cluster", "export", "vision.yaml", "-o", "json")
    hold("cluster-export", done.json)
    names = {Path(one).name for one in done.json["files"]}
    assert {"cluster.tf", "terraform.tfvars.json", "README.txt"} < names
    assert not {"killed.json", "mine.tf"} & names, "it has not written these"
    (home / "clusters/vision/killed.json").unlink()
    Path("vision.yaml").unlink()
    assert find("vision", here()).cluster.region == "us-west-2"
    variables = json.loads((home / "clusters/vision/terraform.tfvars.json").read_text())
    assert (variables["name"], variables["endpoints"]) == ("vision", {})
    found = windlass("cluster", "ls", "-o", "json").json
    hold("cluster-ls", found)
    assert [(one["name"], one["state"]) for one in found] == [("vision", "configured")]


def test_one_damaged_folder_does_not_hide_the_other_clusters(windlass: Call, home: Path) -> None:
    for name in ("vision", "speech"):
        Path("cluster.yaml").write_text(f"name: {name}\nregion: us-west-2\n")
        assert windlass("cluster", "export").code == 0
    connect(find("vision", here()), Outputs.of(VALUES))
    damaged = home / "clusters/vision"
    (damaged / "outputs.json").write_text("{")
    assert states(windlass) == {"speech": "configured", "vision": "damaged"}
    said = windlass("cluster", "status", "vision", "--no-drift").err
    assert f"{damaged / 'outputs.json'} is damaged" in said
    assert "delete it" in said
    (damaged / "cluster.yaml").write_text("name: [")
    assert "vision cannot be read: windlass cluster status vision" in windlass("cluster", "ls").out
    assert f"{damaged / 'cluster.yaml'}:" in windlass("cluster", "status", "vision").err, "not that of this folder"


def test_copied_cluster_folder_is_not_a_second_cluster(windlass: Call, home: Path) -> None:
    Path("cluster.yaml").write_text("name: vision\nregion: us-west-2\n")
    assert windlass("cluster", "export").code == 0
    shutil.copytree(home / "clusters/vision", home / "clusters/speech")
    assert states(windlass) == {"speech": "damaged", "vision": "configured"}
    done = windlass("cluster", "down", "speech", "--yes")
    assert (done.code, "describes the cluster vision" in done.err) == (1, True)


def states(windlass: Call) -> dict[str, str]:
    return {one["name"]: one["state"] for one in windlass("cluster", "ls", "-o", "json").json}


def test_export_for_eksctl_lists_resources_that_eksctl_does_not_create(windlass: Call) -> None:
    Path("cluster.yaml").write_text("name: vision\nregion: us-west-2\nstorage: {efs: true}\n")
    done = windlass("cluster", "export", "--eksctl")
    assert (done.code, "note: eksctl does not make the EFS file system" in done.out) == (0, True)
    assert "kind: ClusterConfig" in Path("eksctl.yaml").read_text()
    assert windlass("cluster", "export", "--eksctl").code == 2


def test_created_cluster_is_a_target_without_a_targets_file(windlass: Call) -> None:
    Path("cluster.yaml").write_text("name: vision\nregion: us-west-2\n")
    assert windlass("cluster", "export").code == 0
    named = find(None, here())
    connect(named, Outputs.of(VALUES))
    target: Any = find_target("vision", here())
    assert (target.kind, target.kubeconfig) == ("kubernetes", str(named.kubeconfig))
    assert named.kubeconfig.stat().st_mode & 0o077 == 0


def test_commands_of_clusters_import_no_boto3_before_they_need_it(environ: dict[str, str]) -> None:
    loaded = loaded_by("cluster", "ls", environ=environ)
    assert not {name for name in loaded if name.split(".")[0] in ("boto3", "botocore", "rich")}


# -- text -------------------------------------------------------------------------------------------------------------

PRICE = Estimate(
    (Row("EKS control plane", None, 0.1, 73.0, False, ""), Row("EFS", None, None, None, True, "")),
    266.0,
    (
        PoolCost("a100", (Row("2 nodes of pool a100 (p4d.24xlarge)", None, 43.8, 31_974.0, False, ""),), 43.9),
        PoolCost("p6", (Row("4 nodes of pool p6 (p6-b300.48xlarge)", None, None, None, False, "no price"),), None),
    ),
    ("4 × p6-b300.48xlarge",),
    ("2026-02-09", "2026-02-09"),
)


def change(address: str, action: Action, reason: str = "") -> Change:
    return Change(address, address.partition(".")[0], action, {"password": "secret"}, {}, {}, reason)


def test_plan_lists_few_resources_and_counts_many() -> None:
    many = tuple(change(f"aws_subnet.private[{at}]", Action.CREATE) for at in range(20))
    few = (change("aws_eks_cluster.main", Action.REPLACE, "replace_because_tainted"),)
    plan = ClusterPlan("vision", "us-west-2", (*many, *few), (), "21 to add", 16.0, PRICE, "/home/x", True)
    lines = plan_lines(plan, plain)
    assert "  create 20 × aws_subnet" in lines
    assert "  replace aws_eks_cluster.main (replace_because_tainted)" in lines
    assert "AWS takes about 16 minutes for it" in lines
    assert any("reachable only from the VPC" in line for line in lines)
    assert "no price is known for: 4 × p6-b300.48xlarge; windlass prices update --region us-west-2" in lines
    assert "idle: 266 USD a month" in lines  # the unknown price is a pool's, which costs nothing while idle
    assert "2 nodes of pool a100 (p4d.24xlarge), with disks: 43.90 USD an hour" in lines
    assert "4 nodes of pool p6 (p6-b300.48xlarge), with disks: unknown" in lines


def test_question_before_a_removal_lists_the_data_that_is_deleted(capsys: pytest.CaptureFixture[str]) -> None:
    lost = "s3://b is deleted with all its objects"
    plan = ClusterPlan("vision", "us-west-2", (), (), "94 to destroy", 16.0, PRICE, "/home/x", True, (lost,))
    assert _agree_to_remove(plan, ClusterUsage(Contents()), yes=True)
    assert capsys.readouterr().err.splitlines() == [f"note: {lost}", "vision: 94 to destroy"]


def report(*found: FoundObject, unknown: tuple[Unknown, ...] = ()) -> AuditReport:
    return AuditReport("vision", "us-east-1", "123456789012", found, unknown, 1767225600.0, 45)


def nat(**more: Any) -> FoundObject:
    keys = (PriceKey("nat", "hour", "", 1.0),)
    return FoundObject(
        "ec2", "NAT gateway", "nat-1", "vision-a", "us-east-1", "tag", True, keys, remedy="aws …", **more
    )


def test_audit_is_priced_and_reports_unknown_services() -> None:
    unknown = Unknown("file system", "elasticfilesystem:DescribeFileSystems", "not allowed", "grant it")
    found = priced(report(nat(), unknown=(unknown,)), embedded())
    [leak] = found.leaks
    assert (leak.usd_per_month, found.usd_per_month, found.is_clean) == (32.85, 32.85, False)
    text = "\n".join(audit_lines(found, plain))
    assert "1 object left and 1 question without an answer, at least 32.85 USD a month" in text
    assert "remove:\n  aws …\n" in text
    assert "not known: file system: elasticfilesystem:DescribeFileSystems: not allowed (grant it)" in text


def test_used_objects_are_removed_after_their_users() -> None:
    kinds = ["VPC", "subnet", "NAT gateway", "network interface", "elastic IP address", "instance"]
    left = [replace(nat(), kind=kind, id=kind, remedy=f"delete {kind}") for kind in kinds]
    group = replace(nat(), service="autoscaling", kind="autoscaling group", id="g", remedy="delete group")
    found = priced(report(*left, group), embedded())
    text = "\n".join(audit_lines(found, plain))
    assert [line.removeprefix("  delete ") for line in text.splitlines() if line.startswith("  delete ")] == [
        "group",
        "NAT gateway",
        "instance",
        "elastic IP address",
        "network interface",
        "subnet",
        "VPC",
    ]


def test_kept_resources_are_not_leftovers() -> None:
    found = priced(report(nat(kept_on_purpose=True)), embedded())
    assert (found.is_clean, found.usd_per_month) == (True, 32.85)
    assert audit_lines(found, plain)[-1] == (
        "audit of vision in us-east-1, account 123456789012: nothing is left, but 1 kept on purpose "
        "(45 questions to AWS; other regions were not asked)"
    )


def test_possible_leftovers_that_bill_fail_the_audit() -> None:
    found = priced(report(nat(is_certain=False)), embedded())
    lines = audit_lines(found, plain)
    assert not found.is_clean
    assert "account 123456789012: 1 object that may be of it and bill, at least 0.00 USD" in lines[-1]
    assert "what is not of vision is left out once it has the tag windlass.dev/keep=true" in lines
    free = priced(report(replace(nat(is_certain=False), bills=False, price_keys=())), embedded())
    assert free.is_clean
    assert "nothing that bills is left, but 1 to look at" in audit_lines(free, plain)[-1]


def test_item_without_a_price_makes_the_row_unknown() -> None:
    one = FoundObject(
        "fsx",
        "file system",
        "fs-1",
        "fs-1",
        "us-east-1",
        "tag",
        True,
        (PriceKey("fsx-other", "GiB-month", "WINDOWS", 32.0),),
    )
    [leak] = priced(report(one), embedded()).leaks
    assert leak.usd_per_month is None


def test_leftovers_of_a_removal_are_listed_with_the_reason() -> None:
    left = Holding(
        "services", Ref("v1", "Service", "web", "ui"), "load balancer a", why="its controller is not running"
    )
    done = ClusterRemoved("vision", 94, 240.0, (), (left,), (), priced(report(), embedded()))
    hold("cluster-down", json.loads(json.dumps(to_json(done))))
    assert "  left: Service ui (its controller is not running)" in removed_lines(done, plain)


def to_json(view: Any) -> Any:
    from windlass.views.serialise import to_json as of_view

    return of_view(view)


# -- status -----------------------------------------------------------------------------------------------------------


def shown(**more: Any) -> str:
    summary = ClusterSummary("vision", "us-east-1", "1.35", "up", 99, "/home")
    return "\n".join(status_lines(ClusterStatus(summary, (), (), "", "vision", **more), plain))


def test_status_lists_what_was_not_compared() -> None:
    text = shown(notes=("Kubernetes 1.34 leaves standard support on 2026-12-02",))
    assert "nothing that was compared was changed in AWS by others\nnot compared: what controllers made" in text
    assert "note: Kubernetes 1.34 leaves standard support on 2026-12-02" in text


def test_added_rules_and_unchecked_resources_are_not_reported_as_unchanged() -> None:
    added = shown(added=(AddedRule("vision-node", "tcp 22 from 0.0.0.0/0", "aws ec2 revoke"),))
    assert "added in AWS by others:\n  vision-node: tcp 22 from 0.0.0.0/0\nremove:\n  aws ec2 revoke" in added
    silent = shown(unchecked=("rules of security groups: denied",))
    assert "not checked: rules of security groups: denied" in silent
    assert "was changed in AWS by others" not in added + silent


# -- progress ---------------------------------------------------------------------------------------------------------


def test_resource_is_named_when_created_and_periodically_before(capsys: pytest.CaptureFixture[str]) -> None:
    clock = FakeClock(0.0)
    show = Progress(plain, can_rewrite=False, is_brief=False, clock=clock)
    show(ResourceStarted("aws_eks_cluster.main", "create"))
    show(ResourceStarted("aws_kms_key.main", "create"))
    for clock.now in (10.0, 20.0, 31.0, 40.0):
        show(ResourceProgress("aws_eks_cluster.main", "create", clock.now))
    show(ResourceDone("aws_eks_cluster.main", "create", 600.0))
    assert capsys.readouterr().err.splitlines() == [
        "  … aws_eks_cluster.main, 31s and 1 more",
        "  made aws_eks_cluster.main (10m00s)",
    ]


def test_on_a_terminal_one_line_is_rewritten(capsys: pytest.CaptureFixture[str]) -> None:
    show = Progress(plain, can_rewrite=True, is_brief=False, clock=FakeClock())
    show(ResourceStarted("aws_kms_key.main", "create"))
    show(ResourceDone("aws_kms_key.main", "create", 9.0))
    assert capsys.readouterr().err == "\r\x1b[K  … aws_kms_key.main, 0.0s\r\x1b[K  made aws_kms_key.main (9.0s)\n"


def test_brief_progress_shows_only_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    show = Progress(plain, can_rewrite=False, is_brief=True)
    show(ResourceDone("aws_kms_key.main", "create", 9.0))
    show(Diagnostic("warning", "deprecated", file="a.tf", line=3))
    show(Diagnostic("error", "is in the exception"))
    show(StageStarted("planning"))
    show(Warned("duplicate: aws_nat_gateway vision-a: nat-2 is in no state and bills"))
    show(Diagnostic("warning", "Applied changes may be incomplete", "The plan was created with -target"))
    show(TerraformNote("\x1b[32mstopping\x1b[0m\n now"))
    show(SimpleNamespace())
    assert capsys.readouterr().err.splitlines() == [
        "  warning deprecated (a.tf:3)",
        "  warning duplicate: aws_nat_gateway vision-a: nat-2 is in no state and bills",
        "  stopping now",
    ]
