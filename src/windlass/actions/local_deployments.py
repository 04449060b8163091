"""Deployments on this machine. Each is a run of the model server, and ends by the run's time limit."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shlex
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from windlass.actions import services
from windlass.compat import override
from windlass.engines.deployments import (
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
from windlass.engines.pinned_http import ServerAccess, last_request_of, send
from windlass.errors import EngineError, UsageError, WindlassError
from windlass.runs.logs import RunLogs
from windlass.runs.private import service_folder
from windlass.services import certificates
from windlass.services.known import MODEL, folder_of
from windlass.services.service import Service, ServiceKind, ServicePhase, ServiceRequest

if TYPE_CHECKING:
    from windlass.runs.context import Context
    from windlass.runs.store import Store

DIGEST: Final = "digest"
"""File with the digest of the request of a deployment."""
SERVER: Final = "server.zip"
"""Zip file with the model server and its dependencies, in the folder of a service."""
LAST_LINES: Final = 5
"""Number of lines of the server's log in the message about a failed deployment."""
READY_SECONDS: Final = 600.0
"""Maximum seconds to wait until the model is loaded."""
POLL_SECONDS: Final = 0.2
DEFAULTS: Final = DeploymentRequest("", Path(), None, "")
PHASES: Final = {
    ServicePhase.STARTING: DeploymentPhase.CREATING,
    ServicePhase.UP: DeploymentPhase.READY,
    ServicePhase.CLOSING: DeploymentPhase.DELETING,
    ServicePhase.FAILED: DeploymentPhase.FAILED,
    ServicePhase.ENDED: DeploymentPhase.DELETING,
    ServicePhase.UNKNOWN: DeploymentPhase.UNKNOWN,
}


class LocalDeployments(Deployments):
    """Models that are served on this machine."""

    serves_in_run_images: ClassVar[bool] = False

    def __init__(self, target: str, store: Store, context: Context) -> None:
        self._target = target
        self._store = store
        self._context = context

    @override
    def plan(self, request: DeploymentRequest) -> DeploymentPlan:
        require_server()
        refused = {
            "--image": request.image,
            "--instance": request.instance,
            "--serverless": request.is_serverless,
            "--kserve": request.uses_kserve,
            "--max-replicas": request.max_replicas,
            "--expose": request.exposure,
            "--secret": request.secrets,
            "--service-account": request.service_account,
            "--cpus": request.cpus != DEFAULTS.cpus,
            "--memory": request.memory_bytes != DEFAULTS.memory_bytes,
            "--gpus": request.gpus,
        }
        if found := [option for option, is_given in refused.items() if is_given]:
            raise UsageError(f"{', '.join(found)} has no meaning on this machine", "name a target: --on TARGET")
        ends = "" if request.ends_at is None else ", and ends the server at its time limit"
        return DeploymentPlan(
            request,
            self._target,
            (
                f"starts a server on a loopback port, with TLS and a token, and loads the model {request.replicas}×",
                f"a supervisor on this machine restarts the server if it fails{ends}",
            ),
            () if request.ends_at is not None else ("nothing ends this deployment but windlass undeploy",),
        )

    @override
    def deploy(
        self, plan: DeploymentPlan, on_progress: OnProgress, credentials: Mapping[str, bytes] | None = None
    ) -> Deployment:
        request = plan.request
        running = self._find(request.name)
        run_id = "" if running is None else running.run_id
        if running is None:
            run_id = self._start(request)
            on_progress(f"the server of {request.name} starts")
        elif running.phase is not ServicePhase.STARTING and running.phase is not ServicePhase.UP:
            raise UsageError(f"{request.name} is {running.phase}", f"wait, or: windlass undeploy {request.name}")
        elif self._digest_file(request.name).read_text() != _digest(request):
            raise UsageError(
                f"{request.name} is up with another model or other options",
                f"choose another --name, or first: windlass undeploy {request.name}",
            )
        else:
            on_progress(f"{request.name} was deployed before: the server is {running.phase}")
        self._wait_ready(request.name, run_id)
        return self._deployment(self._named(request.name))

    @override
    def list(self) -> tuple[Deployment, ...]:
        return tuple(self._deployment(one) for one in self._services())

    @override
    def undeploy(self, name: str, on_progress: OnProgress) -> tuple[str, ...]:
        found = self._named(name)
        services.close_service(found, self._store, self._context, on_progress)
        return (f"run {found.run_id}",)

    @override
    def invoke(self, name: str, body: bytes, content_type: str, accept: str, timeout: float) -> ModelResponse:
        found = self._named(name)
        headers = {"content-type": content_type, "accept": accept}
        return self._send(found, "POST", "/invocations", body, headers, timeout=timeout)

    def _command(self, request: DeploymentRequest, folder: Path) -> str:
        """Returns the command line of the server. A shell expands the folder of the credentials, which is known only in
        the run.
        """
        python = find_python(request.python or None, self._context.cwd, self._context.environ)
        words = [str(python), "-m", "windlass.serving", str(folder), "--port", "0", "--workers", str(request.replicas)]
        files = {
            "ready-file": services.PORT_FILE,
            "certificate": certificates.CERTIFICATE,
            "key": certificates.KEY,
            "token-file": certificates.TOKEN,
        }
        paths = " ".join(f'--{option} "$WINDLASS_SERVICE_DIR"/{name}' for option, name in files.items())
        server = shlex.join([*words, *request.server_options])
        return f'PYTHONPATH="$WINDLASS_SERVICE_DIR"/{SERVER} exec {server} {paths}'

    # -- the run of a server ------------------------------------------------------------------------------------------

    def _services(self) -> Sequence[Service]:
        found = services.list_services(self._store, self._context, self._target).services
        return [one for one in found if one.kind is ServiceKind.DEPLOYMENT]

    def _find(self, name: str) -> Service | None:
        return next((one for one in self._services() if one.name == name), None)

    def _named(self, name: str) -> Service:
        found = self._find(name)
        if found is None:
            raise UsageError(f"there is no deployment {name} on this machine", "windlass services lists them")
        return found

    def _start(self, request: DeploymentRequest) -> str:
        """Starts the run of a server, and returns its id."""
        from windlass.serving.pack import archive

        folder = folder_of(self._context.home, self._target, request.name) / MODEL
        shutil.rmtree(folder, ignore_errors=True)
        self._digest_file(request.name).write_text(_digest(request))
        # Copied, because the files of the request may be hard links to files that a later training overwrites.
        shutil.copytree(request.model, folder)
        _engine, run_id = services.start_service(
            ServiceRequest(
                kind=ServiceKind.DEPLOYMENT,
                name=request.name,
                base=folder,
                fields={"command": ["sh", "-c", self._command(request, folder)], "restarts": 3},
                seconds=None if request.ends_at is None else request.ends_at - self._context.now(),
                files={SERVER: archive()},
            ),
            self._target,
            self._store,
            self._context,
        )
        return run_id

    def _digest_file(self, name: str) -> Path:
        return folder_of(self._context.home, self._target, name) / DIGEST

    def _wait_ready(self, name: str, run_id: str) -> None:
        """Waits until the model is loaded. Raises EngineError with the last lines of the log if the server fails."""
        ends = self._context.now() + READY_SECONDS
        while self._context.now() < ends:
            found = self._find(name)
            if found is None or found.phase is ServicePhase.FAILED:
                raise EngineError(
                    f"the server of {name} has failed: {self._last_lines(run_id)}", f"windlass logs {run_id}"
                )
            if found.phase is ServicePhase.UP and self._is_ready(found):
                return
            self._context.clock.wait(POLL_SECONDS)
        self.undeploy(name, lambda _line: None)
        raise EngineError(f"the model of {name} was not loaded in {READY_SECONDS:.0f} s; the server was ended")

    def _is_ready(self, found: Service) -> bool:
        with contextlib.suppress(WindlassError):  # a supervisor that ends removes the credentials first
            return self._send(found, "GET", "/ping", timeout=5.0).status == 200
        return False

    def _send(
        self,
        found: Service,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        timeout: float,
    ) -> ModelResponse:
        """Sends a request to the server of a deployment. Raises EngineError."""
        if found.port is None:
            raise EngineError(f"the server of {found.name} does not listen yet", f"windlass logs {found.run_id}")
        known = certificates.read(service_folder(self._store.home, found.run_id))
        try:
            stream = socket.create_connection(("127.0.0.1", found.port), timeout)
        except OSError as error:
            raise EngineError(f"the server of {found.name} does not answer ({error.strerror or error})") from error
        access = ServerAccess(known.certificate, known.token)
        return send(stream, access, method, path, body=body, headers=headers, timeout=timeout)

    def _last_lines(self, run_id: str) -> str:
        """Returns the last lines of the server's log."""
        lines = [line.text for line in RunLogs(self._store.run_dir(run_id)).read(tail=LAST_LINES)]
        return " / ".join(lines) or "its log is empty"

    def _deployment(self, found: Service) -> Deployment:
        last = None
        if found.phase is ServicePhase.UP:
            with contextlib.suppress(WindlassError):
                last = last_request_of(self._send(found, "GET", "/metrics", timeout=2.0)) or found.created_at
        return Deployment(
            found.name,
            self._target,
            PHASES[found.phase],
            owner=found.owner,
            run_id=found.run_id,
            cause=found.cause,
            created_at=found.created_at,
            ends_at=found.ends_at,
            ends_by=found.ends_by,
            replicas=1,
            ready_replicas=int(found.phase is ServicePhase.UP),
            price_per_hour=found.price_per_hour,
            currency=found.currency,
            last_request_at=last,
            objects=(f"run {found.run_id}",),
        )


def _digest(request: DeploymentRequest) -> str:
    """Returns a digest of what a server would load and of its options; the end of the deployment is not a part."""
    said = [model_digest(request.model), request.replicas, request.python, request.server_options]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()
