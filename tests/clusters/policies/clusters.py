"""Cluster files whose policies are tested, and the actions that their policies allow."""

from __future__ import annotations

from typing import Final

from windlass.clusters.policies import Purpose, statements
from windlass.spec.cluster import Cluster
from windlass.spec.parse import parse_cluster

ACCOUNT: Final = "123456789012"
SMALL: Final = "name: vision\nregion: us-east-1\ncomponents: [jobset]\n"
"""Cluster file with only the required parts."""
EVERYTHING: Final = """\
name: vision
region: us-east-1
gpus:
  - {name: h100, instances: [p5.48xlarge], provision: node-group}
  - {name: a10g, instances: [g5.12xlarge], provision: node-group, capacity: spot}
storage: {efs: true, fsx: true, s3_files: true}
sagemaker: true
budget: {limit: 1000, email: someone@example.com}
state: {bucket: team-state, prefix: clusters}
"""
"""Cluster file with every option."""
COMPANY: Final = (
    EVERYTHING.replace("capacity: spot}", "capacity: spot, ami: '/team/images/gpu:3'}")
    + """\
system: {ami: al2023@v20261101}
iam: {permissions_boundary: 'arn:aws:iam::123456789012:policy/team-boundary', path: /team/}
encryption:
  secrets: arn:aws:kms:us-east-1:210987654321:key/1111-a
  file_systems: arn:aws:kms:us-east-1:210987654321:key/2222-b
  bucket: arn:aws:kms:us-east-1:210987654321:key/3333-c
"""
)
"""Cluster file with every option, in the account of a company."""


def cluster(text: str = EVERYTHING) -> Cluster:
    """Parses a cluster file."""
    return parse_cluster(text, "cluster.yaml")


def every_action() -> set[str]:
    """Returns the actions of all policies."""
    return {
        action
        for purpose in Purpose
        for text in (EVERYTHING, COMPANY)
        for one in statements(cluster(text), ACCOUNT, purpose)
        for action in one.actions
    }
