"""Views of the web page: each is rendered by a template, and returned as JSON at the page's address with `.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from windlass.code.revision import Revision
from windlass.plan.price import Price
from windlass.runs.data import DataDifference
from windlass.runs.events import CheckpointChanged, ConditionChanged, DataStaged, Progress
from windlass.runs.ledger import Billed, Cost, Ledger
from windlass.runs.phase import Phase
from windlass.runs.time_accounting import Spent
from windlass.runs.warnings import RunWarning
from windlass.views.artifacts import Artifact
from windlass.views.checkpoints import CheckpointView
from windlass.views.disk import RunDisk
from windlass.views.warm import WarmProcess


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in the list of runs."""

    id: str
    name: str
    target: str
    phase: Phase
    created_at: float
    """Creation time in Unix seconds."""
    seconds: float
    """Seconds from the creation of the run to its end, or to now."""
    user: str
    labels: Mapping[str, str]
    note: str
    progress: Progress
    attempts: int
    """Number of started attempts."""
    cause: str
    """Root cause of the newest failure in one sentence; empty without a failure."""
    warnings: int
    """Number of warnings."""
    stale: str
    """Why the state may be outdated; empty if it is current."""
    is_recorded: bool
    """Whether this machine has the record of the run, so that the run has a page."""


@dataclass(frozen=True, slots=True)
class TargetState:
    """How current the list of runs of a target is."""

    name: str
    kind: str
    """Kind of the target: `local`, `kubernetes`, `sagemaker` or `sagemaker-local`."""
    place: str
    """Location of the target: `this machine`, context and namespace of a cluster, or region of an account."""
    as_of: float | None
    """Unix seconds of the last response of the target; null if it has not responded since the page was started."""
    trouble: str
    """Why the target does not respond; empty if it does, or was not asked yet."""


@dataclass(frozen=True, slots=True)
class RunsQuery:
    """Filters, order and page of a list of runs."""

    text: str = ""
    """Part of a run id or job name, or a pattern with `*`."""
    label: str = ""
    """Required label as `key` or `key=value`."""
    phase: str = ""
    """Required phase, or `active` for every run that has not ended."""
    target: str = ""
    sort: str = "created"
    """Column that orders the list: `created`, `name`, `phase`, `target` or `time`."""
    reverse: bool = False
    page: int = 1
    """Number of the page, from 1."""


@dataclass(frozen=True, slots=True)
class RunsPage:
    """One page of the list of runs."""

    query: RunsQuery
    runs: tuple[RunRow, ...]
    total: int
    """Number of runs that match the filters."""
    pages: int
    """Number of pages, at least 1."""
    phases: Mapping[str, int]
    """Number of runs in each phase, without filters."""
    targets: tuple[TargetState, ...]
    unreadable: int
    """Number of runs that another version of Windlass recorded and this one cannot read."""


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """An attempt of a run."""

    number: int
    world_size: int
    phase: Phase
    started_at: float
    """Start in Unix seconds."""
    ended_at: float | None
    reason: str | None
    """Why the attempt ended; null while it runs, and if it succeeded."""
    restored_step: int | None
    """Step of the checkpoint from which it continued; null if none was restored."""
    is_resume: bool


@dataclass(frozen=True, slots=True)
class StripPiece:
    """An interval of a run that was spent on one purpose."""

    begin: float
    """Seconds since the creation of the run."""
    seconds: float
    spent: Spent


@dataclass(frozen=True, slots=True)
class RankCounts:
    """Ranks of the newest attempt."""

    running: int
    succeeded: int
    failed: int
    failures: Mapping[int, int]
    """Exit codes of the first failed ranks, by rank."""


@dataclass(frozen=True, slots=True)
class RunPage:
    """Head of the page of a run."""

    id: str
    name: str
    target: str
    host: str | None
    """Host name of the machine that supervises the run; null if its supervisor runs in the cluster."""
    user: str
    labels: Mapping[str, str]
    note: str
    phase: Phase
    exit_code: int | None
    created_at: float
    ended_at: float | None
    seconds: float
    """Seconds from the creation of the run to its end, or to now."""
    progress: Progress
    share: float | None
    """Completed fraction, 0 to 1; null if unknown."""
    rate: float | None
    """Steps per second; null if unknown."""
    left_seconds: float | None
    """Seconds to the last step; null if unknown."""
    waits_for: str
    cause: str
    """Root cause of the newest failure in one sentence; empty without a failure."""
    needs_attention: bool
    """Whether the verdict of `windlass why` is shown above everything else."""
    condition: ConditionChanged | None
    warnings: tuple[RunWarning, ...]
    checkpoint: CheckpointChanged | None
    """Newest saved checkpoint."""
    restarts_left: int | None
    num_nodes: int
    procs_per_node: int
    ranks: RankCounts
    num_attempts: int
    attempts: tuple[AttemptRow, ...]
    """The newest attempts, oldest first."""
    strip: tuple[StripPiece, ...]
    """What the time was spent on, without gaps. Long runs are divided into at most 400 equal parts, each with the
    purpose that took most of its time."""
    output_dir: str
    stale: str
    """Why the state may be outdated; empty if it is current."""
    as_of: float | None
    """Unix seconds at which the state was read; null if it is current."""
    actions: tuple[str, ...]
    """Actions that this page offers: `stop`, `resume`, `rerun`, `note`. Empty without `--allow-actions`."""


@dataclass(frozen=True, slots=True)
class RunTime:
    """Time and cost of a run, by purpose."""

    id: str
    ledger: Ledger
    cost: Cost | None
    """Cost so far; null if the target has no price."""
    price: Price | None
    """Price in the plan; null if the target has none."""
    billed: Billed | None
    """Usage that the target bills; null if it has reported none."""


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event of a run as a sentence."""

    seq: int
    time: float
    """Unix seconds."""
    kind: str
    text: str
    colour: str
    """Colour of the sentence: `red`, `yellow`, …; empty for none."""


@dataclass(frozen=True, slots=True)
class RunEvents:
    """Events of a run, newest first."""

    id: str
    began_at: float
    events: tuple[EventRow, ...]
    before: int | None
    """Query `before` of the page with older events; null if there are none."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step of a plan with its exact request."""

    kind: str
    summary: str
    request: str
    """The request as indented JSON."""
    is_cut: bool
    """Whether `request` is shortened, because the request is longer than the page shows."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The plan of a run: its job, every step and every request."""

    id: str
    job: str
    """Fields of the job that differ from their defaults, as YAML."""
    notes: tuple[Mapping[str, Any], ...]
    """Warnings with `code`, `message` and `fix`."""
    steps: tuple[StepRow, ...]
    num_steps: int


@dataclass(frozen=True, slots=True)
class RunEnvironment:
    """Interpreter, command, variables, code and data of a run."""

    id: str
    python: str
    """Interpreter of the worker on each node."""
    command: tuple[str, ...]
    """Command of each rank."""
    folder: str
    """Working folder of the ranks."""
    variables: Mapping[str, Mapping[str, str]]
    """Names and values of the recorded variables, by origin: `contract`, `engine`, `target` and `job`."""
    imports: tuple[str, ...]
    """Slow libraries that the script imports."""
    revision: Revision | None
    """Git commit of the code; null outside a git work tree."""
    code_digest: str
    """SHA-256 of the stored code; empty if it was not stored."""
    code_not_kept: str
    """Why the code was not stored beside the record; empty if it was."""
    data: tuple[DataStaged, ...]
    """Staged data sets with their digests."""
    data_differences: tuple[DataDifference, ...]
    """Data sets whose contents differ from the newest earlier run of the job."""


@dataclass(frozen=True, slots=True)
class RunCheckpoints:
    """The checkpoints of a run."""

    id: str
    folder: str
    checkpoints: tuple[CheckpointView, ...]
    """Newest first, at most 200."""
    total: int
    note: str
    """Why the list may be incomplete; empty if it is complete."""


@dataclass(frozen=True, slots=True)
class FileRow:
    """A file or folder among the results of a run."""

    name: str
    path: str
    """Path below the folder of the results; empty for a name that is not valid Unicode, which no URL leads to."""
    is_folder: bool
    bytes: int | None
    """Size; null for a folder."""
    changed_at: float


@dataclass(frozen=True, slots=True)
class RunArtifacts:
    """The results of a run, and the files in one of its folders."""

    id: str
    artifacts: tuple[Artifact, ...]
    path: str
    """Folder whose files are listed, below the folder of the results; empty for that folder itself."""
    files: tuple[FileRow, ...]
    """Folders first, each by name; at most 500."""
    total: int
    """Number of files and folders in `path`."""
    note: str
    """Why no files are listed; empty if they are."""


@dataclass(frozen=True, slots=True)
class MetricName:
    """A metric of a run that the chart can show."""

    name: str
    source: str
    ranks: tuple[int, ...]
    """The first 64 ranks that have reported it."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A series for a chart; the columns have the same length. Values are numbers, or `nan`, `inf` and `-inf`."""

    run: str
    name: str
    source: str
    rank: int
    steps: tuple[float | None, ...]
    times: tuple[float, ...]
    """Seconds since the creation of the run."""
    values: tuple[float | str, ...]
    restarts: tuple[int, ...]
    """Indices of the first point of each attempt after the first."""
    points: int
    """Number of points before downsampling."""
    not_finite: int
    """Number of these points whose value is NaN or infinite."""


@dataclass(frozen=True, slots=True)
class MetricsData:
    """Data of the chart of a run."""

    id: str
    began_at: float
    names: tuple[MetricName, ...]
    """All metrics of the run, `loss` first; at most 500. Empty beside the curves of a metric."""
    curves: tuple[Curve, ...]
    note: str
    """Why this machine does not have the metrics yet; empty if it has them."""


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """A run of a comparison."""

    id: str
    phase: Phase
    created_at: float
    seconds: float
    progress: Progress
    note: str


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A setting in which the compared runs differ."""

    kind: str
    """`argument` of the script, `env`, `setting` of the job, `code`, `data` or `environment`."""
    name: str
    """Name of the property: `--lr`, `restarts.max`, `commit`, or the name of a variable or data set."""
    values: tuple[str, ...]
    """The value in each run; empty where it is not set, `unknown` if it is not known."""


@dataclass(frozen=True, slots=True)
class ComparePage:
    """Runs side by side: their differing settings, and the metrics whose curves can be compared."""

    runs: tuple[ComparedRow, ...]
    settings: tuple[SettingRow, ...]
    """Settings that differ; at most 100."""
    names: tuple[str, ...]
    """Names of the metrics of the runs, `loss` first; at most 500."""
    note: str
    """Why metrics are missing; empty if each run has some."""
    missing: tuple[str, ...]
    """Ids of the query that are not recorded on this machine, or by another version of Windlass."""


@dataclass(frozen=True, slots=True)
class CompareData:
    """Curves of one metric in several runs."""

    name: str
    curves: tuple[Curve, ...]


@dataclass(frozen=True, slots=True)
class HeatRow:
    """A row of the heat map: one rank, or all ranks that have no row of their own."""

    label: str
    """`rank 3`, or `936 other ranks`."""
    rank: int | None
    """The rank; null for several."""
    values: tuple[float | None, ...]
    """Mean seconds per step in each column; null without a measurement."""
    median: float


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Seconds per step of each rank over time, which shows a straggler."""

    id: str
    times: tuple[float, ...]
    """Unix seconds at which each column begins."""
    column_seconds: float
    rows: tuple[HeatRow, ...]
    """By rank; with more than 64 ranks, the slowest ones and a last row for the others."""
    lowest: float
    highest: float
    median: float
    """Median of the medians of all ranks."""
    fastest: float
    """Lowest median of a rank."""
    slowest: int | None
    """The slowest rank, if its median is more than a tenth above the median of all ranks; otherwise null."""


@dataclass(frozen=True, slots=True)
class LogRow:
    """A line of a log."""

    offset: int
    """Position of the line in the log of its rank, in bytes; -1 in the merged output of several ranks."""
    time: float
    """Arrival time in Unix seconds."""
    rank: int
    text: str
    """Text without control characters."""


@dataclass(frozen=True, slots=True)
class LogWindow:
    """A part of a log."""

    id: str
    attempt: int
    rank: int | None
    """The rank; null for the merged output of all ranks."""
    begin: int
    """Position of the first line in bytes."""
    end: int
    """Position after the last complete line in bytes."""
    size: int
    """Size of the log in bytes, without an incomplete last line."""
    lines: tuple[LogRow, ...]


@dataclass(frozen=True, slots=True)
class LogMatches:
    """Lines of a log that contain a text."""

    id: str
    attempt: int
    rank: int
    text: str
    matches: tuple[LogRow, ...]
    next_offset: int | None
    """Position at which the next search continues; null at the end of the log."""
    size: int


@dataclass(frozen=True, slots=True)
class LogsPage:
    """The logs of a run: attempts, ranks, and the end of the chosen log."""

    id: str
    phase: Phase
    attempts: tuple[int, ...]
    ranks: int
    """Number of ranks of the chosen attempt."""
    window: LogWindow
    where: str
    """Where the logs are if they are not on this machine; empty if they are."""


@dataclass(frozen=True, slots=True)
class TargetRow:
    """A target and its unfinished runs."""

    state: TargetState
    file: str | None
    """File that defines the target; null for `local` without one."""
    settings: Mapping[str, Any]
    active: tuple[RunRow, ...]
    """Unfinished runs, newest first; at most 100."""
    num_active: int
    num_runs: int
    """Number of known runs."""


@dataclass(frozen=True, slots=True)
class TargetsPage:
    """All targets with their unfinished runs."""

    targets: tuple[TargetRow, ...]


@dataclass(frozen=True, slots=True)
class DiskPage:
    """Warm processes of this machine."""

    warm: tuple[WarmProcess, ...]
    warm_bytes: int


@dataclass(frozen=True, slots=True)
class DiskPart:
    """Disk space that the home folder and the largest runs use."""

    home: str
    bytes: int
    as_of: float | None
    """Unix seconds of the measurement; null while the first one is made."""
    runs: tuple[RunDisk, ...]
    """The 100 largest runs."""
    num_runs: int
    others: Mapping[str, int]
    """Bytes of all other entries in the home folder by name."""


@dataclass(frozen=True, slots=True)
class ConfirmPage:
    """Confirmation form of an action."""

    id: str
    action: str
    """`stop`, `resume`, `rerun` or `note`."""
    phase: Phase
    note: str


@dataclass(frozen=True, slots=True)
class RefusalPage:
    """Why a request was refused or failed."""

    status: int
    """HTTP status code."""
    message: str
    hint: str
