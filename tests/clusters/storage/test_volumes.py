"""A cluster's volumes are recorded in its folder until the folder is removed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.clusters.components.fakecluster import FakeCluster

from windlass.clusters.find import ManagedCluster
from windlass.clusters.storage.volumes import FILE, Volumes, of_cluster, remember, remembered
from windlass.clusters.terraform.folder import ClusterFolder, FolderError
from windlass.spec.parse import parse_cluster

TEXT = "name: vision\nregion: us-west-2\n"


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    made = FakeCluster()
    yield made
    made.close()


@pytest.fixture
def named(tmp_path: Path) -> ManagedCluster:
    found = ManagedCluster(parse_cluster(TEXT), TEXT, ClusterFolder.of(tmp_path, "vision"))
    found.folder.path.mkdir(parents=True)
    return found


def test_volume_names_and_ids_come_from_persistent_volumes(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.put("v1", "PersistentVolume", "pvc-1", spec={"csi": {"volumeHandle": "vol-1"}})
    cluster.put("v1", "PersistentVolume", "efs", spec={"csi": {"volumeHandle": "fs-1::fsap-2"}})
    cluster.put("v1", "PersistentVolume", "local", spec={})
    found = of_cluster(cluster.client(tmp_path))
    assert found == Volumes(frozenset({"pvc-1", "efs", "local"}), frozenset({"vol-1"}))


def test_volume_stays_recorded_after_its_deletion(named: ManagedCluster) -> None:
    assert remembered(named) == Volumes()
    remember(named, Volumes(frozenset({"pvc-1"}), frozenset({"vol-1"})))
    together = remember(named, Volumes(frozenset({"pvc-2"}), frozenset({"vol-2"})))
    assert together == remembered(named) == Volumes(frozenset({"pvc-1", "pvc-2"}), frozenset({"vol-1", "vol-2"}))


@pytest.mark.parametrize("text", ["{", "[]", '{"names": 7}'])
def test_damaged_volume_record_is_an_error(named: ManagedCluster, text: str) -> None:
    (named.folder.path / FILE).write_text(text)
    with pytest.raises(FolderError, match=r"volumes\.json is damaged"):
        remembered(named)
