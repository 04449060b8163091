"""Synchronizes FSx for Lustre file systems with their bucket, by tasks of the FSx API."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from windlass.clusters.aws import Aws, NotThere, aws_errors
from windlass.clusters.eks.outputs import FSX_PATH
from windlass.clusters.find import ManagedCluster, OnEvent, StageStarted, Warned
from windlass.clusters.terraform.folder import write_private
from windlass.errors import EngineError, UsageError, WindlassError
from windlass.runs.clock import Clock

if TYPE_CHECKING:
    from windlass.clusters.eks.contents import Contents

UNDER_WAY: Final = frozenset({"PENDING", "EXECUTING"})
EXPORT: Final = "EXPORT_TO_REPOSITORY"
POLL_SECONDS: Final = 10.0
EXPORTED: Final = "exported.json"
"""File with the FSx file systems that a running `down` has exported. Terraform destroys the link to the bucket first,
so a `down` that continues after a kill could not export again. The next `up` deletes the file."""


def exists(aws: Aws, file_system: str) -> bool:
    """Whether a file system exists and is not being deleted. Raises AwsError."""
    try:
        with aws_errors(f"describe {file_system}", action="fsx:DescribeFileSystems"):
            [found] = aws.client("fsx").describe_file_systems(FileSystemIds=[file_system])["FileSystems"]
    except NotThere:
        return False
    return bool(found["Lifecycle"] != "DELETING")


def linked(aws: Aws, file_system: str) -> tuple[str, ...]:
    """Returns the folders of a file system that data repository associations link to a bucket; `/` is the whole file
    system.

    Raises AwsError.
    """
    found = _listed(aws, file_system, "describe_data_repository_associations", "Associations")
    return tuple(str(one["FileSystemPath"]) for one in found if one["Lifecycle"] != "DELETING")


def under_way(aws: Aws, file_system: str, folder: str) -> str:
    """Returns the id of a running task that exports a folder to the bucket; empty without one. Files written after the
    task started are not included. Raises AwsError.
    """
    for known in _listed(aws, file_system, "describe_data_repository_tasks", "DataRepositoryTasks"):
        paths = [one for one in known.get("Paths", ()) if one.strip("/")]
        if known["Type"] == EXPORT and known["Lifecycle"] in UNDER_WAY and paths == _paths(folder):
            return str(known["TaskId"])
    return ""


def begin_export(aws: Aws, file_system: str, folder: str) -> str:
    """Starts the export of a folder to the bucket; returns the id of the task, which continues if the caller exits.

    Raises AwsError if the account refuses it.
    """
    paths = _paths(folder)
    with aws_errors(f"start {EXPORT} on {file_system}", action="fsx:CreateDataRepositoryTask"):
        answer = aws.client("fsx").create_data_repository_task(
            Type=EXPORT,
            FileSystemId=file_system,
            Report={"Enabled": False},
            **({"Paths": paths} if paths else {}),
        )
    return str(answer["DataRepositoryTask"]["TaskId"])


def _paths(folder: str) -> list[str]:
    """Returns a folder as the path list of an export task; an empty list stands for the whole file system."""
    return [folder.strip("/")] if folder.strip("/") else []


def wait(
    aws: Aws,
    task_id: str,
    on_progress: Callable[[str, float | None], None],
    clock: Clock | None = None,
) -> None:
    """Blocks until a task has succeeded. Progress is reported as the task's lifecycle state in the API and the
    completed fraction, 0 to 1, if known. Raises EngineError with the API's reason if the task fails, and AwsError.
    """
    clock = clock or Clock()
    while True:
        with aws_errors(f"describe {task_id}", action="fsx:DescribeDataRepositoryTasks"):
            answer = aws.client("fsx").describe_data_repository_tasks(TaskIds=[task_id])
        [task] = answer["DataRepositoryTasks"]
        state, status = str(task["Lifecycle"]), task.get("Status") or {}
        total, done = status.get("TotalCount"), status.get("SucceededCount", 0) + status.get("FailedCount", 0)
        on_progress(state, done / total if total else None)
        failed = status.get("FailedCount", 0)
        if state == "SUCCEEDED" and not failed:
            return
        if state not in UNDER_WAY:
            state += f" with {failed} files that failed" if failed else ""
            reason = (task.get("FailureDetails") or {}).get("Message", "no reason reported")
            hint = f"aws fsx describe-data-repository-tasks --task-ids {task_id}"
            raise EngineError(f"the FSx task {task_id} is {state}: {reason}", hint)
        clock.wait(POLL_SECONDS)


def _listed(aws: Aws, file_system: str, operation: str, key: str) -> Iterator[dict[str, Any]]:
    """Yields all items that an operation lists for a file system; botocore has no paginators for them."""
    chosen = [{"Name": "file-system-id", "Values": [file_system]}]
    token: dict[str, str] = {}
    client = aws.client("fsx")
    while True:
        with aws_errors(f"{operation.replace('_', ' ')} of {file_system}"):
            page = getattr(client, operation)(Filters=chosen, **token)
        yield from page[key]
        if not page.get("NextToken"):
            return
        token = {"NextToken": page["NextToken"]}


@dataclass(frozen=True, slots=True)
class Exporting:
    """Progress of an FSx export."""

    state: str
    share: float | None


def export(named: ManagedCluster, found: Contents, aws: Aws, on_event: OnEvent, *, force: bool) -> tuple[str, ...]:
    """Exports files that are only in FSx to the bucket, and waits; returns descriptions of what was not exported.

    Raises UsageError for a file system that cannot be exported, EngineError and AwsError for a failed export. With
    `force`, these failures are returned instead.
    """
    lost = []
    for system in found.fsx_ids:
        try:
            _export(named, system, aws, on_event)
        except WindlassError as error:
            if not force:
                raise
            lost.append(
                f"the file system {system} was not exported, and was deleted with all its files: {error.message}"
            )
            on_event(Warned(f"continuing without the export of {system}: {error.message}"))
    return tuple(lost)


def _export(named: ManagedCluster, system: str, aws: Aws, on_event: OnEvent) -> None:
    if not exists(aws, system):  # an earlier `down` has deleted the file system
        return
    folders, record = linked(aws, system), named.folder.path / EXPORTED
    before = json.loads(record.read_bytes()) if record.exists() else []
    if not folders and system in before:
        return
    for folder in folders:
        on_event(StageStarted(f"exporting files of {system} that are not in the bucket"))
        if earlier := under_way(aws, system, folder):  # a task of an interrupted `down` may miss later files
            wait(aws, earlier, lambda state, share: on_event(Exporting(state, share)))
        task = begin_export(aws, system, folder)
        wait(aws, task, lambda state, share: on_event(Exporting(state, share)))
    if FSX_PATH not in folders:
        what = f"all but {', '.join(folders)}" if folders else "all of it"
        raise UsageError(
            f"{what} of the file system {system} is not linked to a bucket and cannot be exported",
            f"windlass cluster up {named.cluster.name} links it; --force deletes it",
        )
    write_private(record, json.dumps(sorted({*before, system})).encode())
