"""The working folder refuses another region or a copied state; audits reject invalid names."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.clusters.eks.test_outputs import VALUES

from windlass.clusters.eks.outputs import Outputs
from windlass.clusters.find import FILE, ManagedCluster
from windlass.clusters.status import summary
from windlass.clusters.terraform.folder import STATE, VARIABLES, ClusterFolder, FolderError
from windlass.clusters.terraform.process import RECORD
from windlass.clusters.working_folder import connect, local_resources, write_folder
from windlass.errors import UsageError
from windlass.runs.context import Context
from windlass.spec.parse import parse_cluster
from windlass.worker.process import boot_id, stat

MADE = {"resources": [{"mode": "managed", "instances": [{}, {}]}, {"mode": "data", "instances": [{}]}]}
IN_BUCKET = "state: {bucket: team-state, region: us-east-1}\n"


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(environ={"WINDLASS_HOME": str(tmp_path / "home")}, cwd=tmp_path)


def named(context: Context, region: str, more: str = "") -> ManagedCluster:
    text = f"name: vision\nregion: {region}\n{more}"
    return ManagedCluster(parse_cluster(text), text, ClusterFolder.of(context.home, "vision"))


def test_existing_cluster_cannot_change_its_region(context: Context) -> None:
    here = named(context, "us-west-2")
    write_folder(here, context)
    (here.folder.path / STATE).write_text(json.dumps(MADE))
    with pytest.raises(UsageError, match="vision was made in us-west-2, and its file says eu-west-1"):
        write_folder(named(context, "eu-west-1"), context)
    assert json.loads((here.folder.path / VARIABLES).read_text())["region"] == "us-west-2"
    assert (here.folder.path / FILE).read_text() == here.text
    write_folder(here, context)


def test_remote_state_may_have_resources_from_another_machine(context: Context) -> None:
    write_folder(named(context, "us-west-2", IN_BUCKET), context)
    with pytest.raises(UsageError, match="was made in us-west-2"):
        write_folder(named(context, "eu-west-1", IN_BUCKET), context)


def test_planned_cluster_can_change_its_region(context: Context) -> None:
    write_folder(named(context, "us-west-2"), context)
    moved = named(context, "eu-west-1")
    write_folder(moved, context)
    assert json.loads((moved.folder.path / VARIABLES).read_text())["region"] == "eu-west-1"


def test_copied_folder_of_another_cluster_is_refused(context: Context) -> None:
    text = "name: other\nregion: us-west-2\n"
    other = ManagedCluster(parse_cluster(text), text, ClusterFolder.of(context.home, "other"))
    write_folder(other, context)
    here = named(context, "us-west-2")
    other.folder.path.rename(here.folder.path)
    with pytest.raises(UsageError, match="clusters/vision is a copy of the folder of other, with its state"):
        write_folder(here, context)
    assert here.folder.variables()["name"] == "other"


def test_state_that_is_being_written_does_not_count_as_damaged(context: Context) -> None:
    here = named(context, "us-west-2")
    write_folder(here, context)
    (here.folder.path / STATE).write_bytes(b"")
    with pytest.raises(FolderError) as damaged:
        summary(here)
    assert "windlass cluster up vision --recover" in damaged.value.hint
    line = stat(os.getpid())
    assert line is not None
    writes = {
        "command": "apply",
        "log": "",
        "started_at": 0.0,
        "machine_id": "",
        "pid": os.getpid(),
        "start_ticks": line.start_ticks,
        "boot": boot_id(),
    }
    (here.folder.path / RECORD).write_text(json.dumps(writes))
    assert (summary(here).state, summary(here).resources) == ("incomplete", 0)


def test_outputs_without_a_state_mean_an_incomplete_cluster(context: Context) -> None:
    here = named(context, "us-west-2")
    write_folder(here, context)
    connect(here, Outputs.of(VALUES))
    assert summary(here).state == "incomplete"
    (here.folder.path / STATE).write_text(json.dumps(MADE))
    assert summary(here).state == "up"


def test_cluster_removed_from_another_machine_is_not_up(context: Context) -> None:
    here = named(context, "us-west-2", IN_BUCKET)
    write_folder(here, context)
    connect(here, Outputs.of(VALUES))
    assert (summary(here).state, summary(here).resources) == ("up", 0), "the bucket was not asked"
    assert (summary(here, 94).state, summary(here, 94).resources) == ("up", 94)
    assert summary(here, 0).state == "incomplete"


def test_local_resources_are_counted_without_data_sources(context: Context) -> None:
    here = named(context, "us-west-2")
    assert local_resources(here) == 0
    write_folder(here, context)
    (here.folder.path / STATE).write_text(json.dumps(MADE))
    assert local_resources(here) == 2


def test_versions_of_addons_are_kept_until_the_file_names_others_or_another_kubernetes(context: Context) -> None:
    kept = {"coredns": "v1.12.4-eksbuild.1", "vpc-cni": "v1.20.4-eksbuild.1"}
    made = Outputs.of({**VALUES, "kubernetes_version": "1.35", "addon_versions": kept})
    write_folder(named(context, "us-west-2"), context)
    connect(named(context, "us-west-2"), made)

    def versions(more: str) -> dict[str, str]:
        one = named(context, "us-west-2", more)
        write_folder(one, context)
        return dict(one.folder.variables()["addon_versions"])

    assert versions("") == kept
    assert versions("addons: {coredns: v1.13.1-eksbuild.1}\n") == {**kept, "coredns": "v1.13.1-eksbuild.1"}
    assert versions("kubernetes: '1.36'\n") == {}
