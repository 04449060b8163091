"""Data sets are mounted by the cluster: the driver of each set, the volumes, and the refusals are checked."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from tests.engines.kubernetes.objectserver import ObjectServer
from tests.engines.kubernetes.planning.test_plan import CODE, FACTS, TARGET, blockers, planned, pod_spec

from windlass.engines.kubernetes.objects.mount_manifests import DRIVERS
from windlass.engines.kubernetes.planning.dry_run import dry_run
from windlass.engines.kubernetes.planning.export import manifests
from windlass.engines.kubernetes.planning.facts import Facts
from windlass.engines.kubernetes.planning.mounts import choose
from windlass.errors import JobFileError
from windlass.plan.plan import Plan
from windlass.plan.steps import MountClaimStep, MountVolumeStep, NodeStep, StageStep, TransferStep
from windlass.spec.job import Job
from windlass.spec.sections import Data, FileSystem
from windlass.spec.targets import KubernetesTarget

DIGITS: dict[str, Any] = {"name": "digits", "source": "s3://bucket/train/digits/", "via": "mount"}
FILES = {"kind": "s3-files", "id": "fs-0123456789abcdef0", "source": "s3://bucket/"}
LUSTRE = {
    "kind": "lustre",
    "id": "fs-0fedcba9876543210",
    "source": "s3://bucket/train",
    "path": "/sets",
    "dns_name": "fs-0fedcba9876543210.fsx.eu-central-1.amazonaws.com",
    "mount_name": "abcdefgh",
}
BOTH = TARGET.model_copy(update={"file_systems": (FileSystem(**FILES), FileSystem(**LUSTRE))})


def having(*kinds: str, **more: Any) -> Facts:
    """Returns facts of a cluster with the drivers of these kinds."""
    assert FACTS.cluster is not None
    fields = {"csi_drivers": frozenset(DRIVERS[kind] for kind in kinds), **more}
    return dataclasses.replace(FACTS, cluster=dataclasses.replace(FACTS.cluster, **fields))


ALL = having(*DRIVERS)


def mounts(made: Plan) -> list[dict[str, Any]]:
    return [one for one in pod_spec(made)["containers"][0]["volumeMounts"] if one["name"].startswith("mount-")]


def test_bucket_is_mounted_read_only_at_the_path_of_the_ranks() -> None:
    made = planned(ALL, data=[DIGITS])
    assert not blockers(made)
    [persistent], [claim] = made.manifests(MountVolumeStep), made.manifests(MountClaimStep)
    name, claimed = persistent["metadata"]["name"], claim["metadata"]["name"]
    assert persistent["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "capacity": {"storage": "1Ti"},
        "storageClassName": "",
        "volumeMode": "Filesystem",
        "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "team-a", "name": claimed},
        "mountOptions": ["read-only", "allow-other", "uid=1000", "gid=1000", "prefix train/digits/"],
        "csi": {"driver": "s3.csi.aws.com", "volumeAttributes": {"bucketName": "bucket"}, "volumeHandle": name},
    }
    assert claim["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "1Ti"}},
        "storageClassName": "",
        "volumeMode": "Filesystem",
        "volumeName": name,
    }
    assert mounts(made) == [{"name": "mount-0", "mountPath": "/windlass/mounts/digits", "readOnly": True}]
    [volume] = [one for one in pod_spec(made)["volumes"] if one["name"] == "mount-0"]
    assert volume["persistentVolumeClaim"] == {"claimName": claimed}
    assert made.every(NodeStep)[0].spec.env["WINDLASS_DATA_DIGITS"] == "/windlass/mounts/digits"
    assert made.every(StageStep) == made.manifests(TransferStep) == [], "nothing is copied"
    [step] = [step for step in made.steps if step.kind == "mount"]
    assert (
        "read-only as $WINDLASS_DATA_DIGITS by mountpoint (s3.csi.aws.com): it is read from the bucket" in step.summary
    )


def test_a_volume_is_shared_by_all_runs_of_a_namespace_and_by_no_other() -> None:
    made = planned(ALL, data=[DIGITS])
    [claim] = made.manifests(MountClaimStep)
    there = having(*DRIVERS, claims=frozenset({claim["metadata"]["name"]}))
    again = planned(there, data=[{**DIGITS, "name": "other"}])
    assert again.manifests(MountClaimStep) == again.manifests(MountVolumeStep) == []
    assert mounts(again)[0]["mountPath"] == "/windlass/mounts/other"
    other = planned(ALL, TARGET.model_copy(update={"namespace": "team-b"}), data=[DIGITS])
    names = {one.manifests(MountVolumeStep)[0]["metadata"]["name"] for one in (made, other)}
    assert len(names) == 2


def test_data_sets_of_one_file_system_share_a_volume_and_only_written_ones_are_writable() -> None:
    sets = [{**DIGITS, "write": True}, {**DIGITS, "name": "labels", "source": "s3://bucket/labels", "write": True}]
    sets.append({**DIGITS, "name": "all", "source": "s3://bucket", "size": "1GiB", "files": 100_000})
    made = planned(having("s3-files"), BOTH, data=sets)
    assert not blockers(made)
    [persistent] = made.manifests(MountVolumeStep)
    assert persistent["spec"]["csi"] == {"driver": "efs.csi.aws.com", "volumeHandle": "s3files:fs-0123456789abcdef0"}
    assert mounts(made) == [
        {"name": "mount-0", "mountPath": "/windlass/mounts/digits", "subPath": "train/digits"},
        {"name": "mount-0", "mountPath": "/windlass/mounts/labels", "subPath": "labels"},
        {"name": "mount-0", "mountPath": "/windlass/mounts/all", "readOnly": True},
    ]
    assert [one["name"] for one in pod_spec(made)["volumes"]].count("mount-0") == 1


def test_lustre_is_mounted_by_name_and_the_plan_has_the_preload_command() -> None:
    made = planned(ALL, BOTH, data=[{**DIGITS, "files": 5_000_000}])
    [persistent] = made.manifests(MountVolumeStep)
    assert persistent["spec"]["csi"] == {
        "driver": "fsx.csi.aws.com",
        "volumeHandle": LUSTRE["id"],
        "volumeAttributes": {"dnsname": LUSTRE["dns_name"], "mountname": LUSTRE["mount_name"]},
    }
    assert persistent["spec"]["mountOptions"] == ["flock"]
    assert mounts(made)[0]["subPath"] == "sets/digits"
    [note] = [note for note in made.notes if note.code == "mount-repository"]
    assert note.fix == (
        "aws fsx create-data-repository-task --file-system-id fs-0fedcba9876543210 --type "
        "IMPORT_METADATA_FROM_REPOSITORY --paths sets/digits --report Enabled=false"
    )


@pytest.mark.parametrize(
    ("fields", "drivers", "kind"),
    [
        ({}, DRIVERS, "mountpoint"),
        ({"write": True}, DRIVERS, "s3-files"),
        ({"write": True}, ("lustre", "mountpoint"), "lustre"),
        ({"files": 2_000_000}, DRIVERS, "lustre"),
        ({"files": 2_000_000, "size": "100TiB"}, DRIVERS, "lustre"),
        ({"files": 1000, "size": "100GiB"}, DRIVERS, "mountpoint"),
        ({"files": 100_000, "size": "1GiB"}, ("s3-files", "mountpoint"), "s3-files"),
        ({"files": 100_000, "size": "1GiB"}, ("mountpoint",), "mountpoint"),
        ({"size": "2TiB"}, DRIVERS, "lustre"),
        ({}, ("lustre",), "lustre"),
        ({"write": True}, ("mountpoint",), None),
        ({}, (), None),
    ],
)
def test_driver_is_chosen_by_writes_size_and_file_count(fields: dict[str, Any], drivers: Any, kind: str | None) -> None:
    data = Job(name="x", run="x.py", data=[{**DIGITS, **fields}]).data[0]
    way, why = choose(data, BOTH.file_systems, {DRIVERS[one] for one in drivers})
    assert (way.kind if way is not None else None) == kind
    assert why


def test_drivers_that_may_not_be_listed_count_as_installed() -> None:
    made = planned(having(csi_drivers=None), data=[DIGITS])
    assert not blockers(made)
    assert "mount-unknown" in {note.code for note in made.notes}


@pytest.mark.parametrize(
    ("data", "target", "code", "words"),
    [
        ({}, TARGET, "mount-driver", "no CSI driver s3.csi.aws.com"),
        ({"write": True}, BOTH, "mount-driver", "no CSI driver efs.csi.aws.com or fsx.csi.aws.com"),
        ({"write": True}, TARGET, "mount-write", "target lab names none"),
        ({"source": "gs://bucket/digits"}, TARGET, "mount-source", "cannot be mounted"),
        ({"source": "s3://bucket/a b,uid=0"}, TARGET, "mount-source", "cannot be mounted"),
    ],
)
def test_unmountable_data_is_refused(data: dict[str, Any], target: KubernetesTarget, code: str, words: str) -> None:
    made = planned(having(), target, data=[{**DIGITS, **data}])
    assert words in blockers(made)[code]
    assert made.manifests(MountVolumeStep) == []
    [fix] = [note.fix for note in made.notes if note.code == code]
    assert code != "mount-driver" or "aws eks create-addon" in fix


def test_endpoint_variable_without_effect_is_noted() -> None:
    made = planned(ALL, data=[DIGITS], env={"AWS_ENDPOINT_URL_S3": "http://minio:9000"})
    assert "mount-endpoint" in {note.code for note in made.notes}


def test_mount_fields_without_a_mount_are_refused() -> None:
    with pytest.raises(JobFileError, match="which only via: mount uses"):
        Job(name="x", run="x.py", data=[{"name": "digits", "source": "s3://bucket/d", "write": True}])


@pytest.mark.parametrize(
    "fields",
    [
        {**FILES, "id": "0123"},
        {**FILES, "dns_name": "x"},
        {**LUSTRE, "mount_name": None},
        {**FILES, "path": "/a/../b"},
        {**FILES, "source": "/data"},
    ],
)
def test_a_file_system_that_cannot_be_mounted_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="FileSystem"):
        FileSystem(**fields)


def test_login_without_permission_for_volumes_gets_the_administrators_command(
    server: ObjectServer, tmp_path: Path
) -> None:
    server.forbidden = {"persistentvolumes"}
    facts = dataclasses.replace(ALL, kubeconfig=server.kubeconfig(tmp_path))
    notes = dry_run(planned(facts, TARGET.model_copy(update={"namespace": "team"}), data=[DIGITS]))
    [note] = [note for note in notes if note.code == "mount-rights"]
    assert note.blocks
    assert note.fix.endswith("| kubectl apply -f -")
    assert not [other for other in notes if "PersistentVolume" in other.message and other is not note]


def test_missing_storage_class_is_noted(server: ObjectServer, tmp_path: Path) -> None:
    facts = dataclasses.replace(ALL, kubeconfig=server.kubeconfig(tmp_path))
    target = TARGET.model_copy(update={"namespace": "team"})
    made = planned(facts, target, kubernetes={"results": {"size": "20GiB", "storage_class": "efs"}})
    [note] = [note for note in dry_run(made) if note.code == "storage-class-missing"]
    assert (note.message.partition(":")[0], note.blocks) == ("the cluster has no storage class efs", False)
    server.put("StorageClass", "efs")
    assert "storage-class-missing" not in {note.code for note in dry_run(made)}


def test_claim_without_a_class_is_refused_in_a_cluster_without_a_default_class(
    server: ObjectServer, tmp_path: Path
) -> None:
    facts = dataclasses.replace(ALL, kubeconfig=server.kubeconfig(tmp_path))
    target = TARGET.model_copy(update={"namespace": "team"})
    made = planned(facts, target, kubernetes={"results": {"size": "20GiB"}})

    def found() -> list[bool]:
        return [note.blocks for note in dry_run(made) if note.code == "storage-class-missing"]

    server.put("StorageClass", "efs")
    assert found() == [True]
    server.put("PersistentVolume", "by-hand", spec={}, status={"phase": "Available"})
    assert found() == [False], "the claim may be bound to that volume"
    server.forbidden = {"persistentvolumes"}
    assert found() == [False]
    default = {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
    server.put("StorageClass", "gp3", metadata=default)
    assert found() == []


def test_exported_manifests_have_the_volumes() -> None:
    assert CODE is not None
    found = manifests(planned(ALL, data=[DIGITS]), CODE.data, 0.0)
    assert {"PersistentVolume", "PersistentVolumeClaim"} <= {one["kind"] for one in found.objects}
    assert "persistentvolumes" not in found.kinds, "removing a run leaves what other runs read"


def test_staged_data_set_is_not_mounted() -> None:
    assert not Data(name="digits", source="/sets/digits", via="mount").is_mounted
