"""The contents of a cluster are read from the Terraform state."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.clusters.components.fakecluster import FakeCluster

from windlass.clusters.eks.contents import Contents, contents
from windlass.clusters.eks.outputs import ApiServer
from windlass.clusters.terraform.state import state_resources
from windlass.spec.parse import parse_cluster

TEXT = "name: vision\nregion: us-west-2\nstate: {bucket: states}\n"
LOGIN = """#!/bin/sh
echo '{"apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential", "status": {"token": "t"}}'
"""
"""Stand-in for `aws eks get-token`."""


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


def test_api_server_and_file_systems_are_read_from_the_state() -> None:
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
