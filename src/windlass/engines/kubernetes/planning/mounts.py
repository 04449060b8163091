"""Plans the volumes of data sets with `via: mount`: steps, mounts of the pods, and what a cluster lacks. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.mount_choice import ADD_ONS, DRIVERS, LUSTRE, MOUNTPOINT, Way, choose, ways
from windlass.engines.kubernetes.objects.mount_manifests import Volume, volume
from windlass.engines.kubernetes.objects.workloads.base import Manifest
from windlass.plan.plan import Note, Step, blocker

if TYPE_CHECKING:
    from windlass.engines.kubernetes.planning.facts import Cluster, Facts
    from windlass.spec.job import Job
    from windlass.spec.parts import Data
    from windlass.spec.targets import KubernetesTarget

VOLUME_STEP, CLAIM_STEP = "mount-volume", "mount-claim"
SOURCE: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[\w!.'()*=+@-]+)*/?", re.ASCII)
"""Addresses whose prefix can be an option of a mount and a folder of a volume."""
ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


@dataclass(frozen=True, slots=True)
class Mounted:
    """A data set as the pods of a run mount it."""

    name: str
    """Of the data set."""
    claim: str
    folder: str
    """Of the claim; empty for all of it."""
    is_written: bool

    @property
    def path(self) -> str:
        """Where the ranks find it."""
        return f"{layout.MOUNTS}/{self.name}"


def mounted(job: Job, target: KubernetesTarget, cluster: Cluster | None) -> tuple[Mounted, ...]:
    """The sets that are mounted, as far as the cluster can."""
    return tuple(
        Mounted(data.name, made.claim_name, way.folder, data.write)
        for data, way, made, _ in _planned(job, target, cluster)
    )


def wanted_claims(job: Job, target: KubernetesTarget) -> list[str]:
    """The claims that the sets of a job would have, whichever way is chosen for each."""
    namespace = job.kubernetes.namespace or target.namespace
    return [
        volume(way, data.source, namespace, target.user).claim_name
        for data in _mountable(job)
        for way in ways(data, target.file_systems)
    ]


def mount_steps(job: Job, target: KubernetesTarget, facts: Facts) -> Iterator[Step]:
    """The volumes that are not there yet, and where each set is."""
    made: set[str] = set()
    for data, way, one, why in _planned(job, target, facts.cluster):
        name = one.claim_name
        if name not in made and (facts.cluster is None or not facts.cluster.has_claim(name)):
            for kind, manifest in ((VOLUME_STEP, one.persistent), (CLAIM_STEP, one.claim)):
                yield Step(
                    kind, f"make {manifest['kind']} {manifest['metadata']['name']}, which no run removes", manifest
                )
        made.add(name)
        how = "" if data.write else " read-only"
        yield Step(
            "mount",
            f"mount {data.source}{how} as ${data.env_name} by {way.kind} ({way.driver}): {why}",
            {
                "name": data.name,
                "source": data.source,
                "kind": way.kind,
                "claim": name,
                "folder": way.folder,
                "why": why,
            },
        )


def mount_notes(job: Job, target: KubernetesTarget, cluster: Cluster | None) -> Iterator[Note]:
    """What keeps sets from being mounted, and what a user has to know of the volumes."""
    drivers = None if cluster is None else cluster.csi_drivers
    for data in (one for one in job.data if one.is_mounted):
        if not SOURCE.fullmatch(data.source):
            yield blocker(
                "mount-source",
                f"data {data.name}: {data.source} cannot be mounted",
                "write s3://BUCKET/PREFIX without spaces and special letters; or via: copy",
            )
            continue
        way, why = choose(data, target.file_systems, drivers)
        if way is None:
            yield _no_way(data, target, why)
        elif way.kind == LUSTRE and way.file_system is not None:
            yield _of_repository(data, way)
    if cluster is not None and drivers is None and any(one.is_mounted for one in job.data):
        yield Note(
            "mount-unknown",
            "this login may not list CSIDrivers: those that mount data are taken as installed",
            "see: kubectl get csidrivers",
        )
    if any(one.is_mounted for one in job.data) and any(name in {**target.env, **job.env} for name in ENDPOINTS):
        yield Note(
            "mount-endpoint",
            "AWS_ENDPOINT_URL_S3 has no effect on volumes: the drivers mount Amazon S3",
            "leave via: mount out for a set of another store",
        )


def _no_way(data: Data, target: KubernetesTarget, why: str) -> Note:
    has_others = any(way.kind != MOUNTPOINT for way in ways(data, target.file_systems))
    if data.write and not has_others:
        return blocker(
            "mount-write",
            f"data {data.name}: {why}, and target {target.name} names none for {data.source}",
            "file_systems: [{kind: s3-files, id: fs-…, source: s3://BUCKET/}] in the target; or outputs:",
        )
    kinds = dict.fromkeys(way.kind for way in ways(data, target.file_systems) if not data.write or way.file_system)
    names = " or ".join(DRIVERS[kind] for kind in kinds)
    commands = "; or ".join(
        f"aws eks create-addon --cluster-name CLUSTER --addon-name {ADD_ONS[kind]}" for kind in kinds
    )
    return blocker("mount-driver", f"data {data.name}: the cluster has no CSI driver {names}", commands)


def _of_repository(data: Data, way: Way) -> Note:
    """What of a repository Lustre does not do by itself, with the command of the AWS CLI that does it."""
    assert way.file_system is not None
    system = way.file_system.id
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
    paths = ["--paths", way.folder] if way.folder else []
    command = ["aws", "fsx", "create-data-repository-task", "--file-system-id", system, "--type", kind, *paths,
               "--report", "Enabled=false"]  # fmt: skip
    return Note("mount-repository", message, shlex.join(command))


def _planned(job: Job, target: KubernetesTarget, cluster: Cluster | None) -> Iterator[tuple[Data, Way, Volume, str]]:
    namespace = job.kubernetes.namespace or target.namespace
    for data in _mountable(job):
        way, why = choose(data, target.file_systems, None if cluster is None else cluster.csi_drivers)
        if way is not None:
            yield data, way, volume(way, data.source, namespace, target.user), why


def _mountable(job: Job) -> Iterator[Data]:
    for data in job.data:
        if data.is_mounted and SOURCE.fullmatch(data.source) and ".." not in data.source.split("/"):
            yield data


def volumes(sets: tuple[Mounted, ...]) -> Iterator[tuple[str, str, Manifest, Manifest]]:
    """Volumes of a pod as `manifests` lists them; sets of one claim share a volume."""
    places = {claim: at for at, claim in enumerate(dict.fromkeys(one.claim for one in sets))}
    for one in sets:
        more: Manifest = {"subPath": one.folder} if one.folder else {}
        if not one.is_written:
            more["readOnly"] = True
        yield f"mount-{places[one.claim]}", one.path, {"persistentVolumeClaim": {"claimName": one.claim}}, more
