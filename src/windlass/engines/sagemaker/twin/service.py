"""Emulates SageMaker on this machine: training jobs whose hosts are processes with SageMaker's container contract.

The files of a job are described in `job.py`; the differences from SageMaker in decision 0069.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from windlass.compat import override
from windlass.engines import netns
from windlass.engines.sagemaker.service import (
    ENDED,
    IN_USE,
    STOPPING,
    VALIDATION,
    Absent,
    Description,
    LogPage,
    Refused,
    Request,
    Service,
)
from windlass.engines.sagemaker.twin import logs
from windlass.engines.sagemaker.twin.description import TRAINING, StateRecorder
from windlass.engines.sagemaker.twin.hosts import end_leftovers
from windlass.engines.sagemaker.twin.job import (
    FOLDERS,
    INTERRUPT,
    NAME,
    NAMESPACES,
    STOP,
    JobFolder,
    Settings,
    system_errors,
)
from windlass.storage.files import write_whole
from windlass.worker import process

FOLDER: Final = "sagemaker-local"
"""Folder of all jobs, in the folder of this user's records."""
ALLOWED: Final = ".namespaces"
"""File in the folder of jobs: the environments in which namespaces are known to work, which saves a test."""
GRACE_SECONDS: Final = 120.0
"""Seconds between SIGTERM and SIGKILL, as in SageMaker."""
PROBE_SECONDS: Final = 120.0


class Twin(Service):
    """Training jobs on this machine. A job continues after the process that created it has ended."""

    poll_seconds = 0.1
    logs_are_prompt = True
    settle_seconds = 0.0

    def __init__(
        self,
        home: Path,
        environ: Mapping[str, str],
        *,
        grace_seconds: float = GRACE_SECONDS,
        isolation: str = "",
        python: str = sys.executable,
    ) -> None:
        """`home`: folder below which jobs are stored. `environ`: source of the containers' PATH, HOME and `AWS_*`
        variables, which replace the role. `isolation`: `namespaces` or `folders`; by default, whichever this machine
        allows. `python`: interpreter whose folder comes first in the containers' PATH.
        """
        self._root = home / FOLDER
        self._environ = dict(environ)
        self._grace_seconds = grace_seconds
        self._isolation = isolation
        self._why = "it was requested" if isolation else ""
        self._python = python

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def create(self, request: Request) -> None:
        """Creates a job. Raises Refused with `IN_USE` if it exists, EngineError if the folder of jobs cannot be
        written.
        """
        body: dict[str, Any] = json.loads(json.dumps(request))
        self._find_isolation()
        if body.get("EnableNetworkIsolation"):
            self._require_networks()
        settings = Settings(self._isolation, self._why, self._grace_seconds, self._python, time.time())
        job = JobFolder(self._root / body["TrainingJobName"])
        with system_errors(str(self._root)):
            if job.path.exists():
                raise _in_use(job.name)
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = self._make(job, body, settings)
            try:
                self._start_manager(job, lock)
            finally:
                os.close(lock)

    def describe(self, name: str) -> Description:
        """Returns SageMaker's description of a job, with the additional fields `WindlassHosts` and
        `WindlassSkipped`.
        """
        job = self._job(name)
        with system_errors(str(job.path)):
            state = self._state(job)
            if state.get("TrainingJobStatus") not in ENDED and job.is_marked(STOP):
                state |= {"TrainingJobStatus": STOPPING}
            request = job.request()
            request.pop("Tags", None)  # DescribeTrainingJob returns no tags
            created = job.settings().created
        return {
            **request,
            "TrainingJobArn": job.arn,
            "TrainingJobStatus": "InProgress",
            "SecondaryStatus": "Starting",
            "SecondaryStatusTransitions": [],
            "CreationTime": created,
            "LastModifiedTime": created,
            **state,
        }

    @override
    def stop(self, name: str) -> None:
        self._require_running(name)
        with system_errors(name):
            self._job(name).mark(STOP)

    def interrupt(self, name: str) -> None:
        """Interrupts a job on spot capacity, as SageMaker may at any time; its hosts are started again.

        Raises Refused with `VALIDATION` for other jobs, and if no container is running.
        """
        found = self._require_running(name)
        if not found.get("EnableManagedSpotTraining"):
            raise Refused(VALIDATION, f"{name} is not on spot capacity", "set EnableManagedSpotTraining")
        if found["SecondaryStatus"] != TRAINING:
            raise Refused(VALIDATION, f"{name} is in status {found['SecondaryStatus']}", "wait until it is Training")
        with system_errors(name):
            self._job(name).mark(INTERRUPT)

    def delete(self, name: str) -> None:
        """Deletes an ended job. Raises Refused with `VALIDATION` if the job has not ended."""
        status = self.describe(name)["TrainingJobStatus"]
        if status not in ENDED:
            raise Refused(VALIDATION, f"the training job {name} is in status {status}", "stop it first")
        job = self._job(name)
        with system_errors(name):
            lock = job.lock(waits=True)  # waits while the manager removes the folders of its hosts
            try:
                gone = self._root / f".gone-{secrets.token_hex(8)}"
                job.path.rename(gone)  # renamed first, because a job must not be partly deleted
                shutil.rmtree(gone)
            finally:
                if lock is not None:
                    os.close(lock)

    def close(self) -> None:
        """Does nothing: there are no connections."""

    # -- logs ---------------------------------------------------------------------------------------------------------

    @override
    def log_streams(self, name: str, *, is_over: bool = False) -> list[str]:
        job = self._job(name)
        with system_errors(str(job.logs)):
            return logs.streams(job.logs, job.name)

    def read_log(self, stream: str, *, since: int = 0, token: str | None = None) -> LogPage:
        """Returns a page of a stream. Tokens are byte offsets. Raises Refused with `VALIDATION` for an unknown
        stream.
        """
        found = logs.STREAM.fullmatch(stream)
        if found is None:
            raise Refused(VALIDATION, f"{stream[:200]!r} is no log stream", "they are called NAME/algo-1-SECONDS")
        job = self._job(found["job"])
        with system_errors(stream):
            try:
                return logs.read_page(job.logs / found["file"], since, token)
            except FileNotFoundError:
                raise Refused(VALIDATION, f"there is no log stream {stream}") from None

    # -- a job --------------------------------------------------------------------------------------------------------

    def _job(self, name: str) -> JobFolder:
        """Returns the folder of a job. Raises Absent if the job does not exist."""
        job = JobFolder(self._root / name) if NAME.fullmatch(name) else None
        if job is None or not job.exists():
            raise Absent(VALIDATION, f"Requested resource not found: there is no training job {name[:80]!r}")
        return job

    def _require_running(self, name: str) -> Description:
        found = self.describe(name)
        if (status := found["TrainingJobStatus"]) in ENDED:
            raise Refused(VALIDATION, f"The request was rejected because the training job is in status {status}")
        return found

    def _state(self, job: JobFolder) -> dict[str, Any]:
        """Returns the state of a job; marks the job as failed first if its manager was killed."""
        state = job.state()
        if state.get("TrainingJobStatus") in ENDED or (lock := job.lock()) is None:
            return state
        try:
            recorder = StateRecorder(job)
            state = job.state()  # the job may have ended meanwhile
            if state.get("TrainingJobStatus") not in ENDED:
                left = "" if end_leftovers(job) else "; some processes of its hosts could not be killed"
                if not state:
                    recorder.begin({})
                recorder.fail(f"InternalServerError: the process that managed the job was killed{left}")
            return job.state()
        finally:
            os.close(lock)

    def _make(self, job: JobFolder, body: dict[str, Any], settings: Settings) -> int:
        """Creates the folder of a job atomically and returns the descriptor of its lock.

        Raises Refused, OSError.
        """
        made = JobFolder(self._root / f".new-{secrets.token_hex(8)}")
        try:
            made.make(body, settings)
            lock = made.lock()
            assert lock is not None  # no other process uses the new folder yet
            try:
                made.path.rename(job.path)
            except OSError as error:
                os.close(lock)
                if job.path.exists():
                    raise _in_use(job.name) from error
                raise
        except BaseException:
            shutil.rmtree(made.path, ignore_errors=True)
            raise
        return lock

    def _start_manager(self, job: JobFolder, lock: int) -> None:
        """Starts the manager in a separate session, so that closing the terminal or Ctrl-C does not end it. Raises
        OSError.
        """
        command = [sys.executable, "-m", "windlass.engines.sagemaker.twin", str(job.path), str(lock)]
        with (job.path / "manager.log").open("ab") as log:
            popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                pass_fds=[lock],
                env=self._environ,
            )
        popen.returncode = 0  # The manager outlives this process, which does not wait for it.

    def _require_networks(self) -> None:
        """Raises Refused if hosts cannot have separate networks on this machine."""
        path = netns.search_path(self._environ.get("PATH"))
        if self._isolation == NAMESPACES and os.geteuid() == 0 and shutil.which("ip", path=path) is not None:
            return
        raise Refused(
            VALIDATION,
            "EnableNetworkIsolation: separate networks for hosts need root and iproute2 on this machine",
            "use sudo, or leave it out",
        )

    def _find_isolation(self) -> None:
        """Tests whether this machine allows namespaces; a positive result is stored until the next boot."""
        if self._isolation:
            return
        known, here = self._root / ALLOWED, _whereabouts()
        with suppress(OSError, ValueError):
            if here and known.read_text() == here:
                self._isolation = NAMESPACES
                return
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "opt/ml").mkdir(parents=True)
            command = [sys.executable, "-m", "windlass.engines.sagemaker.twin.host", folder]
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                cwd="/",
                timeout=PROBE_SECONDS,
                env=self._environ,
                check=False,
            )
        self._isolation, self._why = (NAMESPACES, "") if done.returncode == 0 else (FOLDERS, done.stderr.strip()[-500:])
        if done.returncode == 0:
            with suppress(OSError):
                self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_whole(known, here.encode())


def _whereabouts() -> str:
    """Returns the facts that decide whether namespaces are allowed: boot id, user and container of this process; "" if
    unknown.
    """
    with suppress(OSError):
        own = " ".join(str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("user", "mnt"))
        return f"{process.boot_id()} {os.geteuid()} {own}"
    return ""


def _in_use(name: str) -> Refused:
    return Refused(
        IN_USE,
        f"Training job names must be unique, and there is already a training job {name}",
        "choose another name, or delete that job",
    )
