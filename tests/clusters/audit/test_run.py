"""A failed query becomes a row of the report, never an empty list."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from windlass.clusters.audit import AuditReport, FoundObject, Unknown
from windlass.clusters.audit.calls import AuditCalls, FinderCalls
from windlass.clusters.audit.finder import Finder
from windlass.clusters.audit.finders import balancing
from windlass.clusters.audit.run import run_finder
from windlass.clusters.audit.scope import Scope
from windlass.clusters.aws import AccessDenied, Aws, NoAnswer, NoEndpoint, NotThere

SCOPE = Scope("train", "us-east-1", "123456789012")
VOLUME = FoundObject("ec2", "volume", "vol-1", "data", "us-east-1", "tag", bills=True)


@pytest.fixture
def audit_calls() -> Iterator[AuditCalls]:
    """Yields listings of an account that is never queried."""
    with Aws("us-east-1", environ={"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}) as aws, ThreadPoolExecutor(2) as details:
        yield AuditCalls(aws, details)


def raising(*errors: Exception, service: str = "ec2") -> Finder:
    """Returns a finder that finds one volume and whose next page fails."""

    def find(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
        yield VOLUME
        for error in errors:
            raise error

    return Finder(service, "volume", ("ec2:DescribeVolumes",), find)


@pytest.mark.parametrize(
    "error",
    [
        AccessDenied("denied", "allow it", action="ec2:DescribeVolumes", code="UnauthorizedOperation"),
        NoAnswer("throttled", action="ec2:DescribeVolumes", code="Throttling"),
        NotThere("the whole service?", action="ec2:DescribeVolumes", code="ResourceNotFoundException"),
        KeyError("VolumeId"),
        TypeError("None"),
    ],
)
def test_failed_query_is_unknown_and_earlier_findings_are_kept(audit_calls: AuditCalls, error: Exception) -> None:
    found, [unknown] = run_finder(raising(error), audit_calls, SCOPE)
    assert found == [VOLUME]
    assert (unknown.kind, unknown.asked) == ("volume", "ec2:DescribeVolumes")


def test_a_service_that_the_region_does_not_have_has_no_objects(audit_calls: AuditCalls) -> None:
    error = NoEndpoint("no such host", action="braket:ListDevices")
    assert run_finder(raising(error, service="dms-of-mars"), audit_calls, SCOPE) == ([VOLUME], [])
    assert len(run_finder(raising(error, service="ec2"), audit_calls, SCOPE)[1]) == 1
    late = NoAnswer("late", action="braket:ListDevices")
    assert len(run_finder(raising(late, service="dms-of-mars"), audit_calls, SCOPE)[1]) == 1, (
        "it exists, and did not answer"
    )


def test_object_deleted_meanwhile_is_skipped_and_denied_one_is_unknown(audit_calls: AuditCalls) -> None:
    def inspect(one: int) -> Iterator[int]:
        if one == 2:
            raise NotThere("gone", action="iam:ListRoleTags", code="NoSuchEntity")
        if one > 3:
            raise AccessDenied("denied", action="iam:ListRoleTags", code="AccessDenied")
        yield one

    calls = FinderCalls(audit_calls, "iam", "role", ())
    assert list(calls.each(range(6), inspect)) == [0, 1, 3]
    assert [one.asked for one in calls.unknown] == ["iam:ListRoleTags"], "equal failures are one row"


def test_items_before_a_failing_page_are_processed(audit_calls: AuditCalls) -> None:
    def items() -> Iterator[int]:
        yield 1
        raise NoAnswer("page 2", action="iam:ListRoles", code="Throttling")

    each = FinderCalls(audit_calls, "iam", "role", ()).each(items(), lambda one: [one])
    assert next(each) == 1
    with pytest.raises(NoAnswer):
        next(each)


@pytest.mark.parametrize("count", [0, 5, 20, 25])
def test_load_balancers_before_a_failing_page_are_processed(
    audit_calls: AuditCalls, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    def items(*_: object) -> Iterator[dict[str, Any]]:
        yield from ({"number": number} for number in range(count))
        raise NoAnswer("page 2", action="elasticloadbalancing:DescribeLoadBalancers", code="Throttling")

    calls = FinderCalls(audit_calls, "elbv2", "load balancer", ())
    monkeypatch.setattr(calls, "items", items)
    batches, found = balancing._batches(calls, "describe_load_balancers", "LoadBalancers"), list[int]()
    with pytest.raises(NoAnswer):
        found.extend(len(batch) for batch in batches)
    assert (sum(found), all(0 < size <= balancing.BATCH for size in found)) == (count, True)


def report(*found: FoundObject, unknown: tuple[Unknown, ...] = ()) -> AuditReport:
    return AuditReport("train", "us-east-1", "123456789012", found, unknown, 1764028800.0, 9)


def test_report_with_kept_or_free_rows_is_clean_and_with_possible_bills_or_unknowns_is_not() -> None:
    kept = FoundObject("s3", "bucket", "b", "b", "us-east-1", "name", bills=True, kept_on_purpose=True)
    possible = FoundObject("iam", "role", "train-x", "train-x", "global", "name", bills=False, is_certain=False)
    assert report().is_clean
    assert report(kept, possible).is_clean
    assert not report(VOLUME).is_clean
    unproved = replace(VOLUME, is_certain=False)
    assert not report(unproved).is_clean
    assert report(replace(unproved, kept_on_purpose=True)).is_clean
    assert not report(unknown=(Unknown("volume", "ec2:DescribeVolumes", "denied"),)).is_clean
