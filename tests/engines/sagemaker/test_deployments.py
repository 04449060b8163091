"""Models deployed to an emulated SageMaker: created once, ended by schedules, removed without a rest. Not AWS."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.engines.sagemaker.hosted import HOUR, SCHEDULE_ROLE, World, fields, hosted
from tests.engines.sagemaker.planning import BUCKET, ROLE
from tests.fakeaws.control_plane import ACCOUNT, REGION
from tests.fakeaws.hosting import NO_CAPACITY, NO_PING
from tests.servers.faulty import Fault, Request, fault_proxy, refusal

from windlass.engines.deployments import Deployment, DeploymentPhase
from windlass.engines.sagemaker.endpoint_requests import scheduled_at
from windlass.engines.sagemaker.hosting import Hosting
from windlass.engines.sagemaker.preflight import policies
from windlass.engines.sagemaker.service import NotLoggedIn, Unavailable
from windlass.errors import EngineError, UsageError, WindlassError
from windlass.spec.targets import SageMakerTarget

pytestmark = pytest.mark.slow  # the S3 server is a program of Go


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with hosted(tmp_path_factory.mktemp("hosted")) as made:
        yield made


@pytest.fixture
def world(account: World) -> World:
    account.reset()
    return account


def test_deployment_is_ready_listed_invoked_and_removed(world: World) -> None:
    made = world.deploy()
    assert (made.name, made.phase, made.ends_by) == ("digits", DeploymentPhase.READY, "schedule")
    answer = world.deployments().invoke("digits", b"[1, 2]", "application/json", "application/json", 5.0)
    assert (answer.status, answer.content_type, answer.body) == (200, "application/json", b"[1, 2]")
    [listed] = world.deployments(prices={"ml.m5.large": 0.115}, currency="EUR").list()
    assert (listed.owner, listed.run_id, listed.instance) == ("ada", "digits-7f3k2", "ml.m5.large")
    assert (listed.replicas, listed.ready_replicas) == (1, 1)
    assert (listed.price_per_hour, listed.currency) == (0.115, "EUR")
    assert listed.last_request_at == pytest.approx(world.hosting.time(), abs=300)
    assert listed.ends_at == pytest.approx(world.hosting.time() + 8 * HOUR, abs=300)
    removed = world.undeploy()
    assert [one.split()[0] for one in removed] == ["endpoint", "endpoint", "model", "archive", *["schedule"] * 4]
    assert world.objects() == []
    assert world.deployments().list() == ()


def test_place_is_the_account_and_the_region(world: World) -> None:
    assert world.deployments().place() == f"account {ACCOUNT}, {REGION}"


def test_schedules_exist_before_the_endpoint(world: World) -> None:
    seen: list[str] = []

    def on_call(operation: str) -> None:
        if operation == "CreateEndpoint":
            seen.extend(sorted(world.hosting.schedules))

    world.plane.on_call = on_call
    world.deploy()
    assert seen == [f"windlass-digits.{kind}" for kind in ("archive", "config", "endpoint", "model")]


def test_end_passes_without_this_machine(world: World) -> None:
    world.deploy()
    world.hosting.advance(8 * HOUR - 120)
    assert world.hosting.endpoints
    world.hosting.advance(HOUR)
    assert world.objects() == []


def test_end_of_endpoint_that_is_creating_is_repeated_until_aws_accepts_it(world: World) -> None:
    world.hosting.is_stuck = True
    deploy_killed_after(world, "created endpoint windlass", ends_at=world.hosting.time() + 600)
    world.hosting.advance(1800)
    [one] = world.hosting.endpoints.values()
    assert one["EndpointStatus"] == "Creating"
    world.hosting.advance(24 * HOUR)
    assert world.objects() == []


class Killed(BaseException):
    """The end of the process that deploys."""


def deploy_killed_after(world: World, progress: str, **fields: Any) -> None:
    """Deploys until a sentence about the progress begins with these words."""

    def on_progress(line: str) -> None:
        if line.startswith(progress):
            raise Killed

    deployments = world.deployments()
    with pytest.raises(Killed):
        deployments.deploy(deployments.plan(world.request(**fields)), on_progress)


def test_repeated_deploy_keeps_endpoint_and_end(world: World) -> None:
    first = world.deploy()
    world.hosting.advance(HOUR)
    again = world.deploy()
    assert (again.ends_at, again.phase) == (first.ends_at, DeploymentPhase.READY)
    assert world.hosting.created == ["windlass-digits"]


def test_deployment_of_that_name_with_another_request_is_refused(world: World) -> None:
    world.deploy()
    before = world.objects()
    with pytest.raises(UsageError, match="with another request") as refused:
        world.deploy(world.request(instance="ml.m5.xlarge"))
    assert refused.value.hint.endswith("windlass undeploy digits --on aws")
    assert world.objects() == before


@pytest.mark.parametrize(("call", "seconds"), [("CreateSchedule", 8 * HOUR), ("GetSchedule", None)])
def test_of_two_deploys_at_once_the_later_one_fails(world: World, call: str, seconds: float | None) -> None:
    ends_at = None if seconds is None else world.hosting.time() + seconds
    first: list[Deployment] = []

    def on_call(operation: str) -> None:
        if operation == call:
            world.plane.on_call = lambda operation: None
            first.append(world.deploy(world.request(instance="ml.m5.xlarge", ends_at=ends_at)))

    world.plane.on_call = on_call
    with pytest.raises(WindlassError, match="another deploy"):
        world.deploy(world.request(ends_at=ends_at))
    assert [one.phase for one in first] == [DeploymentPhase.READY]
    assert [(one.phase, one.instance) for one in world.deployments().list()] == [
        (DeploymentPhase.READY, "ml.m5.xlarge")
    ]
    assert world.hosting.created == ["windlass-digits"]
    assert len(world.objects()) == (4 if seconds is None else 8)


def test_endpoint_of_others_is_neither_used_nor_deleted(world: World) -> None:
    world.deploy(world.request("mine"))
    world.hosting.endpoints["windlass-digits"] = {
        **world.hosting.endpoints["windlass-mine"],
        "EndpointName": "windlass-digits",
        "EndpointConfigName": "theirs",
    }
    with pytest.raises(UsageError, match="was not created by"):
        world.deploy()
    with pytest.raises(UsageError, match="no deployment"):
        world.undeploy()
    assert [one.name for one in world.deployments().list()] == ["mine"]
    assert "windlass-digits" in world.hosting.endpoints


@pytest.mark.parametrize(
    ("reason", "log", "message", "hint"),
    [
        (NO_PING, None, "has no log group", "program `serve`"),
        (NO_PING, ["starting", "ImportError: no module named digits"], "ImportError: no module", "aws logs tail"),
        (NO_CAPACITY, None, "InsufficientInstanceCapacity", "another instance type"),
    ],
)
def test_failed_endpoint_is_removed_with_first_cause(
    world: World, reason: str, log: list[str] | None, message: str, hint: str
) -> None:
    world.hosting.fails_with = reason
    if log is not None:
        world.hosting.logs["windlass-digits"] = log
    with pytest.raises(EngineError, match=message) as failed:
        world.deploy()
    assert hint in failed.value.hint
    assert world.objects() == []


def test_missing_role_is_the_cause(world: World) -> None:
    world.plane.account.roles = {"ends": policies.trust_policy(policies.SCHEDULER)}
    with pytest.raises(EngineError, match="Could not assume role"):
        world.deploy()
    assert world.objects() == []


LOGIN = f"arn:aws:iam::{ACCOUNT}:user/ada"


@pytest.fixture
def bounded(world: World) -> World:
    """An account whose login and roles have the printed policies alone."""
    target = SageMakerTarget(**fields())
    account = world.plane.account
    account.roles = {"training": policies.trust_policy(), "ends": policies.trust_policy(policies.SCHEDULER)}
    account.policies = {
        LOGIN: policies.deployer_policy(target, ACCOUNT, ROLE, SCHEDULE_ROLE),
        SCHEDULE_ROLE: policies.schedule_policy(target, ACCOUNT),
    }
    account.caller = LOGIN
    return world


def test_printed_policies_suffice(bounded: World) -> None:
    bounded.deploy()
    assert bounded.deployments().invoke("digits", b"1", "text/csv", "text/csv", 5.0).status == 200
    assert [one.last_request_at for one in bounded.deployments().list()] != [None]
    assert bounded.undeploy()
    bounded.deploy()
    bounded.hosting.advance(9 * HOUR)
    assert bounded.objects() == []


@pytest.mark.parametrize("removed", ["Models", "ListOfModels", "Schedules", "ListOfSchedules", "Role", "ScheduleRole"])
def test_each_statement_is_needed(bounded: World, removed: str) -> None:
    whole = bounded.plane.account.policies[LOGIN]
    left = [one for one in whole["Statement"] if one["Sid"] != removed]
    bounded.plane.account.policies[LOGIN] = {**whole, "Statement": left}
    with pytest.raises(EngineError, match="not authorized to perform"):
        bounded.deploy()


def test_quota_is_the_cause(world: World) -> None:
    world.plane.account.quotas = {"ml.m5.large for endpoint usage": 0}
    with pytest.raises(EngineError, match=r"service limit 'ml.m5.large for endpoint usage' is 0"):
        world.deploy()
    assert world.objects() == []


def test_role_that_scheduler_cannot_assume_creates_nothing(world: World) -> None:
    world.plane.account.roles = {"training": policies.trust_policy(), "ends": policies.trust_policy()}
    with pytest.raises(EngineError, match="must allow AWS EventBridge Scheduler to assume") as refused:
        world.deploy()
    assert "--keep" in refused.value.hint
    assert world.hosting.created == []
    assert world.objects() == []


def test_endpoint_stuck_in_creating_is_given_up_and_ended_by_scheduler(world: World) -> None:
    world.hosting.is_stuck = True
    with pytest.raises(EngineError, match="still Creating after 35 minutes") as stuck:
        world.deploy()
    assert "left: endpoint windlass-digits" in stuck.value.message
    assert "Cannot update in-progress endpoint" in stuck.value.message
    assert "for 24 hours, also while this machine is off" in stuck.value.hint
    world.hosting.advance(24 * HOUR)
    assert world.objects() == []


def test_failed_deploy_waits_until_aws_accepts_the_deletion(world: World) -> None:
    world.hosting.fails_with = NO_CAPACITY
    refused = "Cannot update in-progress endpoint"
    world.plane.refuse("DeleteEndpoint", "ValidationException", refused, times=40)
    with pytest.raises(EngineError, match="InsufficientInstanceCapacity"):
        world.deploy()
    assert any(refused in line for line in world.said)
    assert world.objects() == []


def test_denied_deletion_is_reported_at_once_with_what_is_left(world: World) -> None:
    world.deploy()
    world.plane.refuse("DeleteEndpoint", "AccessDeniedException", "not authorized", times=1)
    with pytest.raises(EngineError, match=r"left: endpoint windlass-digits, .*not authorized"):
        world.undeploy()
    assert world.undeploy()
    assert world.objects() == []


def test_lost_answers_create_one_endpoint_and_leave_nothing(world: World) -> None:
    lost: set[str] = set()

    def fault(request: Request) -> Fault:
        operation = request.operation or f"{request.method} {request.path}"
        if operation in lost or operation.startswith(("Describe", "List", "Get", "GET")):
            return Fault()
        lost.add(operation)
        return Fault(loses_answer=True)

    with pytest.MonkeyPatch.context() as patch, fault_proxy(world.plane._port) as proxy:
        proxy.fault = fault
        for name in world.plane.environ:
            if name.startswith("AWS_ENDPOINT_URL"):
                patch.setenv(name, proxy.endpoint)
        before, world.client = world.client, Hosting(REGION, ACCOUNT)  # with the repetitions of botocore
        try:
            assert world.deploy().phase is DeploymentPhase.READY
            assert world.undeploy()
        finally:
            world.client = before
    assert {"CreateModel", "CreateEndpointConfig", "CreateEndpoint", "DeleteEndpoint", "DeleteModel"} <= lost
    assert "POST /schedules/windlass-digits.endpoint" in lost
    assert world.hosting.created == ["windlass-digits"]
    assert world.objects() == []


def test_throttled_calls_are_repeated(world: World) -> None:
    for operation in ("CreateModel", "CreateEndpoint", "DescribeEndpoint", "DeleteEndpoint", "CreateSchedule"):
        world.plane.refuse(operation, "ThrottlingException", "Rate exceeded", times=3)
    assert world.deploy().phase is DeploymentPhase.READY
    assert world.undeploy()
    assert world.objects() == []


def test_deploy_without_answers_says_what_is_unknown_and_ends_by_schedule(world: World) -> None:
    def silent(operation: str) -> None:
        if "CreateEndpoint" in world.plane.calls:
            world.plane.refuse(operation, "InternalFailure", "no answer", status=500)

    world.plane.calls.clear()
    world.plane.on_call = silent
    with pytest.raises(EngineError, match="it is unknown what is left") as unknown:
        world.deploy()
    assert "its schedules, which were created first, also end it" in unknown.value.hint
    world.plane.on_call = lambda operation: None
    world.plane.errors.clear()
    world.hosting.advance(9 * HOUR)
    assert world.hosting.created == []
    world.hosting.advance(25 * HOUR)
    assert world.objects() == []


@pytest.mark.parametrize("operation", ["ListEndpoints", "ListModels", "ListSchedules", "DescribeEndpoint"])
def test_unanswered_list_is_not_an_empty_one(world: World, operation: str) -> None:
    world.deploy()
    world.plane.refuse(operation, "InternalFailure", "no answer", status=500)
    with pytest.raises(Unavailable):
        world.deployments().list()


def test_ready_endpoint_is_kept_where_its_tags_cannot_be_read(world: World) -> None:
    world.plane.refuse("ListTags", "AccessDeniedException", "not authorized")
    with pytest.raises(EngineError, match="not authorized"):
        world.deploy()
    assert world.deploy().phase is DeploymentPhase.READY
    assert world.hosting.created == ["windlass-digits"]


def test_metrics_without_answer_leave_last_request_unknown(world: World) -> None:
    world.deploy()
    [unused] = world.deployments().list()
    assert unused.last_request_at == unused.created_at
    world.plane.refuse("GetMetricData", "AccessDeniedException", "not authorized")
    assert world.deployments().list()[0].last_request_at is None


def test_login_of_another_account_does_not_find_the_deployment_absent(world: World) -> None:
    world.client = Hosting(REGION, "999999999999")
    try:
        with pytest.raises(NotLoggedIn, match="the target is 999999999999"):
            world.undeploy()
    finally:
        world.client = world.new_client()


DENIED = refusal(403, "AccessDenied", "Access Denied.")
OTHER_STORE = f"s3://{BUCKET}/other"


@pytest.mark.parametrize("hours", [None, 8])
def test_undeploy_by_a_target_with_another_store_removes_the_archive(world: World, hours: int | None) -> None:
    world.deploy(world.request(ends_at=None if hours is None else world.hosting.time() + hours * HOUR))
    [key] = world.keys()
    removed = world.deployments(name="second", storage=OTHER_STORE).undeploy("digits", world.said.append)
    assert f"archive s3://{BUCKET}/{key.removesuffix('model.tar.gz')}" in removed
    assert world.objects() == []


def test_archive_in_another_store_that_is_kept_is_reported(world: World) -> None:
    world.deploy(world.request(ends_at=None))
    second = world.deployments(name="second", storage=OTHER_STORE)
    with pytest.MonkeyPatch.context() as patch, fault_proxy(world.s3_port) as proxy:
        proxy.fault = lambda request: DENIED if request.method in ("POST", "DELETE") else Fault()
        patch.setenv("AWS_ENDPOINT_URL_S3", proxy.endpoint)
        with pytest.raises(EngineError, match=r"left: model .*, archive .*Access Denied"):
            second.undeploy("digits", world.said.append)
    second.undeploy("digits", world.said.append)
    assert world.objects() == []


def test_deployment_with_an_archive_in_another_store_is_another_request(world: World) -> None:
    world.deploy()
    with pytest.raises(UsageError, match="with another request"):
        world.deploy(storage=OTHER_STORE)
    world.hosting.advance(9 * HOUR)
    assert world.objects() == []


def test_end_that_another_target_hands_over_includes_the_archive(world: World) -> None:
    world.hosting.is_stuck = True
    deploy_killed_after(world, "created endpoint windlass")
    with pytest.raises(EngineError, match="left: endpoint") as left:
        world.deployments(storage=OTHER_STORE).undeploy("digits", world.said.append)
    assert "EventBridge Scheduler repeats" in left.value.hint
    world.hosting.advance(25 * HOUR)
    assert world.objects() == []


@pytest.mark.parametrize("expression", ["rate(1 day)", "cron(0 8 * * ? *)"])
def test_end_of_a_schedule_edited_to_repeat_is_unknown_and_kept(world: World, expression: str) -> None:
    world.deploy()
    schedule = world.hosting.schedules["windlass-digits.endpoint"]
    schedule["ScheduleExpression"] = expression
    [found] = world.deployments().list()
    assert (found.ends_at, found.ends_by) == (None, "schedule")
    with pytest.raises(UsageError, match=re.escape(f"windlass-digits.endpoint has the expression {expression}")):
        world.deploy()
    assert world.hosting.schedules["windlass-digits.endpoint"] is schedule
    assert world.undeploy()
    assert world.objects() == []


def test_end_in_the_time_zone_of_its_schedule_is_kept_by_a_repeated_deploy(world: World) -> None:
    world.deploy()
    schedule = world.hosting.schedules["windlass-digits.endpoint"]
    schedule |= {"ScheduleExpression": "at(2040-01-02T09:00:00)", "ScheduleExpressionTimezone": "Asia/Tokyo"}
    again = world.deploy()
    assert again.ends_at == datetime(2040, 1, 2, tzinfo=UTC).timestamp()
    assert scheduled_at(world.hosting.schedules["windlass-digits.endpoint"]) == again.ends_at


def test_files_and_folders_of_others_in_the_store_are_left(world: World) -> None:
    others = ("README", "digits/README", "digits/older/model.tar.gz")
    for name in others:
        world.s3.put_object(Bucket=BUCKET, Key=f"windlass/deployments/{name}", Body=b"")
    world.deploy()
    world.undeploy()
    assert world.objects() == [f"windlass/deployments/{name}" for name in others]
    assert world.deployments().list() == ()


def test_object_that_is_created_again_and_again_is_reported_as_left(world: World) -> None:
    world.deploy(world.request(ends_at=None))
    [(name, model)] = world.hosting.models.items()

    def create_again(operation: str) -> None:
        if operation == "ListModels":
            world.hosting.models[name] = model

    world.plane.on_call = create_again
    with pytest.raises(EngineError, match=f"left: model {name}\n"):
        world.undeploy()


@pytest.mark.parametrize("name", ["foo_bar", 60 * "a"])
def test_objects_whose_names_no_deployment_has_are_not_listed(world: World, name: str) -> None:
    world.deploy()
    schedule = world.hosting.schedules["windlass-digits.endpoint"]
    world.hosting.schedules[f"windlass-{name}"] = {**schedule, "Name": f"windlass-{name}"}
    world.s3.put_object(Bucket=BUCKET, Key=f"windlass/deployments/{name}/model.tar.gz", Body=b"")
    assert [one.name for one in world.deployments().list()] == ["digits"]


def test_model_that_can_no_longer_be_packed_leaves_nothing(world: World) -> None:
    link = world.model / "passwd"

    def on_progress(line: str) -> None:
        if line.startswith("EventBridge Scheduler deletes"):
            link.symlink_to("/etc/passwd")

    deployments = world.deployments()
    try:
        with pytest.raises(WindlassError, match="leads out of"):
            deployments.deploy(deployments.plan(world.request()), on_progress)
    finally:
        link.unlink()
    assert world.objects() == []


@pytest.mark.parametrize("operation", ["CreateModel", "DescribeEndpoint"])
def test_failure_of_a_second_deploy_keeps_the_endpoint_of_the_first(world: World, operation: str) -> None:
    deploy_killed_after(world, "created endpoint windlass")
    before = world.objects()

    def refuse(line: str) -> None:
        if line.startswith("EventBridge Scheduler deletes"):
            world.plane.refuse(operation, "AccessDeniedException", "not authorized", times=1)

    deployments = world.deployments()
    with pytest.raises(EngineError, match="not authorized") as refused:
        deployments.deploy(deployments.plan(world.request()), refuse)
    assert refused.value.message.endswith("endpoint windlass-digits, which existed before, is kept")
    assert world.objects() == before
    assert world.deploy().phase is DeploymentPhase.READY


def test_endpoint_of_a_killed_deploy_that_fails_is_removed_by_the_next(world: World) -> None:
    world.hosting.fails_with = NO_CAPACITY
    deploy_killed_after(world, "created endpoint windlass")
    with pytest.raises(EngineError, match="InsufficientInstanceCapacity"):
        world.deploy()
    assert world.objects() == []


def test_leftovers_are_listed_and_removed(world: World) -> None:
    deploy_killed_after(world, "created endpoint configuration")
    [left] = world.deployments().list()
    assert (left.phase, left.owner, left.ends_by) == (DeploymentPhase.FAILED, "ada", "schedule")
    assert [one.split()[0] for one in left.objects] == ["endpoint", "model", "archive", *["schedule"] * 4]
    assert world.undeploy()
    assert world.objects() == []


def test_killed_upload_is_listed_until_its_end(world: World) -> None:
    deploy_killed_after(world, "uploaded")
    [left] = world.deployments().list()
    assert [one.split()[0] for one in left.objects] == ["archive", *["schedule"] * 4]
    world.hosting.advance(8 * HOUR + 300)
    assert world.deployments().list()[0].phase is DeploymentPhase.DELETING
    world.hosting.advance(25 * HOUR)
    assert world.objects() == []


def test_deleted_schedule_is_reported(world: World) -> None:
    world.deploy()
    world.hosting._DeleteSchedule({"Name": "windlass-digits.endpoint"})
    [found] = world.deployments().list()
    assert (found.ends_at, found.ends_by) == (None, "")
    assert found.cause == "its schedule does not exist: nothing ends it"


def test_kept_deployment_needs_no_schedule(world: World) -> None:
    made = world.deploy(world.request(ends_at=None), schedule_role=None)
    assert (made.ends_at, made.ends_by, made.cause) == (None, "", "")
    assert world.hosting.schedules == {}
    assert world.undeploy()
    assert world.objects() == []


def test_serverless_endpoint_has_no_instances(world: World) -> None:
    made = world.deploy(world.request(instance="", is_serverless=True, memory_bytes=3 << 30))
    [config] = world.hosting.configs.values()
    assert config["ProductionVariants"][0]["ServerlessConfig"]["MemorySizeInMB"] == 3072
    assert (made.instance, made.price_per_hour) == ("serverless", None)


def test_requests_to_unknown_deployments_are_refused(world: World) -> None:
    for call in (
        lambda: world.undeploy("letters"),
        lambda: world.deployments().invoke("letters", b"", "text/csv", "text/csv", 5.0),
    ):
        with pytest.raises(UsageError, match="no deployment letters on aws"):
            call()


def test_endpoint_that_is_creating_is_not_unknown(world: World) -> None:
    deploy_killed_after(world, "created endpoint windlass")
    with pytest.raises(EngineError, match="its endpoint is Creating"):
        world.deployments().invoke("digits", b"", "text/csv", "text/csv", 5.0)


def test_plan_names_requests_and_touches_nothing(world: World) -> None:
    world.plane.calls.clear()
    plan = world.deployments(prices={"ml.m5.large": 0.115}).plan(world.request(replicas=2))
    assert world.plane.calls == {}
    assert plan.price_per_hour == 0.23
    assert len(plan.objects) == 7
    target = plan.objects[0]["Target"]
    assert isinstance(target, dict)
    assert target["Arn"] == "arn:aws:scheduler:::aws-sdk:sagemaker:deleteEndpoint"
    assert target["RoleArn"] == SCHEDULE_ROLE
    assert target["RetryPolicy"]["MaximumEventAgeInSeconds"] == 86_400
    assert plan.objects[4]["ExecutionRoleArn"] == ROLE
    assert any(
        line.startswith("create model windlass-digits-") and "/pytorch-inference:" in line for line in plan.steps
    )


IMAGES = "123456789012.dkr.ecr.us-east-1.amazonaws.com"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image": f"{IMAGES}/pytorch-training:2.10-cpu"}, "is a training image"),
        ({"image": "pytorch/pytorch:2.10"}, "is not in ECR"),
        ({"image": f"{IMAGES.replace('east', 'west')}/digits:1"}, "SageMaker pulls from us-east-1"),
        ({"instance": ""}, "needs an instance type"),
        ({"instance": "ml.g55.xlarge"}, "there is no instance type"),
        ({"instance": "ml.m5.large", "gpus": 1}, "fewer than 1 GPUs"),
        ({"is_serverless": True, "instance": "", "gpus": 1}, "no GPUs"),
        ({"is_serverless": True, "instance": "", "memory_bytes": 8 << 30}, "at most 6 GiB"),
        ({"is_serverless": True, "instance": "", "cpus": 2.0}, "in proportion to their memory"),
        ({"is_serverless": True, "instance": "", "replicas": 2}, "have no replicas"),
        ({"is_serverless": True, "instance": "ml.m5.large"}, "no instance type"),
        ({"cpus": 2.0}, "those of ml.m5.large"),
        ({"memory_bytes": 4 << 30}, "those of ml.m5.large"),
        ({"uses_kserve": True}, "KServe"),
        ({"max_replicas": 3}, "autoscaling"),
        ({"secrets": ("login",)}, "runs with the role"),
        ({"server_options": ("--batch", "8")}, "server of their own"),
        ({"source": "s3://bucket/model"}, "from one archive"),
        ({"ends_at": 1.0}, "in the past"),
    ],
)
def test_plan_refuses_what_sagemaker_cannot_do(world: World, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        world.deployments().plan(world.request(**fields))


def test_plan_without_a_role_of_schedules_is_refused(world: World) -> None:
    with pytest.raises(UsageError, match="nothing on AWS would end") as refused:
        world.deployments(schedule_role=None).plan(world.request())
    assert "--keep" in refused.value.hint


def test_changed_model_is_refused_after_the_plan(world: World, tmp_path: Path) -> None:
    deployments = world.deployments()
    plan = deployments.plan(world.request())
    (world.model / "weights.bin").write_bytes(b"others")
    try:
        with pytest.raises(UsageError, match="changed since the plan"):
            deployments.deploy(plan, world.said.append)
    finally:
        (world.model / "weights.bin").write_bytes(b"weights")
    assert world.objects() == []
