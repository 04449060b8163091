"""Tasks of FSx for Lustre that keep a file system and its bucket alike, run by the FSx API."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from windlass.clusters.aws import Aws, NotThere, aws_errors
from windlass.errors import EngineError

UNDER_WAY: Final = frozenset({"PENDING", "EXECUTING"})
EXPORT: Final = "EXPORT_TO_REPOSITORY"
POLL_SECONDS: Final = 10.0


def exists(aws: Aws, file_system: str) -> bool:
    """Whether a file system is there, and not being deleted. Raises AwsError."""
    try:
        with aws_errors(f"describe {file_system}", action="fsx:DescribeFileSystems"):
            [found] = aws.client("fsx").describe_file_systems(FileSystemIds=[file_system])["FileSystems"]
    except NotThere:
        return False
    return bool(found["Lifecycle"] != "DELETING")


def linked(aws: Aws, file_system: str) -> tuple[str, ...]:
    """Folders of a file system that are linked to a bucket, by its data repository associations: `/` is all of it.

    Raises AwsError.
    """
    found = _listed(aws, file_system, "describe_data_repository_associations", "Associations")
    return tuple(str(one["FileSystemPath"]) for one in found if one["Lifecycle"] != "DELETING")


def under_way(aws: Aws, file_system: str, folder: str) -> str:
    """The id of a task that writes a folder to the bucket and has not ended; empty where there is none. Files that were
    written since it began are not in it. Raises AwsError.
    """
    for known in _listed(aws, file_system, "describe_data_repository_tasks", "DataRepositoryTasks"):
        paths = [one for one in known.get("Paths", ()) if one.strip("/")]
        if known["Type"] == EXPORT and known["Lifecycle"] in UNDER_WAY and paths == _paths(folder):
            return str(known["TaskId"])
    return ""


def begin_export(aws: Aws, file_system: str, folder: str) -> str:
    """Begin to write a folder to the bucket; returns the id of the task, which goes on without the caller.

    Raises AwsError where the account refuses it.
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
    """A folder as tasks name it; none stands for the whole file system."""
    return [folder.strip("/")] if folder.strip("/") else []


def wait(
    aws: Aws,
    task_id: str,
    on_progress: Callable[[str, float | None], None],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Block until a task has succeeded; progress is its lifecycle as the API has it, and the share done, 0 to 1,
    where it is known. Raises EngineError where it fails, with the reason of the API, and AwsError.
    """
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
        sleep(POLL_SECONDS)


def _listed(aws: Aws, file_system: str, operation: str, key: str) -> Iterator[dict[str, Any]]:
    """All that an operation lists of a file system; botocore has no paginators for them."""
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
