"""Audits one cluster: runs all finders in parallel, and collects their findings and failed queries."""

from __future__ import annotations

import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from windlass.clusters.audit.calls import AuditCalls, FinderCalls
from windlass.clusters.audit.finder import Finder
from windlass.clusters.audit.finders import FINDERS
from windlass.clusters.audit.locate import OPERATIONS, locate
from windlass.clusters.audit.report import AuditReport, FoundObject, Unknown
from windlass.clusters.audit.scope import NO_NETWORK, ClusterNetwork, Scope
from windlass.clusters.aws import Aws, AwsError, partition

FINDER_THREADS: Final = 8
DETAIL_THREADS: Final = 8
"""Threads for calls per object. IAM allows about 20 calls per second and account; more threads would be throttled."""


def audit(
    cluster: str,
    aws: Aws,
    *,
    network: ClusterNetwork = NO_NETWORK,
    is_ours: bool,
    volume_names: Collection[str] = (),
    volume_ids: Collection[str] = (),
    existing: Collection[str] = (),
) -> AuditReport:
    """Finds everything in the region of `aws`, and globally, that belongs to the named cluster, even if the cluster is
    gone.

    `is_ours`: whether Windlass created the cluster. If so, every object in its own VPC, or in a VPC tagged for the
    cluster, belongs to it, and objects whose name starts with the cluster's name are reported as possible. If not,
    objects in a VPC that only this cluster uses are reported as possible. The other arguments are fields of
    `Scope`.

    Changes nothing. A failed query becomes a row of `unknown`, never an empty list. Raises NotLoggedIn or another
    AwsError if AWS does not identify the credentials.
    """
    before = aws.num_calls
    scope = Scope(
        cluster,
        aws.region,
        aws.identity.account_id,
        partition(aws.region),
        is_ours,
        volume_names=frozenset(volume_names),
        volume_ids=frozenset(volume_ids),
        subnet_ids=frozenset(network.subnet_ids),
        existing_vpc_id=network.existing_vpc_id,
        existing=frozenset(existing),
    )
    found: list[FoundObject] = []
    with (
        ThreadPoolExecutor(DETAIL_THREADS, "audit-details") as details,
        ThreadPoolExecutor(FINDER_THREADS, "audit") as threads,
    ):
        try:
            audit_calls = AuditCalls(aws, details)
            first = FinderCalls(audit_calls, "eks", "cluster and its VPC", OPERATIONS)
            scope = locate(first, scope, network.vpc_id)
            unknown = first.unknown
            for rows, failed in threads.map(lambda finder: run_finder(finder, audit_calls, scope), FINDERS):
                found += rows
                unknown += failed
        except BaseException:  # on an interrupt, calls that have not started are cancelled
            threads.shutdown(wait=False, cancel_futures=True)
            details.shutdown(wait=False, cancel_futures=True)
            raise
    return AuditReport(
        cluster=cluster,
        region=aws.region,
        account_id=scope.account_id,
        found=tuple(sorted(set(found), key=_order)),
        unknown=tuple(unknown),
        at=time.time(),
        num_calls=aws.num_calls - before,
    )


def run_finder(finder: Finder, audit_calls: AuditCalls, scope: Scope) -> tuple[list[FoundObject], list[Unknown]]:
    """Runs one finder; returns the objects that it found, also those before an error, and its failed queries."""
    calls = FinderCalls(audit_calls, finder.service, finder.kind, finder.operations)
    found: list[FoundObject] = []
    try:
        for one in finder.find(calls, scope):
            if one.id not in scope.existing or one.reason == scope.tag_reason:
                found.append(one)
    except AwsError as error:
        if not calls.is_absent(error):
            calls.record_failure(error)
    # a malformed response is reported, because its object may be a leak
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        calls.record_failure(
            AwsError(f"an answer of {finder.service} is not understood: {error!r}", action=finder.operations[0])
        )
    return found, calls.unknown


def _order(one: FoundObject) -> tuple[bool, bool, bool, str, str, str, str]:
    return one.kept_on_purpose, not one.is_certain, not one.bills, one.service, one.kind, one.name, one.id
