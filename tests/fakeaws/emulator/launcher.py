"""Runs ministack with Windlass's extensions; started by .cache/aws-env/bin/python, never imported by Windlass
or tests.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[3])

from tests.fakeaws.emulator.extensions import (  # noqa: E402
    alarms,
    authorization,
    checksum_answers,
    efs_sizes,
    eks_clusters,
    eks_node_groups,
    eks_updates,
    eks_versions,
    flow_logs,
    fsx,
    iam_names,
    instance_offerings,
    kms_states,
    launch_templates,
    load_balancers,
    nat_gateways,
    pod_identity_tags,
    repeated_requests,
    sagemaker,
    secure_transport,
    security_groups,
    service_quotas,
    vpc_endpoints,
)

EXTENSIONS = (
    security_groups, launch_templates, flow_logs, alarms, eks_clusters, eks_node_groups, eks_updates, eks_versions, fsx,
    sagemaker, load_balancers, iam_names, pod_identity_tags, secure_transport, authorization, service_quotas,
    instance_offerings, kms_states, checksum_answers, efs_sizes, nat_gateways, vpc_endpoints,
    repeated_requests,
)  # fmt: skip


def main() -> None:
    """Extends ministack, then serves until a signal arrives."""
    from ministack.app import main as serve

    for extension in EXTENSIONS:
        extension.extend()
    sys.argv = ["ministack"]
    serve()


if __name__ == "__main__":
    main()
