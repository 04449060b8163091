"""What the other commands print: verdicts, costs, checkpoints, checks, and files that were written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from windlass.diagnose.verdict import Diagnosis, Verdict
from windlass.engines.checks import Check, ObjectChange
from windlass.errors import Problem
from windlass.importers.source import Left
from windlass.plan.plan import Note, Plan
from windlass.runs.data import DataDifference
from windlass.runs.events import EMPTY, Entry
from windlass.runs.ledger import Billed, Cost, Ledger, Restart
from windlass.runs.phase import Phase
from windlass.runs.record import Status
from windlass.runs.warnings import RunWarning
from windlass.worker.values import Value


@dataclass(frozen=True, slots=True)
class Removed:
    """A run that a watched list no longer has."""

    id: str
    removed: bool = True


@dataclass(frozen=True, slots=True)
class RunId:
    """A run that was started and is not waited for."""

    id: str


@dataclass(frozen=True, slots=True)
class RemovedRuns:
    """What `rm` removed."""

    removed: tuple[str, ...]
    """Ids, in the order in which they were given."""


@dataclass(frozen=True, slots=True)
class LogLineView:
    """A line of a rank."""

    time: float
    """When it arrived, in Unix seconds."""
    attempt: int
    """From 1."""
    rank: int
    text: str
    """Without its newline."""


@dataclass(frozen=True, slots=True)
class TargetView:
    """A target that `--on` can name."""

    name: str
    kind: str
    """`local`, `kubernetes`, `sagemaker` or `sagemaker-local`."""
    place: str
    """`this machine`, the context and namespace of a cluster, or the region of an account."""
    file: str | None
    """The file that names it; null for `local` where none does."""
    settings: Mapping[str, Any]
    """Its other fields, as far as they are not their defaults."""


class WarmProcess(Value):
    """A process from which ranks are forked, or an environment in which none is safe; a field is there where it is
    known."""

    name: str
    state: str
    """`importing`, `ready` or `refused`."""
    pid: int = 0
    started_at: float = 0.0
    """Unix seconds."""
    python: str = ""
    """Its interpreter."""
    modules: tuple[str, ...] = ()
    """Those that are wanted."""
    imported: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Modules that are left to the scripts, each with the reason."""
    trying: tuple[str, ...] = ()
    """Modules that are tried now."""
    reads_all: str = ""
    """The function that has read the whole environment; empty where none has."""
    forks: int = 0
    """Nodes that were started from it."""
    resident_bytes: int = 0
    why: str = ""
    """Why it is refused."""


@dataclass(frozen=True, slots=True)
class StoppedWarm:
    """The warm processes that `warm stop` has ended."""

    stopped: tuple[str, ...]
    """Their names."""


@dataclass(frozen=True, slots=True)
class RunNote:
    """The note on a run."""

    id: str
    note: str
    """Empty where there is none."""


@dataclass(frozen=True, slots=True)
class RunDisk:
    """What a run takes on the disk of this machine."""

    id: str
    phase: Phase
    bytes: int
    """Of its folder: logs, code, results and checkpoints that are in it."""
    result_files: int
    """Files of its results, where those are in its folder."""
    result_bytes: int
    checkpoint_bytes: int
    """Of the checkpoints in its folder."""


@dataclass(frozen=True, slots=True)
class DiskUse:
    """What the records of this machine take on its disk."""

    home: str
    """The folder, `$WINDLASS_HOME`."""
    bytes: int
    """Of all of it."""
    runs: tuple[RunDisk, ...]
    """The largest first."""
    others: Mapping[str, int]
    """Bytes of everything else in the folder by its name: sets of data, clusters, the record itself."""


@dataclass(frozen=True, slots=True)
class PrunedRun:
    """A run that ended long ago."""

    id: str
    phase: Phase
    age_seconds: float
    """Since its end."""
    bytes: int
    """Of its folder."""
    result_files: int
    """Files of its results in that folder."""
    kept_for: str = ""
    """Why it was not removed: `results`, or a sentence; empty for one that was."""


@dataclass(frozen=True, slots=True)
class PrunedRuns:
    """What `prune` removed, oldest first."""

    removed: tuple[PrunedRun, ...]
    kept: tuple[PrunedRun, ...]
    """Those that `--force` would have removed too."""
    is_dry: bool
    """Whether nothing was removed."""


@dataclass(frozen=True, slots=True)
class VerdictView:
    """One explanation of how a run ended."""

    verdict: str
    """A stable code; docs/concepts/why.md lists all."""
    summary: str
    """What happened, in one sentence without a full stop."""
    rank: int | None
    """The rank that it began with; null where it concerns none or all."""
    evidence: tuple[str, ...]
    """What was observed that supports it, the strongest first."""
    fix: str
    """What to do about it."""


@dataclass(frozen=True, slots=True)
class Why(VerdictView):
    """The verdict on a run, with what it may be else."""

    id: str
    phase: Phase
    others: tuple[VerdictView, ...]
    """Other explanations, the likeliest first."""
    not_seen: tuple[str, ...]
    """What could not be examined, and why."""
    restarts: tuple[Restart, ...]
    """Every attempt but the first."""
    warnings: tuple[RunWarning, ...]
    """What did not end the run and may spoil its result."""
    data_differences: tuple[DataDifference, ...]
    """Data sets that an earlier run of the job has not read."""


def why_of(
    status: Status, diagnosis: Diagnosis, restarts: list[Restart], data_differences: tuple[DataDifference, ...] = ()
) -> Why:
    """The view of a diagnosis."""
    return Why(
        *_fields(diagnosis.verdict),
        id=status.id,
        phase=status.phase,
        others=tuple(VerdictView(*_fields(other)) for other in diagnosis.others),
        not_seen=diagnosis.not_seen,
        restarts=tuple(restarts),
        warnings=status.warnings,
        data_differences=data_differences,
    )


def _fields(verdict: Verdict) -> tuple[str, str, int | None, tuple[str, ...], str]:
    return verdict.code, verdict.summary, verdict.rank, verdict.evidence, verdict.fix


@dataclass(frozen=True, slots=True)
class CostReport:
    """What a run has cost."""

    id: str
    phase: Phase
    ledger: Ledger
    cost: Cost | None
    """Null where the target has no price."""
    billed: Billed | None = None
    """Null where the target reports nothing of that."""


class FileSize(Entry):
    """A file of the code."""

    name: str
    bytes: int


class IgnoredFiles(Entry):
    """Files and folders that are not shipped, by the line of an ignore file."""

    source: str
    """File and line of the pattern."""
    pattern: str
    entries: int


class CodeRequest(Entry):
    """The request of a plan's step of kind `code`: the archive that is shipped."""

    folder: str
    digest: str
    """SHA-256 of the archive."""
    bytes: int
    """Of the archive."""
    pieces: tuple[Mapping[str, Any], ...]
    """The objects that carry it."""
    unpacked_bytes: int = 0
    """Of the folder's files that are shipped."""
    files: tuple[FileSize, ...] = ()
    """Of the folder, by name."""
    left_out: tuple[IgnoredFiles, ...] = ()
    added: Mapping[str, int] = EMPTY
    """Number and bytes of the files of Windlass itself."""


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """One checkpoint, as its name and manifest describe it."""

    name: str
    path: str
    step: int
    """Steps done over the whole run."""
    epoch: int
    """The epoch to continue with."""
    created_at: float
    """Unix seconds; of the folder where there is no manifest."""
    bytes: int
    complete: bool
    """Whether its manifest is valid."""
    state: str
    """`complete`, `unfinished`, `damaged`, `unreadable` or `unknown-format`, by its manifest."""
    attempt: int
    """The attempt that saved it."""
    world_size: int
    """Number of ranks that saved it."""
    problem: str
    """Why it is not complete."""


@dataclass(frozen=True, slots=True)
class CheckpointList:
    """The checkpoints of a run."""

    id: str
    folder: str
    checkpoints: tuple[CheckpointView, ...]
    """Newest first."""


@dataclass(frozen=True, slots=True)
class VerifiedCheckpoint:
    """One checkpoint of which every byte was read."""

    name: str
    state: str
    """`verified`, `damaged`, `unreadable`, `unknown-format` or `unfinished`."""
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VerifiedCheckpoints:
    """What `checkpoints verify` found."""

    id: str
    ok: bool
    """Whether all are verified."""
    checkpoints: tuple[VerifiedCheckpoint, ...]


@dataclass(frozen=True, slots=True)
class PrunedCheckpoints:
    """What `checkpoints prune` removed."""

    id: str
    removed: tuple[str, ...]
    set_aside: tuple[str, ...]
    """Damaged ones that were renamed, by the name that they had."""
    kept: tuple[str, ...]
    freed_bytes: int


@dataclass(frozen=True, slots=True)
class ExportedCheckpoint:
    """The file that `checkpoints export` wrote."""

    id: str
    name: str
    """The checkpoint."""
    path: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Artifact:
    """One thing that a run has made."""

    kind: str
    """`outputs`, `checkpoints`, `uploaded`: outputs in a store, or `code`: what a script has left in its own folder."""
    place: str
    """`folder` of this machine, `claim` or `pods` of a cluster, or `store`."""
    where: str
    """A path, in a claim relative to it, or an address."""
    claim: str = ""
    """Its name; empty elsewhere."""
    files: int | None = None
    """Null where they were not counted, and for checkpoints."""
    bytes: int | None = None
    """Of complete checkpoints together, or of the newest one where the others were not read; null where not known."""
    digest: str = ""
    """Of the set that was uploaded."""
    steps: tuple[int, ...] | None = None
    """Of complete checkpoints, the newest first; null where they were not read."""
    newest_step: int | None = None
    """Of the newest checkpoint."""
    others: int = 0
    """Entries of the folder that are no checkpoints of windlass.train."""
    copy: str = ""
    """The command that copies it to this machine; empty where there is nothing to be copied."""
    note: str = ""
    """What a user has to know of it, such as that it is deleted with the pods."""


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file of the outputs."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class ArtifactList:
    """What a run has made."""

    id: str
    phase: Phase
    artifacts: tuple[Artifact, ...]
    files: tuple[OutputFile, ...] | None
    """Of the outputs, the first 10,000 by name; null without --files."""


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """What `doctor` found on this machine."""

    ok: bool
    """Whether no check failed."""
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class CheckedJob:
    """A job that was checked against a target."""

    ok: bool
    """Whether it can be run."""
    name: str
    target: str
    nodes: int
    procs_per_node: int
    job: Mapping[str, Any]
    """Every field that is not its default."""
    notes: tuple[Note, ...]
    """Errors and warnings."""


def checked_of(plan: Plan) -> CheckedJob:
    """The view of a job that was checked, by its plan."""
    is_ok = not any(note.blocks for note in plan.notes)
    return CheckedJob(is_ok, plan.name, plan.target, plan.num_nodes, plan.procs_per_node, plan.job, plan.notes)


@dataclass(frozen=True, slots=True)
class CheckedCluster:
    """A cluster that was checked."""

    ok: bool
    """Whether jobs can run there."""
    target: str
    context: str
    namespace: str
    server: str
    checks: tuple[Check, ...]
    missing: tuple[str, ...]
    """RBAC permissions that are required and not granted, as `create jobs.batch`."""
    network: Mapping[str, Any] | None
    """Measured between two pods: `nodes`, `latency_seconds` (round trip, median), `bytes_per_second` (there and back),
    `all_reduce_bytes_per_second`; null where it was not measured."""
    job: CheckedJob | None
    """Null where there is no job file."""


@dataclass(frozen=True, slots=True)
class TargetSetup:
    """What `target setup` did."""

    target: str
    objects: tuple[ObjectChange, ...]
    """In the order in which they were created or removed."""


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


@dataclass(frozen=True, slots=True)
class WrittenJob:
    """The files that `init` wrote."""

    written: tuple[str, ...]
    template: str
    reason: str
    """Why this template."""


@dataclass(frozen=True, slots=True)
class ImportedJob:
    """What `import` made of a manifest."""

    written: tuple[str, ...]
    """Empty where the file went to standard output."""
    kind: str
    """Kind of the manifest."""
    job: Mapping[str, Any]
    text: str
    """The job file."""
    left: tuple[Left, ...]
    """Fields of the manifest that the job file does not have."""
    target: str
    """The target to paste into targets.yaml; empty where the manifest says nothing of one."""


@dataclass(frozen=True, slots=True)
class ErrorView:
    """Why a command failed."""

    code: int
    """The exit code."""
    message: str
    hint: str
    """What to do; may be empty."""
    problems: tuple[Problem, ...]
    """All errors of a file."""


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """On standard error, where a command with -o json fails."""

    error: ErrorView


@dataclass(frozen=True, slots=True)
class EventView:
    """One event; the fields of its kind are beside these, see docs/concepts/record.md."""

    seq: int
    """1, 2, 3 … within the run."""
    time: float
    """Unix seconds."""
    kind: str


@dataclass(frozen=True, slots=True)
class RefusedFile:
    """A file that was not copied, or is not as its manifest says."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class DataCopied:
    """What `data copy` did."""

    source: str
    destination: str
    digest: str
    """Of the set at the destination."""
    files: int
    """That are there now."""
    bytes: int
    copied_files: int
    copied_bytes: int
    unchanged_files: int
    refused: tuple[RefusedFile, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class DataCopyPreview:
    """What `data copy --dry-run` found: nothing was written."""

    source: str
    destination: str
    files: tuple[DataFile, ...]
    """That would be copied, by name; without digests, for none is read."""
    bytes: int
    """Of these files."""
    unchanged_files: int
    refused: tuple[RefusedFile, ...]


@dataclass(frozen=True, slots=True)
class DataVerified:
    """What `data verify` found."""

    address: str
    ok: bool
    digest: str
    """Of the set, by its manifest."""
    files: int
    bytes: int
    problems: tuple[RefusedFile, ...]
    extra: tuple[str, ...]
    """Files that the manifest does not have."""


@dataclass(frozen=True, slots=True)
class CachedData:
    """A set in the cache of this machine."""

    digest: str
    """Empty for one of which only a part was fetched."""
    folder: str
    """Where its files are; after `data stage --on`, the claim that has them."""
    files: int
    bytes: int
    sources: tuple[str, ...]
    """Addresses that had it when they were last read."""
    used_at: float
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class StagedData(CachedData):
    """What `data stage` did."""

    fetched_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class DataCacheList:
    """The cache of this machine."""

    sets: tuple[CachedData, ...]
    """The least recently used first."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of a set."""

    name: str
    bytes: int
    digest: str
    """By the manifest; empty where that does not have the file in this version."""


@dataclass(frozen=True, slots=True)
class DataList:
    """What `data ls` shows."""

    address: str
    digest: str
    """Of the set; empty where its manifest cannot be read, or has other files or versions."""
    files: tuple[DataFile, ...]
    problem: str
    """Why its manifest cannot be read, or how the files differ from it; empty where neither is so, or there is none."""
