"""Deploys models to the emulation of SageMaker on this machine: the program `serve` with a model at /opt/ml/model.

Each deployment is a job of the emulation, whose manager ends it at its time limit.
"""

from __future__ import annotations

import builtins
import fcntl
import hashlib
import http.client
import json
import math
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final

from windlass.compat import override
from windlass.engines.deployments import (
    DEFAULT_CPUS,
    DEFAULT_MEMORY_BYTES,
    Deployment,
    DeploymentPhase,
    DeploymentPlan,
    DeploymentRequest,
    Deployments,
    ModelResponse,
    OnProgress,
    require_server,
)
from windlass.engines.interpreter import find_python
from windlass.engines.model_files import model_digest
from windlass.engines.sagemaker import layout, objects
from windlass.engines.sagemaker.endpoint_requests import NAME_TAG, PREFIX, archives, endpoint_name
from windlass.engines.sagemaker.model_archive import write_archive
from windlass.engines.sagemaker.plan import LOCAL_IMAGE, LOCAL_ROLE
from windlass.engines.sagemaker.service import ENDED, STOPPING, VALIDATION, Absent, Description, Refused
from windlass.engines.sagemaker.twin.description import RUNTIME_EXCEEDED
from windlass.engines.sagemaker.twin.job import JobFolder, system_errors
from windlass.engines.sagemaker.twin.service import FOLDER, Twin
from windlass.errors import EngineError, UsageError
from windlass.runs.clock import Clock
from windlass.spec.targets import SageMakerLocalTarget

DIGEST_TAG: Final = "windlass:digest"
CHANNEL: Final = "windlass-model"
PORT_VARIABLE: Final = "SAGEMAKER_BIND_TO_PORT"
"""Variable with the port at which a container must listen; SageMaker sets it for containers that share a host."""
PORT: Final = 8080
START, SERVING = "serve_start.py", "serving.zip"
GRACE_SECONDS: Final = 30.0
"""Seconds between SIGTERM and SIGKILL, as for SageMaker's endpoints."""
READY_SECONDS: Final = 480.0
"""Seconds in which the program must answer GET /ping with 200, as for SageMaker's endpoints."""
PING_SECONDS: Final = 2.0
FOREVER_SECONDS: Final = 100 * 365 * 86_400
POLL_SECONDS: Final = 0.1
LOG_LINES: Final = 100


class TwinDeployments(Deployments):
    """Deployments of one target of kind sagemaker-local."""

    serves_in_run_images: ClassVar[bool] = False

    def __init__(
        self, target: SageMakerLocalTarget, home: Path, environ: Mapping[str, str], clock: Clock | None = None
    ) -> None:
        """`home` is the folder of this user's records."""
        self._target, self._home, self._environ, self._clock = target, home, environ, clock or Clock()
        self._storage = (target.storage or f"file://{home}/sagemaker-storage").rstrip("/")
        self._twin = Twin(home, environ, grace_seconds=GRACE_SECONDS)

    # -- plan ---------------------------------------------------------------------------------------------------------

    @override
    def place(self) -> str:
        return "emulation on this machine"

    @override
    def plan(self, request: DeploymentRequest) -> DeploymentPlan:
        for reason, hint in self._refusals(request):
            raise UsageError(reason, hint)
        job, python = endpoint_name(request.name), self._python(request)
        serve = _serve(python)
        if not serve:
            require_server()
        what = "`serve` of its environment" if serve else "`python -m windlass.serving`, because it has no `serve`"
        notes = ["`serve` may listen on all addresses of this machine: it decides that itself"] if serve else []
        if request.ends_at is None:
            notes.append(f"nothing ends the deployment: windlass undeploy {request.name} --on {self._target.name}")
        return DeploymentPlan(
            request,
            self._target.name,
            (
                f"copy the model to {self._folder(request.name, self._digest(request))}",
                f"start job {job} with {python}: {what}",
                "wait until it answers GET /ping",
            ),
            tuple(notes),
        )

    def _refusals(self, request: DeploymentRequest) -> Iterator[tuple[str, str]]:
        """Yields reasons why the emulation cannot carry out a request, with what to do."""
        unsupported = {
            "an image": request.image,
            "a model that is elsewhere": request.source,
            "KServe": request.uses_kserve,
            "a serverless endpoint": request.is_serverless,
            "a load balancer": request.exposure is not None,
            "a secret or a service account": request.secrets or request.service_account,
            "several replicas": request.replicas > 1 or request.max_replicas > 1,
            "--instance": request.instance,
            "--cpus": request.cpus != DEFAULT_CPUS,
            "--memory": request.memory_bytes != DEFAULT_MEMORY_BYTES,
            "--gpus": request.gpus,
        }
        for what, is_requested in unsupported.items():
            if is_requested:
                yield (
                    f"{what} is not supported on {self._target.name}: one process of this machine serves",
                    "leave it out",
                )
        if self._target.network_isolation:
            yield "a model in an isolated network answers no requests", "remove network_isolation: from the target"
        if request.server_options and (serve := _serve(self._python(request))):
            yield f"{serve} has no options: found {' '.join(request.server_options)}", "leave them out"
        if not os.access(self._python(request), os.X_OK):
            yield f"there is no interpreter {self._python(request)}", "correct python: in the target"

    def _python(self, request: DeploymentRequest) -> Path:
        """Returns the interpreter that runs the model: the target's, or the one that the request names."""
        return find_python(self._target.python or request.python, Path(), self._environ)

    def _digest(self, request: DeploymentRequest) -> str:
        said = [request.owner, request.run_id, model_digest(request.model), str(self._python(request))]
        said += request.server_options
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:12]

    def _folder(self, name: str, digest: str) -> str:
        return f"{archives(self._storage, name)}{digest}/"

    # -- deploy -------------------------------------------------------------------------------------------------------

    @override
    def deploy(
        self, plan: DeploymentPlan, on_progress: OnProgress, credentials: Mapping[str, bytes] | None = None
    ) -> Deployment:
        """Deploys as `Deployments.deploy`; credentials are not used, because only this machine reaches the server."""
        request = plan.request
        name, digest = endpoint_name(request.name), self._digest(request)
        before = self._described(name)
        if before is not None and self._tags(name).get(DIGEST_TAG) != digest:
            raise UsageError(
                f"there is a deployment {request.name} with another request",
                f"choose another name, or first: windlass undeploy {request.name} --on {self._target.name}",
            )
        try:
            if before is not None and before["TrainingJobStatus"] in ENDED:
                self._twin.delete(name)
            if before is None or before["TrainingJobStatus"] in ENDED:
                self._create(request, digest)
                on_progress(f"started job {name}")
            self._wait_ready(name)
        except EngineError as error:
            on_progress(f"{error.message}; removing what was created")
            self._remove(request.name)
            raise
        on_progress(f"{name} is ready at http://127.0.0.1:{self._port(name)}")
        return self._deployment(name, self._twin.describe(name))

    def _create(self, request: DeploymentRequest, digest: str) -> None:
        """Copies the model to the store and creates the job. Raises EngineError."""
        folder = self._folder(request.name, digest)
        with tempfile.TemporaryDirectory(prefix="windlass-model-") as scratch:
            packed = Path(scratch, layout.MODEL_ARCHIVE)
            write_archive(request.model, packed)
            objects.upload(folder, layout.MODEL_ARCHIVE, packed, self._home)
        files = {START: Path(__file__).with_name(START).read_bytes()}
        if _serve(self._python(request)) is None:
            from windlass.serving.pack import archive  # imported late: only this needs the packages of the server

            files[SERVING] = archive()
        objects.put(folder, files, self._home)
        twin = Twin(self._home, self._environ, grace_seconds=GRACE_SECONDS, python=str(self._python(request)))
        with self._ports_locked():
            try:
                twin.create(self._job(request, digest))
            except Refused as error:
                if error.code != "ResourceInUse":  # another command has created the same job meanwhile
                    raise

    @contextmanager
    def _ports_locked(self) -> Iterator[None]:
        """Prevents two processes from choosing the same port. Raises EngineError."""
        root = self._home / FOLDER
        with system_errors(str(root)):
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(root, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _job(self, request: DeploymentRequest, digest: str) -> dict[str, Any]:
        """Returns the request of the job that serves a model."""
        python = self._python(request)
        # A server that is starting does not listen yet.
        port = _free_port({self._port(path.name) for path in (self._home / FOLDER).glob(f"{PREFIX}*")})
        own = [str(python), "-m", "windlass.serving", layout.MODEL, "--port", str(port), *request.server_options]
        seconds = (
            FOREVER_SECONDS if request.ends_at is None else max(1, math.ceil(request.ends_at - self._clock.time()))
        )
        source = {"S3DataType": "S3Prefix", "S3Uri": self._folder(request.name, digest)}
        tags = {
            NAME_TAG: request.name,
            DIGEST_TAG: digest,
            layout.USER_TAG: request.owner,
            layout.RUN_TAG: request.run_id,
        }
        return {
            "TrainingJobName": endpoint_name(request.name),
            "RoleArn": LOCAL_ROLE,
            "AlgorithmSpecification": {
                "TrainingImage": LOCAL_IMAGE,
                "TrainingInputMode": "File",
                "ContainerEntrypoint": [
                    str(python),
                    "-I",
                    f"{layout.CHANNELS}/{CHANNEL}/{START}",
                    *([serve] if (serve := _serve(python)) is not None else own),
                ],
            },
            "InputDataConfig": [{"ChannelName": CHANNEL, "DataSource": {"S3DataSource": source}}],
            "ResourceConfig": {"InstanceType": self._target.instance, "InstanceCount": 1, "VolumeSizeInGB": 1},
            "StoppingCondition": {"MaxRuntimeInSeconds": seconds},
            "Environment": {
                "SAGEMAKER_PROGRAM": "inference.py",
                "SAGEMAKER_SUBMIT_DIRECTORY": f"{layout.MODEL}/code",
                **self._target.env,
                PORT_VARIABLE: str(port),
            },
            "Tags": [{"Key": key, "Value": value} for key, value in tags.items() if value],
        }

    def _wait_ready(self, name: str) -> None:
        """Waits until the program answers GET /ping. Raises EngineError with the first cause."""
        until = self._clock.time() + READY_SECONDS
        while True:
            found = self._described(name)
            if found is None:
                raise EngineError(f"job {name} was deleted while it was starting")
            if found["TrainingJobStatus"] in (*ENDED, STOPPING):
                raise EngineError(f"the model server has ended: {self._cause(name, found)}", "correct the model's code")
            if self._is_ready(name, found):
                return
            if self._clock.time() >= until:
                lines = self._log_lines(name)
                said = f"; its log ends with: {lines[-1]}" if lines else ""
                raise EngineError(f"job {name} did not pass the ping health check in {READY_SECONDS:.0f} s{said}")
            self._clock.wait(POLL_SECONDS)

    def _cause(self, name: str, found: Description) -> str:
        lines = self._log_lines(name)
        errors = [line for line in lines if "Error" in line or "error" in line] or lines
        return errors[-1] if errors else str(found.get("FailureReason") or found["TrainingJobStatus"])

    def _log_lines(self, name: str) -> builtins.list[str]:
        """Returns the last lines of the log that are not empty."""
        streams = self._twin.log_streams(name)
        lines = [text for _, text in self._twin.read_log(streams[-1]).lines] if streams else []
        return [line.strip()[:500] for line in lines if line.strip()][-LOG_LINES:]

    def _is_ready(self, name: str, job: Description) -> bool:
        if job["TrainingJobStatus"] in ENDED:  # another server may have its port
            return False
        try:
            return _request(self._port(name), "GET", "/ping", b"", {}, PING_SECONDS).status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False

    # -- list and undeploy --------------------------------------------------------------------------------------------

    @override
    def list(self) -> tuple[Deployment, ...]:
        found, stored = [], {name.partition("/")[0] for name in objects.names(archives(self._storage), self._home)}
        for path in sorted((self._home / FOLDER).glob(f"{PREFIX}*")):
            if NAME_TAG not in self._tags(path.name) or (job := self._described(path.name)) is None:
                continue
            if job.get("SecondaryStatus") == RUNTIME_EXCEEDED and job["TrainingJobStatus"] in ENDED:
                self._remove(path.name.removeprefix(PREFIX))  # its time is over
            else:
                found.append(self._deployment(path.name, job))
            stored.discard(path.name.removeprefix(PREFIX))
        return (*found, *(self._leftover(name) for name in sorted(stored)))

    def _leftover(self, name: str) -> Deployment:
        """Returns a deployment that has no job, and whose archive is still in the store."""
        cause, left = "it has no job: a deploy is in progress, or was interrupted", f"archive of {name}"
        return Deployment(name, self._target.name, DeploymentPhase.FAILED, cause=cause, objects=(left,))

    def _deployment(self, name: str, job: Description) -> Deployment:
        status, is_ready = job["TrainingJobStatus"], self._is_ready(name, job)
        phase = DeploymentPhase.READY if is_ready else DeploymentPhase.CREATING
        if status == STOPPING:
            phase = DeploymentPhase.DELETING
        elif status in ENDED:
            phase = DeploymentPhase.FAILED
        tags, seconds = self._tags(name), job["StoppingCondition"]["MaxRuntimeInSeconds"]
        return Deployment(
            name.removeprefix(PREFIX),
            self._target.name,
            phase,
            owner=tags.get(layout.USER_TAG, ""),
            run_id=tags.get(layout.RUN_TAG, ""),
            cause=self._cause(name, job) if phase is DeploymentPhase.FAILED else "",
            created_at=float(job["CreationTime"]),
            ends_at=None if seconds >= FOREVER_SECONDS else float(job["CreationTime"]) + seconds,
            ends_by="" if seconds >= FOREVER_SECONDS or phase is DeploymentPhase.FAILED else "supervisor",
            replicas=1,
            ready_replicas=int(is_ready),
            instance=self._target.instance,
            objects=(f"job {name}",),
        )

    @override
    def undeploy(self, name: str, on_progress: OnProgress) -> tuple[str, ...]:
        job, folder = endpoint_name(name), archives(self._storage, name)
        if NAME_TAG not in self._tags(job) and not objects.has_any(folder, self._home):
            raise self._unknown(name)
        removed = [f"job {job}"] if self._described(job) is not None else []
        self._remove(name)
        return (*removed, f"archive {folder}")

    def _remove(self, name: str) -> None:
        """Stops and deletes the job of a deployment, and then its archive. Raises EngineError."""
        job = endpoint_name(name)
        while NAME_TAG in self._tags(job) and (found := self._described(job)) is not None:
            try:
                if found["TrainingJobStatus"] in ENDED:
                    self._twin.delete(job)
                    break
                self._twin.stop(job)
            except Refused as error:
                if error.code != VALIDATION:  # the job has ended or was deleted since its description
                    raise
            self._clock.wait(POLL_SECONDS)
        objects.remove(archives(self._storage, name), self._home)

    # -- invoke -------------------------------------------------------------------------------------------------------

    @override
    def invoke(self, name: str, body: bytes, content_type: str, accept: str, timeout: float) -> ModelResponse:
        job = endpoint_name(name)
        if NAME_TAG not in self._tags(job) or (found := self._described(job)) is None:
            raise self._unknown(name)
        if found["TrainingJobStatus"] in ENDED:
            raise EngineError(
                f"{name} answers no requests: its server has ended: {self._cause(job, found)}",
                f"windlass services --on {self._target.name}",
            )
        try:
            fields = {"Content-Type": content_type, "Accept": accept}
            return _request(self._port(job), "POST", "/invocations", body, fields, timeout)
        except (OSError, http.client.HTTPException) as error:
            raise EngineError(
                f"{name} does not answer: {error}", f"windlass services --on {self._target.name}"
            ) from error

    # -- a job --------------------------------------------------------------------------------------------------------

    def _described(self, name: str) -> Description | None:
        """Returns the description of a job; None if it does not exist."""
        try:
            return self._twin.describe(name)
        except Absent:
            return None

    def _requested(self, name: str) -> dict[str, Any]:
        """Returns the request of a job; empty if it does not exist."""
        job = JobFolder(self._home / FOLDER / name)
        try:
            return job.request()
        except (FileNotFoundError, NotADirectoryError):
            return {}

    def _tags(self, name: str) -> dict[str, str]:
        return {str(one["Key"]): str(one["Value"]) for one in self._requested(name).get("Tags", ())}

    def _port(self, name: str) -> int:
        return int(self._requested(name).get("Environment", {}).get(PORT_VARIABLE, 0))

    def _unknown(self, name: str) -> UsageError:
        where = self._target.name
        return UsageError(f"there is no deployment {name} on {where}", f"windlass services --on {where} lists them")


def _serve(python: Path) -> str | None:
    """Returns the program `serve` of an interpreter's environment, as images of AWS have one; None without it.

    Other folders of PATH are not searched: programs of that name exist which serve no models.
    """
    return shutil.which("serve", path=str(python.parent))


def _free_port(taken: Collection[int]) -> int:
    """Returns 8080, at which SageMaker's containers listen, or another free port if that one is taken."""
    import socket

    for port in (PORT, *(0 for _ in range(len(taken) + 1))):
        with socket.socket() as found:
            try:
                found.bind(("127.0.0.1", port))
            except OSError:
                continue
            chosen = int(found.getsockname()[1])
        if chosen not in taken:
            return chosen
    raise EngineError("this machine has no free port")


def _request(
    port: int, method: str, path: str, body: bytes, fields: Mapping[str, str], timeout: float
) -> ModelResponse:
    """Sends one request to a port of this machine. Raises OSError, HTTPException."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request(method, path, body or None, dict(fields))
        answer = connection.getresponse()
        return ModelResponse(answer.status, answer.headers.get("Content-Type", ""), answer.read())
    finally:
        connection.close()
