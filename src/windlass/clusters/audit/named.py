"""Lists the AWS resources of a cluster with their prices, also for clusters that Windlass did not create."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from windlass.clusters.audit.scope import ClusterNetwork
from windlass.clusters.storage.volumes import Volumes, remembered
from windlass.errors import UsageError
from windlass.runs.context import Context

if TYPE_CHECKING:
    from windlass.clusters.audit import AuditReport
    from windlass.clusters.aws import Aws
    from windlass.clusters.eks.outputs import Outputs

EKS_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
"""Valid EKS cluster names. With an empty name, an audit would match every object of the account."""


def audit(
    name: str,
    aws: Aws,
    context: Context,
    *,
    is_ours: bool = True,
    network: ClusterNetwork | None = None,
    volumes: Volumes | None = None,
    existing: Iterable[str] = (),
) -> AuditReport:
    """Audits the AWS resources of the cluster `name` by listing each service. Raises AwsError without valid
    credentials.
    """
    from windlass.clusters.audit.prices import priced
    from windlass.clusters.audit.run import audit as list_all
    from windlass.pricing.refreshed import load

    known = volumes or Volumes()
    report = list_all(
        name,
        aws,
        network=network or ClusterNetwork(),
        is_ours=is_ours,
        volume_names=known.names,
        volume_ids=known.ids,
        existing=tuple(existing),
    )
    return priced(report, load(context.home))


def audit_named(name: str, region: str, context: Context, *, is_ours: bool) -> AuditReport:
    """Audits a cluster with the credentials from the usual environment variables and files of AWS.

    Raises UsageError for an invalid cluster name, JobFileError, FolderError, AwsError, MissingExtra.
    """
    if not EKS_NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a name of a cluster", "a letter or digit, then letters, digits, '-' and '_'")
    from windlass.clusters.aws import Aws
    from windlass.clusters.find import all_of, of_folder
    from windlass.clusters.reconcile import require_owner

    named = next((of_folder(one, context) for one in all_of(context) if one.name == name), None)
    outputs = named.outputs() if named is not None else None
    chosen = region or (named.cluster.region if named is not None else "")
    with Aws(chosen, environ=context.environ) as aws:
        if outputs is not None and is_ours:
            require_owner(name, {outputs.account_id}, aws)
        network = audited_network(outputs, None, named.cluster.network.vpc if named is not None else None)
        volumes = remembered(named) if named is not None else None
        existing = named.cluster.existing if named is not None else ()
        return audit(name, aws, context, is_ours=is_ours, network=network, volumes=volumes, existing=existing)


def audited_network(outputs: Outputs | None, vpc_in_state: str | None, vpc_in_file: str | None) -> ClusterNetwork:
    """Returns the network of a cluster that Windlass created: its own VPC with its subnets, or an existing one.

    An existing VPC belongs to others. What Terraform has made is decided by its state and its outputs, because the
    cluster file may have changed since.
    """
    if outputs is not None and not outputs.vpc_managed:
        return ClusterNetwork(vpc_in_state, existing_vpc_id=outputs.vpc_id)
    if outputs is None:
        return ClusterNetwork(vpc_in_state, existing_vpc_id="" if vpc_in_state else vpc_in_file or "")
    return ClusterNetwork(vpc_in_state or outputs.vpc_id, outputs.private_subnet_ids)
