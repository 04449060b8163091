"""Tasks of FSx for Lustre that keep a file system and its bucket alike, run by the FSx API."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from windlass.errors import EngineError
from windlass.infra.aws import Aws, aws_errors

UNDER_WAY: Final = frozenset({"PENDING", "EXECUTING"})
EXPORT: Final = "EXPORT_TO_REPOSITORY"
POLL_SECONDS: Final = 10.0


def begin_export(aws: Aws, file_system: str, folder: str) -> str:
    """Begin to write a folder to the bucket; returns the id of the task, which goes on without the caller.

    A task of the folder that is under way is returned instead. Raises AwsError where the account refuses it.
    """
    for known in _tasks(aws, file_system):
        if known["Lifecycle"] in UNDER_WAY and known["Type"] == EXPORT and known.get("Paths", []) == [folder]:
            return str(known["TaskId"])
    with aws_errors(f"start {EXPORT} on {file_system}", action="fsx:CreateDataRepositoryTask"):
        answer = aws.client("fsx").create_data_repository_task(
            Type=EXPORT, FileSystemId=file_system, Report={"Enabled": False}, Paths=[folder]
        )
    return str(answer["DataRepositoryTask"]["TaskId"])


def wait(
    aws: Aws, task_id: str, on_progress: Callable[[str, float | None], None],
    sleep: Callable[[float], None] = time.sleep,
) -> None:  # fmt: skip
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
        if state == "SUCCEEDED":
            return
        if state not in UNDER_WAY:
            reason = (task.get("FailureDetails") or {}).get("Message", "no reason reported")
            hint = f"aws fsx describe-data-repository-tasks --task-ids {task_id}"
            raise EngineError(f"the FSx task {task_id} is {state}: {reason}", hint)
        sleep(POLL_SECONDS)


def _tasks(aws: Aws, file_system: str) -> Iterator[dict[str, Any]]:
    chosen = [{"Name": "file-system-id", "Values": [file_system]}]
    token: dict[str, str] = {}
    while True:
        with aws_errors(f"list tasks of {file_system}", action="fsx:DescribeDataRepositoryTasks"):
            page = aws.client("fsx").describe_data_repository_tasks(Filters=chosen, **token)
        yield from page["DataRepositoryTasks"]
        if not page.get("NextToken"):
            return
        token = {"NextToken": page["NextToken"]}
