"""Interface of what keeps a file system and its bucket alike: preloading before a run, exporting after it.

FSx for Lustre loads a file when it is first read, and exports by the policy of its data repository association. A
package that calls the AWS API implements `RepositoryTasks`; plans name the tasks that a user may want as commands.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class TaskKind(Enum):
    """What a task of a data repository does; the values are those of the FSx API."""

    IMPORT = "IMPORT_METADATA_FROM_REPOSITORY"
    """Lists the bucket, so that new objects are seen. Contents are loaded when they are read."""
    EXPORT = "EXPORT_TO_REPOSITORY"
    """Writes new and changed files to the bucket."""
    RELEASE = "RELEASE_DATA_FROM_FILESYSTEM"
    """Frees the space of files that are in the bucket."""


@dataclass(frozen=True, slots=True)
class RepositoryTask:
    """A request for a task."""

    kind: TaskKind
    file_system: str
    """Its id, such as `fs-0123456789abcdef0`."""
    folder: str
    """Relative to the root of the file system; empty for all of it."""

    @property
    def command(self) -> str:
        """The command that does the same."""
        paths = ["--paths", self.folder] if self.folder else []
        words = ["aws", "fsx", "create-data-repository-task", "--file-system-id", self.file_system, "--type",
                 self.kind.value, *paths, "--report", "Enabled=false"]  # fmt: skip
        return shlex.join(words)


class RepositoryTasks(Protocol):
    """Runs tasks of data repositories in an account. Each is asynchronous: it goes on without the caller."""

    def start(self, task: RepositoryTask) -> str:
        """Begin a task; returns its id. A task of the same kind and folder that is under way is returned instead.

        Raises EngineError where the account refuses it.
        """

    def state(self, task_id: str) -> tuple[str, float | None]:
        """The lifecycle of a task as the API has it, such as `EXECUTING` or `SUCCEEDED`, and the share done, 0 to 1,
        where it is known. Raises EngineError.
        """

    def cancel(self, task_id: str) -> None:
        """End a task; what it has moved stays. A no-op once it has ended. Raises EngineError."""
