"""Checks whether a cluster and its AWS account meet the requirements of runs, also before the cluster exists."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from windlass.actions.jobs import JOB_FILES, read_job
from windlass.clusters.aws import Aws
from windlass.clusters.find import FILE, ManagedCluster, find
from windlass.clusters.preflight.finding import Finding, Offer, unknown
from windlass.clusters.preflight.identity import NAME as POD_IDENTITY
from windlass.clusters.preflight.identity import PodsOf, association_finding, command
from windlass.clusters.terraform.folder import NAME, ClusterFolder
from windlass.engines.checks import Check
from windlass.errors import UsageError, WindlassError
from windlass.runs.context import Context
from windlass.spec.text_file import read_text

if TYPE_CHECKING:
    from windlass.clusters.components.manager import ComponentStatus
    from windlass.clusters.eks.outputs import Outputs
    from windlass.engines.kubernetes.reading.preflight.platform import Expected
    from windlass.spec.targets import KubernetesTarget

OnLine = Callable[[str], None]
SERVICE_ACCOUNT: Final = "default"
"""Service account of the pods of a job that sets no service account."""


@dataclass(frozen=True, slots=True)
class OfferedCheck:
    """A check, with a fix that Windlass offers to carry out; None if it offers none."""

    check: Check
    offer: Offer | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """Subject of `windlass doctor`: a cluster with a cluster file, a Kubernetes target, or both."""

    named: ManagedCluster | None
    target: KubernetesTarget | None


def subject(on: str, context: Context) -> Subject:
    """Resolves `--on`: a cluster file, a cluster of this user, or any Kubernetes target.

    Raises UsageError if it is none of these, JobFileError for an invalid file.
    """
    from windlass.actions.targets import find_target
    from windlass.spec.targets import KubernetesTarget

    is_file = (context.cwd / on).is_file()
    if is_file or (NAME.fullmatch(on) and (ClusterFolder.of(context.home, on).path / FILE).is_file()):
        named = find(on, context)
        made = find_target(named.cluster.name, context) if named.outputs() is not None else None
        return Subject(named, made if isinstance(made, KubernetesTarget) else None)
    if "/" in on or on.endswith((".yaml", ".yml")):
        raise UsageError(f"there is no file {on}", "write one: windlass cluster init")
    target = find_target(on, context)
    if not isinstance(target, KubernetesTarget):
        raise UsageError(f"target {on} is no Kubernetes cluster, but {target.kind}", f"windlass check --on {on}")
    return Subject(None, target)


def names(context: Context) -> list[str]:
    """Returns the clusters of this user and the Kubernetes targets, for completion."""
    from windlass.actions.targets import target_files
    from windlass.engines import target_model
    from windlass.spec.parse import parse_targets
    from windlass.spec.targets import KubernetesTarget

    found = {one.name for one in ClusterFolder.all_in(context.home)}
    for path in target_files(context):
        with contextlib.suppress(OSError, WindlassError):
            read = parse_targets(read_text(path, str(path)), str(path), target_model)
            found |= {name for name, one in read.items() if isinstance(one, KubernetesTarget)}
    return sorted(found)


def doctor(on: str, context: Context, on_line: OnLine, pod_role: str = "") -> Iterator[OfferedCheck]:
    """Yields each check as soon as it has finished; `on_line` receives messages about waiting.

    `pod_role` is the ARN of the role that pods should have, for a cluster that Windlass did not create. Raises
    UsageError, JobFileError.
    """
    found = subject(on, context)
    if found.named is not None:
        yield from _account(found.named, context, on)
        outputs = found.named.outputs()
        if outputs is None or found.target is None:
            yield OfferedCheck(
                Check("cluster", "ok", f"{found.named.cluster.name} is not made yet", "windlass cluster up")
            )
            return
        pods = PodsOf(outputs.name, outputs.namespace, SERVICE_ACCOUNT)
        role = outputs.run_role_arn
        yield _of_aws(POD_IDENTITY, outputs.region, context, lambda aws: association_finding(aws, pods, role))
        yield from _components(found.named, outputs, context)
        yield from _cluster(found.target, context, _expected(found.named, outputs), on_line)
    elif found.target is not None:
        yield from _foreign(found.target, context, on_line, pod_role)


# -- the account ------------------------------------------------------------------------------------------------------


def _account(named: ManagedCluster, context: Context, on: str) -> Iterator[OfferedCheck]:
    from windlass.clusters.policies import Purpose, as_statements
    from windlass.clusters.preflight.account import account_findings
    from windlass.clusters.preflight.programs import program_findings

    cluster = named.cluster
    for finding in program_findings(context.environ, has_components=bool(cluster.components)):
        yield diagnosis(finding, on)
    try:
        aws = named.aws(context)
    except WindlassError as error:
        yield OfferedCheck(Check("identity", "fail", error.message, error.hint))
        return
    # `aws` is not closed, because accepted offers use its connections after the last check.
    for finding in account_findings(aws, cluster, lambda account: as_statements(cluster, account, Purpose.UP)):
        yield diagnosis(finding, on)


def diagnosis(finding: Finding, on: str = "") -> OfferedCheck:
    """Converts a finding about AWS to a check."""
    fix = finding.fix.replace("--on … --request", f"--on {on} --request") if on else finding.fix
    return OfferedCheck(Check(finding.name, finding.level, finding.found, fix), finding.offer)


def taken_up(offer: Offer) -> Check:
    """Carries out an offer that the user accepted; returns its result as a check."""
    try:
        return diagnosis(offer.act()).check
    except WindlassError as error:
        return Check("request", "warn", f"{offer.question} {error.message}", error.hint)


# -- the cluster ------------------------------------------------------------------------------------------------------


def _components(named: ManagedCluster, outputs: Outputs, context: Context) -> Iterator[OfferedCheck]:
    """Yields a check for each component."""
    from windlass.clusters.kubernetes import component_manager, wanted_components

    try:
        with component_manager(named, outputs, context) as manager:
            states = manager.status(wanted_components(named))
    except WindlassError as error:
        yield OfferedCheck(Check("operators", "fail", f"their state cannot be read: {error.message}", error.hint))
        return
    for one in states:
        yield OfferedCheck(component_check(one, f"windlass cluster up {named.cluster.name}"))


def component_check(one: ComponentStatus, fix: str) -> Check:
    """Returns the check of a component's status. Pure."""
    if one.state == "absent":
        return Check(one.name, "fail", f"not installed; version {one.wanted} belongs to the cluster", fix)
    if not one.is_healthy:
        why = "; ".join(one.problems) or f"it is {one.state}"
        return Check(one.name, "fail", f"{_version(one)} is not healthy: {why}", fix)
    if one.state != "foreign" and not one.is_current:
        return Check(one.name, "warn", f"{_version(one)}; this Windlass installs {one.wanted}", fix)
    return Check(one.name, "ok", f"{_version(one)} is healthy")


def _version(one: ComponentStatus) -> str:
    return f"version {one.installed}" if one.installed else "one that was not installed by Windlass"


def _cluster(target: KubernetesTarget, context: Context, expected: Expected, on_line: OnLine) -> Iterator[OfferedCheck]:
    from windlass.engines.kubernetes.reading.preflight.platform import platform

    try:
        for check in platform(target, context.environ, replace(expected, images=_images(context)), on_line):
            yield OfferedCheck(check)
    except WindlassError as error:  # the kubeconfig or its login program failed
        yield OfferedCheck(Check("login", "fail", error.message, error.hint))


def _images(context: Context) -> tuple[str, ...]:
    """Returns the image of the job in the working folder. Invalid job files are ignored; `check` reports them."""
    with contextlib.suppress(WindlassError):
        if any((context.cwd / name).is_file() for name in JOB_FILES):
            image = read_job(None, (), {}, context).job.image
            return (image,) if image else ()
    return ()


def _expected(named: ManagedCluster, outputs: Outputs) -> Expected:
    """Returns the expected state of a cluster that Windlass created."""
    from windlass.clusters.eks.outputs import EFS_CLAIM, FSX_CLAIM
    from windlass.engines.kubernetes.reading.preflight.platform import Expected
    from windlass.engines.kubernetes.reading.preflight.pod_findings import Association

    pods = PodsOf(outputs.name, outputs.namespace, SERVICE_ACCOUNT)
    fix = f"windlass cluster up {named.cluster.name} makes the association, or: "
    claims = (*([EFS_CLAIM] if outputs.efs_id else []), *([FSX_CLAIM] if outputs.fsx_id else []))
    return Expected(
        Association(SERVICE_ACCOUNT, outputs.run_role_arn, fix + command(outputs.region, pods, outputs.run_role_arn)),
        pools=tuple(pool.name for pool in named.cluster.karpenter_pools),
        groups=tuple(pool.name for pool in named.cluster.node_groups),
        claims=claims,
    )


def _of_aws(name: str, region: str, context: Context, finding: Callable[[Aws], Finding]) -> OfferedCheck:
    """Runs a check that queries AWS; `name` is the title of the check if the query fails."""
    try:
        return diagnosis(finding(Aws(region, environ=context.environ)))
    except WindlassError as error:
        return diagnosis(unknown(name, error))


def _foreign(target: KubernetesTarget, context: Context, on_line: OnLine, pod_role: str) -> Iterator[OfferedCheck]:
    """Yields the checks of a cluster that Windlass did not create, on EKS or elsewhere."""
    from windlass.clusters.preflight.programs import identity_finding, program_findings
    from windlass.engines.kubernetes.reading.preflight.platform import Expected, eks_cluster
    from windlass.engines.kubernetes.reading.preflight.pod_findings import Association

    eks = eks_cluster(target, context.environ)
    wanted = Association(SERVICE_ACCOUNT, pod_role)
    if eks is not None:
        for finding in program_findings(context.environ, builds=False):
            yield diagnosis(finding)
        yield _of_aws("identity", eks.region, context, identity_finding)
        pods = PodsOf(eks.name, target.namespace, SERVICE_ACCOUNT)
        yield _of_aws(POD_IDENTITY, eks.region, context, lambda aws: association_finding(aws, pods, pod_role))
        fix = f"{command(eks.region, pods, pod_role)}; windlass doctor --pod-role ROLE_ARN --request makes it"
        wanted = Association(SERVICE_ACCOUNT, pod_role, fix)
    yield from _cluster(target, context, Expected(wanted), on_line)
