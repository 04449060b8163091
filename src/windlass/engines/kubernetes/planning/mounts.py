"""Plans the volumes of data sets with `via: mount`: drivers, steps, and what the cluster lacks. Pure."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from windlass.engines.kubernetes.objects.mount_manifests import (
    ADD_ONS,
    DRIVERS,
    LUSTRE,
    MOUNTPOINT,
    S3_FILES,
    Mounted,
    MountMethod,
    Volume,
    volume,
)
from windlass.plan.notes import Note, blocker
from windlass.plan.steps import MountClaimStep, MountStep, MountVolumeStep, Step

if TYPE_CHECKING:
    from windlass.engines.kubernetes.planning.facts import Cluster
    from windlass.spec.job import Job
    from windlass.spec.sections import Data, FileSystem
    from windlass.spec.targets import KubernetesTarget

SOURCE: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[\w!.'()*=+@-]+)*/?", re.ASCII)
"""Matches addresses whose prefix can be used as a mount option and as a folder of a volume."""
ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
SMALL_BYTES: Final = 1 << 20
"""Average file size in bytes below which requests cost more than the transfer."""
MANY_FILES: Final = 1_000_000
"""Number of files from which a data set of unknown size counts as one of small files."""
LARGE_BYTES: Final = 1 << 40
"""Bytes from which a data set should not be read again from the bucket in each epoch."""


PlannedMount: TypeAlias = "tuple[Data, MountMethod, Volume, str]"
"""A data set, its mount method, its volume, and the reason for the method."""


@dataclass(frozen=True, slots=True)
class Mounts:
    """The data sets that a cluster mounts for a run."""

    sets: tuple[Mounted, ...]
    """Data sets as the pods mount them."""
    steps: tuple[Step, ...]
    """Steps that create volumes, and one for the mount of each data set."""


def ways(data: Data, file_systems: Sequence[FileSystem]) -> Iterator[MountMethod]:
    """Yields all methods to mount a data set, regardless of installed drivers."""
    yield MountMethod(MOUNTPOINT, "")
    for one in file_systems:
        above, below = one.source.rstrip("/") + "/", data.source.rstrip("/") + "/"
        if below.startswith(above):
            folder = posixpath.join(one.path.strip("/"), below.removeprefix(above).rstrip("/")).strip("/")
            yield MountMethod(one.kind, folder, one)


def choose(
    data: Data, file_systems: Sequence[FileSystem], drivers: Collection[str] | None
) -> tuple[MountMethod | None, str]:
    """Returns the best method to mount a data set, or None if none works; and the reason for the preferred method.

    `drivers` are the CSI drivers of the cluster; None (unknown) counts all as installed.
    """
    every = list(ways(data, file_systems))
    order, why = _order(data)
    fit = [method for kind in order for method in every if method.kind == kind]
    found = [method for method in fit if drivers is None or method.driver in drivers]
    if found:
        others = [method.kind for method in found[1:]]
        return found[0], why if others or len(order) == 1 else f"{why}; no other method is available"
    return None, why


def _order(data: Data) -> tuple[tuple[str, ...], str]:
    """Returns the kinds of file systems for a data set, best first, and the reason."""
    if data.write:
        return (S3_FILES, LUSTRE), "it is written, and needs a file system in which files change in place"
    if data.files is not None and data.size is not None and data.size < data.files * SMALL_BYTES:
        return (LUSTRE, S3_FILES, MOUNTPOINT), f"its files have {data.size // data.files:,} bytes on average"
    if data.files is not None and data.size is None and data.files >= MANY_FILES:
        return (LUSTRE, S3_FILES, MOUNTPOINT), f"it has {data.files:,} files"
    if data.size is not None and data.size >= LARGE_BYTES:
        return (LUSTRE, MOUNTPOINT, S3_FILES), "it is large, and Lustre keeps what was read once"
    return (MOUNTPOINT, S3_FILES, LUSTRE), "it is read from the bucket, without another file system"


def plan_mounts(job: Job, target: KubernetesTarget, cluster: Cluster | None) -> Mounts:
    """Plans the mounts of a job's data sets for which the cluster has a driver."""
    planned = list(_planned(job, target, cluster))
    sets = (Mounted(data.name, made.claim_name, method.folder, data.write) for data, method, made, _ in planned)
    return Mounts(tuple(sets), tuple(_steps(planned, cluster)))


def _steps(planned: Iterable[PlannedMount], cluster: Cluster | None) -> Iterator[Step]:
    """Yields steps for volumes that do not exist yet, and for the mount of each data set."""
    made: set[str] = set()
    for data, method, one, why in planned:
        name = one.claim_name
        if name not in made and (cluster is None or not cluster.has_claim(name)):
            for kind, manifest in ((MountVolumeStep, one.persistent), (MountClaimStep, one.claim)):
                yield kind(f"make {manifest['kind']} {manifest['metadata']['name']}, which no run removes", manifest)
        made.add(name)
        how = "" if data.write else " read-only"
        yield MountStep(
            f"mount {data.source}{how} as ${data.env_name} by {method.kind} ({method.driver}): {why}",
            name=data.name,
            source=data.source,
            by=method.kind,
            claim=name,
            folder=method.folder,
            why=why,
        )


def wanted_claims(job: Job, target: KubernetesTarget) -> list[str]:
    """Returns the names of the claims of a job's data sets, for all mount methods that may be chosen."""
    namespace = job.kubernetes.namespace or target.namespace
    return [
        volume(method, data.source, namespace, target.user).claim_name
        for data in _mountable(job)
        for method in ways(data, target.file_systems)
    ]


def mount_notes(job: Job, target: KubernetesTarget, cluster: Cluster | None) -> Iterator[Note]:
    """Yields notes on problems that keep data sets from being mounted, and on properties of the volumes."""
    drivers = None if cluster is None else cluster.csi_drivers
    for data in (one for one in job.data if one.is_mounted):
        if not SOURCE.fullmatch(data.source):
            yield blocker(
                "mount-source",
                f"data {data.name}: {data.source} cannot be mounted",
                "write s3://BUCKET/PREFIX without spaces and special letters; or via: copy",
            )
            continue
        method, why = choose(data, target.file_systems, drivers)
        if method is None:
            yield _no_way(data, target, why)
        elif method.kind == LUSTRE and method.file_system is not None:
            yield _of_repository(data, method)
    if cluster is not None and drivers is None and any(one.is_mounted for one in job.data):
        yield Note(
            "mount-unknown",
            "this login may not list CSIDrivers: drivers that mount data are assumed to be installed",
            "see: kubectl get csidrivers",
        )
    if any(one.is_mounted for one in job.data) and any(name in {**target.env, **job.env} for name in ENDPOINTS):
        yield Note(
            "mount-endpoint",
            "AWS_ENDPOINT_URL_S3 has no effect on volumes: the drivers mount Amazon S3",
            "leave via: mount out for a set of another store",
        )


def _no_way(data: Data, target: KubernetesTarget, why: str) -> Note:
    has_others = any(method.kind != MOUNTPOINT for method in ways(data, target.file_systems))
    if data.write and not has_others:
        return blocker(
            "mount-write",
            f"data {data.name}: {why}, and target {target.name} names none for {data.source}",
            "file_systems: [{kind: s3-files, id: fs-…, source: s3://BUCKET/}] in the target; or outputs:",
        )
    kinds = dict.fromkeys(
        method.kind for method in ways(data, target.file_systems) if not data.write or method.file_system
    )
    names = " or ".join(DRIVERS[kind] for kind in kinds)
    commands = "; or ".join(
        f"aws eks create-addon --cluster-name CLUSTER --addon-name {ADD_ONS[kind]}" for kind in kinds
    )
    return blocker("mount-driver", f"data {data.name}: the cluster has no CSI driver {names}", commands)


def _of_repository(data: Data, method: MountMethod) -> Note:
    """Returns a note on imports or exports that Lustre does not run automatically, with the AWS CLI command that runs
    them.
    """
    assert method.file_system is not None
    system = method.file_system.id
    kind, message = (
        (
            "EXPORT_TO_REPOSITORY",
            f"data {data.name}: what is written gets to {data.source} by the export policy of {system} alone",
        )
        if data.write
        else (
            "IMPORT_METADATA_FROM_REPOSITORY",
            f"data {data.name}: {system} loads a file from the bucket when it is first read",
        )
    )
    paths = ["--paths", method.folder] if method.folder else []
    command = ["aws", "fsx", "create-data-repository-task", "--file-system-id", system, "--type", kind, *paths,
               "--report", "Enabled=false"]  # fmt: skip
    return Note("mount-repository", message, shlex.join(command))


def _planned(job: Job, target: KubernetesTarget, cluster: Cluster | None) -> Iterator[PlannedMount]:
    namespace = job.kubernetes.namespace or target.namespace
    for data in _mountable(job):
        method, why = choose(data, target.file_systems, None if cluster is None else cluster.csi_drivers)
        if method is not None:
            yield data, method, volume(method, data.source, namespace, target.user), why


def _mountable(job: Job) -> Iterator[Data]:
    for data in job.data:
        if data.is_mounted and SOURCE.fullmatch(data.source) and ".." not in data.source.split("/"):
            yield data
