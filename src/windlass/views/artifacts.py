"""Results of a run and copied files: output of `windlass artifacts` and `windlass cp`."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.runs.phase import Phase


@dataclass(frozen=True, slots=True)
class Artifact:
    """A result of a run."""

    kind: str
    """Kind of result: `outputs`, `checkpoints`, `uploaded` (outputs in an object store), or `code` (files that the
    script left in its code folder)."""
    place: str
    """Kind of storage: `folder` on this machine, `claim` or `pods` of a cluster, or object `store`."""
    where: str
    """Location of the result: a path, relative to the claim if `claim` is set, or an address in an object store."""
    claim: str = ""
    """Name of the claim; empty for other places."""
    files: int | None = None
    """Number of files of the result; null for checkpoints, and if the files were not counted."""
    bytes: int | None = None
    """Size in bytes; null if unknown. For checkpoints, the total size of the complete checkpoints, or the size of the
    newest if no other size is known."""
    digest: str = ""
    """Digest of the uploaded outputs."""
    steps: tuple[int, ...] | None = None
    """Steps of complete checkpoints, newest first; null if they were not read."""
    newest_step: int | None = None
    """Step of the newest checkpoint."""
    others: int = 0
    """Number of entries in the folder that are not checkpoints of windlass.train."""
    copy: str = ""
    """Command that copies the result to this machine; empty if there is nothing to copy."""
    note: str = ""
    """Remark for the user, such as `deleted with the pods`."""


@dataclass(frozen=True, slots=True)
class OutputFile:
    """An output file."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class ArtifactList:
    """The results of a run."""

    id: str
    phase: Phase
    artifacts: tuple[Artifact, ...]
    files: tuple[OutputFile, ...] | None
    """The first 10,000 output files by name; null without --files."""


@dataclass(frozen=True, slots=True)
class CopiedFiles:
    """Files copied by the command `cp`."""

    id: str
    path: str
    """Path of the copy, in the run or on this machine."""
    files: int
    bytes: int
    left_out: tuple[str, ...]
    """Paths that were not copied, each with the reason: links that lead outside, devices."""
