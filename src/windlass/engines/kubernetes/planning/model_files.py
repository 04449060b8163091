"""Decides how the files of a model reach the pods of a deployment, and packs those that travel in ConfigMaps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from windlass.code.pack import archive_of
from windlass.engines.kubernetes.objects.deployment_manifests import ModelFiles
from windlass.engines.kubernetes.objects.manifests import num_pieces
from windlass.engines.kubernetes.objects.transfer_manifests import READ
from windlass.engines.model_files import files_in
from windlass.errors import UsageError

if TYPE_CHECKING:
    from windlass.engines.deployments import DeploymentRequest
    from windlass.spec.targets import KubernetesTarget

CLAIM: Final = "claim:"
MAX_ARCHIVE_BYTES: Final = 3 << 20
"""Most bytes of an archive that travels in ConfigMaps: they are kept in the memory of the API server."""
MAX_PACKED_BYTES: Final = 64 << 20
"""Size of a folder in bytes from which its archive is not tried: packing it would take seconds."""
SPARE_BYTES: Final = 1 << 30
"""Bytes of a claim for a model beyond the size of the model: file systems need some, and providers round up."""


def packed(folder: Path) -> bytes:
    """Returns the archive of a model's folder: the same files give the same bytes. Raises UsageError."""
    archive, vanished = archive_of((name, path.resolve()) for name, path in files_in(folder))
    if vanished:
        raise UsageError(f"{', '.join(sorted(vanished))} was removed from {folder} meanwhile", "deploy the model again")
    return archive


def model_files(asked: DeploymentRequest, target: KubernetesTarget) -> tuple[ModelFiles, bytes]:
    """Returns how the files reach the pods, and the archive for ConfigMaps, which is empty if they carry none.

    Raises UsageError for files that no pod could read.
    """
    size = sum(path.stat().st_size for _, path in files_in(asked.model))
    archive = packed(asked.model) if size <= MAX_PACKED_BYTES else b""
    fits = bool(archive) and len(archive) <= MAX_ARCHIVE_BYTES
    if asked.source:
        if not fits:
            raise UsageError(
                f"the code of the model has {size >> 20} MiB, and at most {MAX_ARCHIVE_BYTES >> 20} MiB travel with it",
                "name the folder of the code alone",
            )
        claim, path = _source(asked.source)
        return ModelFiles(num_pieces(len(archive)), claim, path), archive
    if fits:
        return ModelFiles(num_pieces(len(archive))), archive
    storage_class = target.data.storage_class if target.data is not None else None
    made = size + size // 10 + SPARE_BYTES
    return ModelFiles(claim=f"{asked.name}-model", path="model", made_bytes=made, storage_class=storage_class), b""


def _source(address: str) -> tuple[str, str]:
    """Returns the claim of a source, empty for an object store, and the path in it or the address."""
    if address.startswith(CLAIM):
        claim, _, path = address.removeprefix(CLAIM).partition("/")
        if not claim or ".." in path.split("/"):
            raise UsageError(f"{address} names no path in a claim", "write for example claim:results/digits/output")
        return claim, path.strip("/") or "."
    scheme, separator, _ = address.partition("://")
    if not separator or scheme not in READ:
        raise UsageError(
            f"{address} is not reached from the pods of a cluster",
            f"known are claim:NAME/PATH and {', '.join(f'{one}://' for one in READ)}; or give a folder of this machine",
        )
    return "", address
