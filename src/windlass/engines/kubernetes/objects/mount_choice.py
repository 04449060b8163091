"""Chooses by which driver a data set in S3 is mounted. Pure.

mountpoint  Mountpoint for Amazon S3: reads objects of the bucket as files; changes no file in place
s3-files    S3 Files, by the driver of EFS from 3.0 on: a file system of NFS over a bucket
lustre      FSx for Lustre with a data repository association
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from windlass.spec.parts import Data, FileSystem

MOUNTPOINT, S3_FILES, LUSTRE = "mountpoint", "s3-files", "lustre"
DRIVERS: Final = {MOUNTPOINT: "s3.csi.aws.com", S3_FILES: "efs.csi.aws.com", LUSTRE: "fsx.csi.aws.com"}
ADD_ONS: Final = {
    MOUNTPOINT: "aws-mountpoint-s3-csi-driver",
    S3_FILES: "aws-efs-csi-driver",
    LUSTRE: "aws-fsx-csi-driver",
}
"""Of EKS, by which each driver is installed."""
SMALL_BYTES: Final = 1 << 20
"""Files that are smaller on average cost more in requests than in transfer."""
MANY_FILES: Final = 1_000_000
"""So many count as small files where the size of the set is not given."""
LARGE_BYTES: Final = 1 << 40
"""A set from this size on is not read from the bucket again in each epoch."""


@dataclass(frozen=True, slots=True)
class Way:
    """How one set can be mounted."""

    kind: str
    folder: str
    """Of the volume, which has the set: relative, empty for all of it."""
    file_system: FileSystem | None = None
    """None for Mountpoint, whose volume is the set itself."""

    @property
    def driver(self) -> str:
        """Name of the CSI driver."""
        return DRIVERS[self.kind]


def ways(data: Data, file_systems: Sequence[FileSystem]) -> Iterator[Way]:
    """All ways to mount a set, whatever is installed."""
    yield Way(MOUNTPOINT, "")
    for one in file_systems:
        above, below = one.source.rstrip("/") + "/", data.source.rstrip("/") + "/"
        if below.startswith(above):
            folder = posixpath.join(one.path.strip("/"), below.removeprefix(above).rstrip("/")).strip("/")
            yield Way(one.kind, folder, one)


def choose(data: Data, file_systems: Sequence[FileSystem], drivers: Collection[str] | None) -> tuple[Way | None, str]:
    """The way for a set, and why this one; None where there is none, and what is missing.

    `drivers` are those that the cluster has; None is not known, and all count as installed.
    """
    every = list(ways(data, file_systems))
    order, why = _order(data)
    fit = [way for kind in order for way in every if way.kind == kind]
    found = [way for way in fit if drivers is None or way.driver in drivers]
    if found:
        others = [way.kind for way in found[1:]]
        return found[0], why if others or len(order) == 1 else f"{why}; nothing else is there for it"
    return None, why


def _order(data: Data) -> tuple[tuple[str, ...], str]:
    """The kinds that serve a set, the best first, and the reason."""
    if data.write:
        return (S3_FILES, LUSTRE), "it is written, and needs a file system in which files change in place"
    if data.files is not None and data.size is not None and data.size < data.files * SMALL_BYTES:
        return (LUSTRE, S3_FILES, MOUNTPOINT), f"its files have {data.size // data.files:,} bytes on average"
    if data.files is not None and data.size is None and data.files >= MANY_FILES:
        return (LUSTRE, S3_FILES, MOUNTPOINT), f"it has {data.files:,} files"
    if data.size is not None and data.size >= LARGE_BYTES:
        return (LUSTRE, MOUNTPOINT, S3_FILES), "it is large, and Lustre keeps what was read once"
    return (MOUNTPOINT, S3_FILES, LUSTRE), "it is read as it is in the bucket, without another file system"
