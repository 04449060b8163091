"""`cluster down` checks a cluster by the Terraform state, not by files of this machine, before it removes anything."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.clusters.components.fakecluster import FakeCluster
from tests.clusters.storage.test_fsx_export import SYSTEM, Fsx

from windlass.clusters.audit.scope import KEEP
from windlass.clusters.aws import Aws, NotThere
from windlass.clusters.down import down
from windlass.clusters.eks.contents import Contents, contents
from windlass.clusters.find import ManagedCluster
from windlass.clusters.removal_checks import find_usage, require_exported, require_idle, sagemaker_use
from windlass.clusters.storage.bucket import Bucket
from windlass.clusters.tags import OWNER
from windlass.clusters.terraform import Plan, PlanSummary, StopRequests
from windlass.clusters.terraform.folder import ClusterFolder
from windlass.clusters.terraform.state import state_resources
from windlass.engines.kubernetes.objects.layout import RUN_LABEL
from windlass.errors import UsageError
from windlass.runs.context import Context
from windlass.spec.parse import parse_cluster

TEXT = "name: vision\nregion: us-west-2\n"
NAMED = ManagedCluster(parse_cluster(TEXT), TEXT, ClusterFolder.of(Path("/nowhere"), "vision"))
WITH_EFS = Contents(has_cluster=True, efs_ids=("fs-1",))
LOGIN = """#!/bin/sh
echo '{"apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential", "status": {"token": "t"}}'
"""
"""Stand-in for `aws eks get-token`."""


def account(size_bytes: int) -> Aws:
    """Returns an account whose file system contains this many bytes."""
    efs = SimpleNamespace(
        describe_file_systems=lambda FileSystemId: {"FileSystems": [{"SizeInBytes": {"Value": size_bytes}}]}  # noqa: N803
    )
    made: Any = SimpleNamespace(client=lambda _name: efs)
    return cast("Aws", made)


def test_active_runs_are_reported() -> None:
    runs = tuple(f"digits-{at} is training" for at in range(7))
    with pytest.raises(UsageError, match=r"7 runs or services use vision: digits-0 is training; .*; and 2 more"):
        require_idle(NAMED, runs)


def test_unreachable_cluster_does_not_count_as_idle() -> None:
    with pytest.raises(
        UsageError, match=r"could not be checked \(its API server .* refused\): whether runs use it"
    ) as refused:
        require_idle(NAMED, (), "its API server does not answer: refused")
    assert "--force" in (refused.value.hint or "")


def test_idle_cluster_can_be_removed() -> None:
    require_idle(NAMED, ())


def test_efs_with_user_files_is_not_deleted_without_force() -> None:
    with pytest.raises(UsageError, match=r"fs-1 has 12,000\.0 MB of files, which would be deleted"):
        require_exported(WITH_EFS, account(12_000_000_000))


@pytest.mark.parametrize("found", [Contents(), Contents(has_cluster=True), WITH_EFS])
def test_empty_or_missing_file_system_does_not_block_removal(found: Contents) -> None:
    require_exported(found, account(6144))


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "aws").write_text(LOGIN)
    (tmp_path / "bin" / "aws").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    with closing(FakeCluster()) as cluster:
        yield cluster


def state(**types: dict[str, Any]) -> list[Any]:
    """Returns a state with one resource of each given type."""
    made = [
        {"mode": "managed", "type": type, "name": "main", "instances": [{"attributes": values}]}
        for type, values in types.items()
    ]
    return state_resources(json.dumps({"version": 4, "resources": made}))


def eks(url: str) -> dict[str, Any]:
    return {"id": "vision", "endpoint": url, "certificate_authority": [{"data": "Q0E="}]}


def test_runs_of_others_are_found_from_a_home_without_outputs(
    named: ManagedCluster, context: Context, api: FakeCluster
) -> None:
    labels = {"labels": {RUN_LABEL: "digits-ab12"}}
    api.put("v1", "Pod", "digits-0", "training", metadata=labels, status={"phase": "Running"})
    api.put("v1", "Service", "web", "default", spec={"type": "LoadBalancer"})
    url = f"http://127.0.0.1:{api.port}"
    found = find_usage(named, contents(state(aws_eks_cluster=eks(url)), named.cluster), context)
    assert found.active == ("training/digits-0 of run digits-ab12",)
    assert [str(one.ref) for one in found.holdings] == ["Service web in default"]
    assert found.unchecked == ""


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (eks("http://127.0.0.1:9"), "its API server does not answer"),
        ({"id": "vision", "endpoint": None, "certificate_authority": []}, "has no address of its API server"),
    ],
)
@pytest.mark.usefixtures("api")
def test_cluster_that_cannot_be_queried_does_not_count_as_empty(
    named: ManagedCluster, context: Context, made: dict[str, Any], why: str
) -> None:
    found = find_usage(named, contents(state(aws_eks_cluster=made), named.cluster), context)
    assert why in found.unchecked


def test_state_without_a_cluster_needs_no_query(named: ManagedCluster, context: Context) -> None:
    assert find_usage(named, Contents(efs_ids=("fs-1",)), context).unchecked == ""


def test_run_that_starts_during_the_export_ends_the_removal(
    named: ManagedCluster, context: Context, api: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drain would delete its volumes, and the export lacks files that it has written since."""

    class UsedFsx(Fsx):
        """FSx whose export takes so long that a run starts meanwhile."""

        def create_data_repository_task(self, **asked: Any) -> Any:
            labels = {"labels": {RUN_LABEL: "digits-ab12"}}
            api.put("v1", "Pod", "digits-0", "training", metadata=labels, status={"phase": "Running"})
            return super().create_data_repository_task(**asked)

    made = state(aws_eks_cluster=eks(f"http://127.0.0.1:{api.port}"), aws_fsx_lustre_file_system={"id": SYSTEM})
    plan = Plan(Path("x"), PlanSummary(()), True, "")
    terraform: Any = SimpleNamespace(init=lambda: None, state=lambda: made, plan=lambda **_: plan, apply=pytest.fail)
    fsx = UsedFsx("/")
    api.put("v1", "Service", "web", "default", spec={"type": "LoadBalancer"})
    monkeypatch.setattr(ManagedCluster, "aws", lambda *_: nullcontext(fsx.aws()))
    monkeypatch.setattr(ManagedCluster, "terraform", lambda *_: terraform)
    monkeypatch.setattr("windlass.clusters.storage.bucket.find_bucket", lambda *_, **_more: Bucket("b", exists=False))
    with StopRequests() as stop, pytest.raises(UsageError, match="use vision: training/digits-0 of run digits-ab12"):
        down(named, context, lambda _event: None, lambda *_: True, stop)
    assert len(fsx.tasks) == 1
    assert api.changes == [], "it was not drained"


ROLE = "arn:aws:iam::1:role/vision-sagemaker"


def with_sagemaker_role() -> Contents:
    role = {
        "mode": "managed",
        "type": "aws_iam_role",
        "name": "sagemaker",
        "instances": [{"index_key": 0, "attributes": {"id": "vision-sagemaker", "arn": ROLE}}],
    }
    return contents(state_resources(json.dumps({"version": 4, "resources": [role]})), parse_cluster(TEXT))


class SageMaker:
    """An account's jobs by kind and name (status, and role or model), endpoints (configuration), configurations, models
    (role).
    """

    def __init__(
        self,
        jobs: dict[tuple[str, str], tuple[str, str]] | None = None,
        endpoints: dict[str, str] | None = None,
        configs: dict[str, dict[str, Any]] | None = None,
        models: dict[str, str] | None = None,
        tags: dict[str, dict[str, str]] | None = None,
    ) -> None:
        self._jobs, self._endpoints, self._configs = jobs or {}, endpoints or {}, configs or {}
        self._models, self._tags = models or {}, tags or {}

    def client(self, _name: str) -> Any:
        return SimpleNamespace(
            get_paginator=lambda name: SimpleNamespace(paginate=functools.partial(self._pages, name)),
            describe_training_job=lambda **asked: {"RoleArn": self._job("Training", asked)},
            describe_processing_job=lambda **asked: {"RoleArn": self._job("Processing", asked)},
            describe_transform_job=lambda **asked: {"ModelName": self._job("Transform", asked)},
            describe_endpoint=lambda EndpointName: {"EndpointConfigName": self._endpoints[EndpointName]},  # noqa: N803
            describe_endpoint_config=lambda EndpointConfigName: of(self._configs, EndpointConfigName),  # noqa: N803
            describe_model=lambda ModelName: {"ExecutionRoleArn": of(self._models, ModelName)},  # noqa: N803
            list_tags=lambda ResourceArn: {"Tags": self._tags.get(ResourceArn, {})},  # noqa: N803
        )

    def _job(self, kind: str, asked: dict[str, str]) -> str:
        """Returns the role or the model of a job."""
        return self._jobs[kind, asked[f"{kind}JobName"]][1]

    def _pages(self, operation: str, StatusEquals: str = "") -> list[dict[str, Any]]:  # noqa: N803
        if not StatusEquals:
            return [{"Endpoints": [{"EndpointName": name, "EndpointArn": name}]} for name in self._endpoints]
        kind = operation.split("_")[1].capitalize()
        names = [name for (of, name), (state, _) in self._jobs.items() if (of, state) == (kind, StatusEquals)]
        return [{f"{kind}JobSummaries": [{f"{kind}JobName": name}]} for name in names]

    def use(self, found: Contents) -> tuple[str, ...]:
        aws: Any = self
        return sagemaker_use("vision", found, aws)


def of(known: dict[str, Any], name: str) -> Any:
    if name not in known:
        raise NotThere(f"no {name}")
    return known[name]


def variants(*models: str) -> dict[str, Any]:
    return {"ProductionVariants": [{"ModelName": one} for one in models]}


def test_jobs_and_endpoints_of_others_with_the_role_of_the_cluster_are_active() -> None:
    account = SageMaker(
        jobs={
            ("Training", "digits-ab12-1"): ("InProgress", ROLE),
            ("Training", "old-1"): ("Stopping", ROLE),
            ("Training", "theirs"): ("InProgress", "another"),
            ("Processing", "features"): ("InProgress", ROLE),
            ("Transform", "predict"): ("Stopping", "digits"),
            ("Transform", "theirs"): ("InProgress", "other"),
            ("Transform", "unknown"): ("InProgress", "gone"),
        },
        endpoints={"digits": "digits", "other": "other"},
        configs={"digits": variants("digits", "digits"), "other": variants("other")},
        models={"digits": ROLE, "other": "another"},
    )
    assert account.use(with_sagemaker_role()) == (
        "the training job digits-ab12-1 is InProgress",
        "the training job old-1 is Stopping",
        "the processing job features is InProgress",
        "the transform job predict is Stopping",
        "the endpoint digits is up",
    )
    assert account.use(Contents()) == ()


def test_endpoint_for_inference_components_has_the_role_of_its_configuration() -> None:
    """Its variants have no model."""
    configs = {name: {"ExecutionRoleArn": role, **NO_MODEL} for name, role in (("ours", ROLE), ("theirs", "another"))}
    account = SageMaker(endpoints={"ours": "ours", "theirs": "theirs"}, configs=configs)
    assert account.use(with_sagemaker_role()) == ("the endpoint ours is up",)


NO_MODEL: dict[str, Any] = {"ProductionVariants": [{"VariantName": "a"}]}


def test_endpoint_whose_configuration_or_model_is_deleted_counts_as_active() -> None:
    """Both can be deleted while the endpoint runs and bills."""
    account = SageMaker(
        endpoints={"a": "gone", "b": "b", "partly": "partly", "theirs": "gone", "kept": "gone", "other": "other"},
        configs={"b": variants("gone"), "partly": variants("gone", "digits"), "other": variants("gone", "other")},
        models={"digits": ROLE, "other": "another"},
        tags={"theirs": {OWNER: "speech"}, "kept": {KEEP: "true"}},
    )
    unknown, up = "is up, and its role is unknown, because its configuration or model is deleted", "is up"
    assert [one.partition(";")[0] for one in account.use(with_sagemaker_role())] == [
        f"the endpoint a {unknown}",
        f"the endpoint b {unknown}",
        f"the endpoint partly {up}",
    ]
