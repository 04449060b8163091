"""Manager of a job: the process that runs it from its creation to its end, over all starts of its hosts.

If the manager is killed, its hosts end too. The next command that reads the job then finds the lock free, and marks the
job as failed.
"""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from windlass.engines import netns
from windlass.engines.sagemaker.service import COMPLETED, STOPPED, STOPPING
from windlass.engines.sagemaker.twin.artifacts import Artifacts, failure
from windlass.engines.sagemaker.twin.description import (
    DOWNLOADING,
    INTERRUPTED,
    RESTARTING,
    RUNTIME_EXCEEDED,
    UPLOADING,
    WAIT_EXCEEDED,
    StateRecorder,
)
from windlass.engines.sagemaker.twin.host import KILL
from windlass.engines.sagemaker.twin.hosts import (
    END_SECONDS,
    HostStarter,
    RunningHost,
    isolated_names,
    isolated_network,
    shared_network,
)
from windlass.engines.sagemaker.twin.job import INTERRUPT, STOP, JobFolder
from windlass.engines.sagemaker.twin.layout import checkpoint_path
from windlass.engines.sagemaker.twin.transfer import CheckpointUploads, Transfers, fetch_channels, parse
from windlass.errors import WindlassError

POLL_SECONDS: Final = 0.05
UPLOAD_SECONDS: Final = 1.0
"""Seconds between two scans for changed checkpoints."""
FAILURE_GRACE_SECONDS: Final = 30.0
"""Maximum seconds between SIGTERM and SIGKILL for the other hosts of a failed job. The log of a killed host has no end,
and the run counts the host as lost."""
FAILED_HOST = "host failed"
"""Why a start ended if a host failed; SageMaker has no `SecondaryStatus` for it."""
Result = TypeVar("Result")


class Ended(Exception):
    """The job must end now; the argument is its final `SecondaryStatus`, or `INTERRUPTED`."""


class Manager:
    """Runs one job. Must be used by the main thread of a process that has the job's lock."""

    def __init__(self, job: JobFolder, environ: Mapping[str, str]) -> None:
        self._job = job
        self._request, self._settings = job.request(), job.settings()
        self._recorder = StateRecorder(job)
        count = self._request["ResourceConfig"]["InstanceCount"]
        is_isolated = self._request.get("EnableNetworkIsolation", False)
        self._network = isolated_network(job, count) if is_isolated else None
        shared = shared_network(count, self._settings.isolation)
        self._names = shared if self._network is None else isolated_names(self._network)
        self._starter = HostStarter(job, self._request, self._names, environ)
        state = job.path / "transfers"
        state.mkdir(exist_ok=True)
        self._transfers = Transfers(state)
        self._skipped: list[str] = []
        self._second = 0
        """Unix seconds in the names of the newest log streams."""
        self._failed: RunningHost | None = None
        """The first host that failed, or None."""

    def run(self) -> None:
        """Runs the job to its end. Raises OSError if its state cannot be written."""
        self._recorder.begin(
            {
                "isolation": self._settings.isolation,
                "why": self._settings.why,
                "network": "of this machine" if self._network is None else "isolated",
                "names": list(self._names.names),
            }
        )
        try:
            asyncio.run(self._run())
        except Ended as ended:  # the job ended before its first container
            self._recorder.step(ended.args[0], STOPPED)
        except WindlassError as error:
            self._recorder.fail(f"ClientError: {error.message}")
        except Exception as error:
            traceback.print_exc()
            self._recorder.fail(f"InternalServerError: {type(error).__name__}: {error}")

    # -- from start to start ------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            ending, folders = await self._run_starts()
        finally:
            if self._network is not None:
                netns.remove(self._network)
        await self._finish(ending, folders)

    async def _run_starts(self) -> tuple[str, list[Path]]:
        """Runs the containers until no further start follows; returns why they were ended, and the folders of the last
        start.
        """
        if self._network is not None:
            netns.make(self._network, self._job.path)
        start = 1
        while True:
            folders = self._starter.make(start)
            uploads = self._checkpoint_uploads(folders)
            self._recorder.step(DOWNLOADING)
            await self._or_end(self._download(folders, uploads))
            ending = await self._train(folders, uploads)
            if ending != INTERRUPTED:
                return ending, folders
            self._recorder.step(INTERRUPTED)
            self._job.unmark(INTERRUPT)
            shutil.rmtree(self._job.path / "starts" / str(start))
            self._recorder.step(RESTARTING)
            start += 1

    def _checkpoint_uploads(self, folders: Sequence[Path]) -> list[CheckpointUploads]:
        path = checkpoint_path(self._request)
        if path is None:
            return []
        to = parse(self._request["CheckpointConfig"]["S3Uri"])
        return [CheckpointUploads(self._transfers, folder, path, to) for folder in folders]

    async def _download(self, folders: list[Path], uploads: Sequence[CheckpointUploads]) -> None:
        try:
            await fetch_channels(self._transfers, self._request, folders)
            for one in uploads:
                await one.fetch()
        except WindlassError as error:
            raise type(error)(f"Data download failed: {error.message}", error.hint) from error

    # -- why to end ---------------------------------------------------------------------------------------------------

    def _ending(self) -> str:
        """Returns why the job must end now, or ""."""
        limits = self._request["StoppingCondition"]
        if self._job.is_marked(STOP):
            return STOPPED
        if self._recorder.trained_seconds() > limits["MaxRuntimeInSeconds"]:
            return RUNTIME_EXCEEDED
        if self._recorder.waited_seconds() > limits.get("MaxWaitTimeInSeconds", math.inf):
            return WAIT_EXCEEDED
        return ""

    async def _or_end(self, work: Awaitable[Result]) -> Result:
        """Returns the result of `work`, which is cancelled if the job must end. Raises Ended."""
        task = asyncio.ensure_future(work)
        while not (await asyncio.wait([task], timeout=POLL_SECONDS))[0]:
            if ending := self._ending():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                raise Ended(ending)
        return task.result()

    # -- training -----------------------------------------------------------------------------------------------------

    async def _train(self, folders: Sequence[Path], uploads: Sequence[CheckpointUploads]) -> str:
        """Runs the containers to their end; returns why they were ended, or "" if they ended by themselves."""
        self._second = max(int(time.time()), self._second + 1)
        self._recorder.train()
        hosts = self._starter.start(folders, self._second)
        have_ended = asyncio.Event()
        uploading = asyncio.create_task(self._upload_continuously(uploads, have_ended))
        try:
            ending = await self._until_ended(hosts)
        finally:
            have_ended.set()
            await uploading  # Not cancelled: its threads would continue in parallel with the last upload.
        self._recorder.end_training()
        try:
            for one in uploads:
                self._skipped += await one.push()
        except WindlassError as error:
            raise type(error)(f"Checkpoint upload failed: {error.message}", error.hint) from error
        return ending

    async def _until_ended(self, hosts: Sequence[RunningHost]) -> str:
        ending = ""
        while not all(host.has_ended for host in hosts):
            if ending := self._host_failed(hosts) or self._interrupted() or self._ending():
                await self._end(hosts, ending)
                break
            await asyncio.sleep(POLL_SECONDS)
        return ending or self._host_failed(hosts)

    def _host_failed(self, hosts: Sequence[RunningHost]) -> str:
        self._failed = next((host for host in hosts if host.has_ended and host.outcome() != (0, "")), None)
        return FAILED_HOST if self._failed is not None else ""

    def _interrupted(self) -> str:
        return INTERRUPTED if self._job.is_marked(INTERRUPT) else ""

    async def _end(self, hosts: Sequence[RunningHost], ending: str) -> None:
        grace = self._settings.grace_seconds
        if ending == FAILED_HOST:
            grace = min(grace, FAILURE_GRACE_SECONDS)
        elif ending != INTERRUPTED:
            self._recorder.step(STOPPING, STOPPING)
        for number, seconds in ((signal.SIGTERM, grace), (KILL, END_SECONDS)):
            for host in hosts:
                host.send(number)
            until = time.monotonic() + seconds
            while not all(host.has_ended for host in hosts) and time.monotonic() < until:
                await asyncio.sleep(POLL_SECONDS)
        for host in hosts:
            host.popen.kill()
            host.popen.wait()

    async def _upload_continuously(self, uploads: Sequence[CheckpointUploads], have_ended: asyncio.Event) -> None:
        """Uploads checkpoints while they are written. A failed upload is repeated; after the containers have ended, a
        failure fails the job.
        """
        while uploads and not have_ended.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(have_ended.wait(), UPLOAD_SECONDS)
                return
            for one in uploads:
                try:
                    await one.push()
                except WindlassError as error:
                    print(f"checkpoints: {error}", file=sys.stderr, flush=True)

    # -- the end ------------------------------------------------------------------------------------------------------

    async def _finish(self, ending: str, folders: Sequence[Path]) -> None:
        """Uploads the artifacts of the containers, and writes the last state."""
        self._recorder.step(UPLOADING)
        reason = "" if self._failed is None else _failure_reason(self._failed)
        if "OutputDataConfig" not in self._request:  # the job serves a model, which is in the store already
            self._write_end(reason, ending)
            return
        artifacts = Artifacts(self._request, folders, self._transfers, self._job.path / "upload")
        try:
            await artifacts.upload()
        except WindlassError as error:
            if not reason:
                raise type(error)(f"Artifact upload failed: {error.message}", error.hint) from error
            self._skipped.append(f"model: {error.message}")
        fields: dict[str, Any] = {
            "ModelArtifacts": {"S3ModelArtifacts": artifacts.model_uri},
            "WindlassSkipped": [*self._skipped, *artifacts.skipped],
        }
        self._write_end(reason, ending, **fields)

    def _write_end(self, reason: str, ending: str, **fields: Any) -> None:
        """Writes the last state, and removes the folders of the hosts."""
        if reason:
            self._recorder.fail(reason, **fields)
        elif ending:
            self._recorder.step(ending, STOPPED, **fields)
        else:
            self._recorder.step(COMPLETED, COMPLETED, **fields)
        shutil.rmtree(self._job.path / "starts", ignore_errors=True)  # the artifacts contain all files that are kept


def _failure_reason(host: RunningHost) -> str:
    code, error = host.outcome()
    if error:
        return f"InternalServerError: {host.name}: {error}"
    return f"AlgorithmError: {failure(host.folder)}, exit code: {code}"


def main(folder: str, lock: str) -> int:
    """Manages the job of a folder. `lock` is an inherited descriptor, so that the lock is released when this process
    ends.
    """
    os.set_inheritable(int(lock), False)
    Manager(JobFolder(Path(folder)), os.environ).run()
    return 0
