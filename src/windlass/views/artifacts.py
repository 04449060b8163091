"""Results of a run and copied files: what `windlass artifacts` and `windlass cp` print."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.runs.phase import Phase


@dataclass(frozen=True, slots=True)
class Artifact:
    """A result of a run."""

    kind: str
    """`outputs`, `checkpoints`, `uploaded`: outputs in a store, or `code`: what a script has left in its own folder."""
    place: str
    """`folder` of this machine, `claim` or `pods` of a cluster, or `store`."""
    where: str
    """A path, in a claim relative to it, or an address."""
    claim: str = ""
    """Name of the claim; empty for other places."""
    files: int | None = None
    """Null where they were not counted, and for checkpoints."""
    bytes: int | None = None
    """Of complete checkpoints together, or of the newest one where the others were not read; null where not known."""
    digest: str = ""
    """Digest of the uploaded set."""
    steps: tuple[int, ...] | None = None
    """Of complete checkpoints, the newest first; null where they were not read."""
    newest_step: int | None = None
    """Step of the newest checkpoint."""
    others: int = 0
    """Entries of the folder that are no checkpoints of windlass.train."""
    copy: str = ""
    """The command that copies it to this machine; empty where there is nothing to be copied."""
    note: str = ""
    """A remark for the user, such as: deleted with the pods."""


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file of the outputs."""

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
    """What `cp` copied."""

    id: str
    path: str
    """Where they are now, in the run or on this machine."""
    files: int
    bytes: int
    left_out: tuple[str, ...]
    """What was not copied, each with the reason: links that lead out, devices."""
