"""Creates, removes and calls deployments of models. One Job owns their objects, and its deadline ends the deployment.

Every step can be repeated. A killed command leaves the owner with some of the objects: the same command completes them,
`undeploy` removes them, and the cluster removes them at the deadline.
"""

from __future__ import annotations

import base64
import contextlib
import math
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from windlass.compat import override
from windlass.engines.deployments import (
    Deployment,
    DeploymentPlan,
    DeploymentRequest,
    Deployments,
    ModelResponse,
    OnProgress,
    require_server,
)
from windlass.engines.kubernetes.access import port_forward
from windlass.engines.kubernetes.access.claim_files import claim_files
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.connect import connect
from windlass.engines.kubernetes.access.errors import Refused, Unreachable
from windlass.engines.kubernetes.access.optional import at_once
from windlass.engines.kubernetes.access.unavailable import is_passing
from windlass.engines.kubernetes.objects import deployment_manifests as manifests
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.deployment_manifests import (
    DIGEST_ANNOTATION,
    PORT,
    START_SECONDS,
    WORKLOADS,
    Id,
    id_of,
)
from windlass.engines.kubernetes.objects.manifests import owned
from windlass.engines.kubernetes.objects.quantity import seconds_of
from windlass.engines.kubernetes.objects.workloads.job import BATCH
from windlass.engines.kubernetes.planning.deployments import plan_deployment, request_digest
from windlass.engines.kubernetes.planning.model_files import model_files
from windlass.engines.kubernetes.reading import deployments as reading
from windlass.engines.kubernetes.reading.deployments import Cause, DeployedObjects
from windlass.engines.pinned_http import ServerAccess, last_request_of, send
from windlass.engines.port_socket import PortSocket
from windlass.errors import EngineError, UsageError, WindlassError
from windlass.runs.clock import Clock

if TYPE_CHECKING:
    from windlass.spec.targets import KubernetesTarget

LOOK_SECONDS: Final = 1.0
REMOVE_SECONDS: Final = 300.0
"""Maximum seconds to wait until the cluster has removed a deployment. A load balancer takes minutes."""
UNPLACED_SECONDS: Final = 60.0
"""Seconds after which pods without a node fail the deployment, unless a node autoscaler provisions one."""
NOT_READY: Final = "its /ping does not answer 200: raise load()'s errors, and see kubectl logs"
METRICS_SECONDS: Final = 2.0
Manifest = dict[str, Any]
Dial = Callable[[Client, str, int], PortSocket]
"""Opens a stream to a port of the pod with this name."""


def _archive() -> bytes:
    from windlass.serving.pack import archive  # lists of deployments do not need it

    return archive()


class KubernetesDeployments(Deployments):
    """Deployments in the namespace of a target."""

    needs_credentials = True
    reads_stores = True

    def __init__(
        self,
        target: KubernetesTarget,
        environ: Mapping[str, str],
        clock: Clock | None = None,
        dial: Dial = port_forward.open_port,
        archive: Callable[[], bytes] = _archive,
    ) -> None:
        """`archive` returns the zip file of the model server."""
        self._target = target
        self._environ = environ
        self._clock = clock or Clock()
        self._dial = dial
        self._archive = archive

    def _connected(self) -> contextlib.closing[Client]:
        return connect(self._target, self._environ)

    @override
    def place(self) -> str:
        with self._connected() as client:
            return f"{client.server}, namespace {client.namespace}"

    @override
    def plan(self, request: DeploymentRequest) -> DeploymentPlan:
        require_server()
        with self._connected() as client:
            return plan_deployment(client, self._target, request, self._clock.time())

    @override
    def deploy(
        self, plan: DeploymentPlan, on_progress: OnProgress, credentials: Mapping[str, bytes] | None = None
    ) -> Deployment:
        if credentials is None:
            raise UsageError("a deployment in a cluster needs a certificate, a key and a token", "pass credentials")
        asked = plan.request
        with self._connected() as client:
            creation = _Creation(client, self._target, plan, self._clock, on_progress)
            owner, is_new = creation.owner()
            try:
                creation.create_owned(owner, credentials, self._archive())
                seen = creation.wait_until_ready(needs_all=is_new)
            except WindlassError as error:
                if isinstance(error, (Refused, Unreachable)) and is_passing(error):
                    kept = f"{asked.name} is kept as far as it is made"
                    on_progress(f"{kept}: repeat the command, or: windlass undeploy {asked.name}")
                    raise
                if not is_new:  # An existing deployment may have served requests for days, and may recover.
                    kept = f"{asked.name} is kept, since an earlier command made it"
                    raise EngineError(f"{kept}: {error.message}", error.hint) from error
                on_progress(f"removing {asked.name}, which failed")
                try:
                    _removed(client, DeployedObjects(asked.name, owner), self._clock, on_progress)
                except EngineError as left:
                    raise EngineError(f"{asked.name} failed: {error.message}; {left.message}", left.hint) from error
                raise EngineError(f"{asked.name} failed, and was removed: {error.message}", error.hint) from error
            return reading.deployment(seen, self._target.name, client.ahead)

    @override
    def list(self) -> tuple[Deployment, ...]:
        with self._connected() as client:
            every = reading.read(client)
            if not every:
                client.require_namespace()
            answers = at_once({seen.name: partial(self._last_request, client, seen) for seen in every})
            found = [reading.deployment(seen, self._target.name, client.ahead) for seen in every]
        # If a pod does not answer, its entry is an error, and the time is unknown.
        times = {name: answer for name, answer in answers.items() if isinstance(answer, float)}
        return tuple(replace(one, last_request_at=times.get(one.name)) for one in found)

    @override
    def undeploy(self, name: str, on_progress: OnProgress) -> tuple[str, ...]:
        with self._connected() as client:
            return _removed(client, self._seen(client, name), self._clock, on_progress)

    @override
    def invoke(self, name: str, body: bytes, content_type: str, accept: str, timeout: float) -> ModelResponse:
        with self._connected() as client:
            seen = self._seen(client, name)
            if not seen.ready_pods:
                found = reading.deployment(seen, self._target.name, client.ahead)
                raise EngineError(
                    f"{name} has no ready pod: it is {found.phase}" + (f": {found.cause}" if found.cause else ""),
                    f"windlass services --on {self._target.name}",
                )
            pod = random.choice(seen.ready_pods)
            headers = {"content-type": content_type, "accept": accept}
            return self._send(client, name, pod, "POST", "/invocations", body, headers, timeout)

    def _seen(self, client: Client, name: str) -> DeployedObjects:
        """Returns the objects of a deployment. Raises UsageError if there are none."""
        found = reading.read(client, name)
        if not found:
            client.require_namespace()
            raise UsageError(
                f"there is no deployment {name} on {self._target.name}",
                f"windlass services --on {self._target.name} lists them",
            )
        return found[0]

    def _last_request(self, client: Client, seen: DeployedObjects) -> float | None:
        """Returns the time of the last request to any pod; a pod without requests counts with its start time. None
        without a ready pod. Raises EngineError if a pod does not answer.
        """
        if seen.is_ending or not seen.ready_pods:
            return None
        times = list[float]()
        for pod in seen.ready_pods:
            answer = self._send(client, seen.name, pod, "GET", "/metrics", b"", {}, METRICS_SECONDS)
            if answer.status != HTTPStatus.OK:
                raise EngineError(f"pod {pod['metadata']['name']} answered {answer.status} to a request for metrics")
            times.append(last_request_of(answer) or seconds_of(pod["status"].get("startTime"), 0.0))
        return max(times)

    def _send(
        self,
        client: Client,
        name: str,
        pod: Mapping[str, Any],
        method: str,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        timeout: float,
    ) -> ModelResponse:
        """Sends a request to a pod of a deployment. Raises EngineError."""
        access, stream = _access(client, name), self._dial(client, pod["metadata"]["name"], PORT)
        try:
            return send(stream, access, method, path, body=body, headers=headers, timeout=timeout)
        except EngineError as error:
            if stream.failure is not None:  # The message of the API server or the node says more than a closed stream.
                raise stream.failure from error
            raise


def _access(client: Client, name: str) -> ServerAccess:
    """Returns the certificate and the token of a deployment's server. Raises EngineError."""
    data = client.get("v1", "Secret", name).get("data") or {}
    try:
        certificate, token = (base64.b64decode(data[file]) for file in ("tls.crt", "token"))
        return ServerAccess(certificate, token.decode())
    except (KeyError, ValueError) as error:
        raise EngineError(
            f"Secret {name} has no certificate and token of a deployment", "deploy the model again"
        ) from error


class _Creation:
    """Creates the objects of one plan, in order. Existing objects of the same deployment are kept."""

    def __init__(
        self, client: Client, target: KubernetesTarget, plan: DeploymentPlan, clock: Clock, on_progress: OnProgress
    ) -> None:
        self._client = client
        self._target = target
        self._asked = plan.request
        self._name = plan.request.name
        self._objects: list[Manifest] = [dict(one) for one in plan.objects]
        self._clock = clock
        self._say = _Said(on_progress)

    def owner(self) -> tuple[Manifest, bool]:
        """Returns the owner, and whether it is new; creates it if it does not exist. Raises UsageError if a deployment
        with this name but another request exists, and EngineError if the model's files have changed since the plan or
        a deleted object of that name remains.
        """
        planned = self._objects[0]
        digest = planned["metadata"]["annotations"][DIGEST_ANNOTATION]
        if request_digest(self._asked) != digest:
            raise EngineError(f"the files in {self._asked.model} have changed since the plan", "deploy again")
        if self._asked.ends_at is not None:  # Time may have passed since the plan was made.
            seconds = max(1, math.ceil(self._asked.ends_at - self._clock.time()))
            planned = {**planned, "spec": {**planned["spec"], "activeDeadlineSeconds": seconds}}
        for found, is_new in self._there(planned):
            if is_new:
                self._say(f"made Job {self._name}, which owns all other objects")
                return found, True
            if not DeployedObjects(self._name, found).is_ending:
                if found["metadata"].get("annotations", {}).get(DIGEST_ANNOTATION) == digest:
                    return found, False
                raise UsageError(
                    f"there is a deployment {self._name} with another model or other options",
                    f"windlass undeploy {self._name} --on {self._target.name}; or choose another --name",
                )
        raise AssertionError("unreachable")

    def create_owned(self, owner: Manifest, credentials: Mapping[str, bytes], server: bytes) -> None:
        """Creates the objects of the owner with their data, and copies a large model to its claim. Raises UsageError if
        an object of another owner has the same name.
        """
        files, model = model_files(self._asked, self._target)
        for planned in self._objects[1:]:
            made = owned(manifests.filled(planned, credentials, server, model), owner, is_first=True)
            for found, _ in self._there(made):
                if any(one["uid"] == owner["metadata"]["uid"] for one in found["metadata"].get("ownerReferences", ())):
                    break
            if made["kind"] == "PersistentVolumeClaim" and not self._has_workload():
                self._copy(files.claim, files.path)
        self._say(f"made {len(self._objects)} objects")

    def _has_workload(self) -> bool:
        return any(self._client.get_if_exists(*id_of(one)) for one in self._objects if one["kind"] in WORKLOADS)

    def _copy(self, claim: str, path: str) -> None:
        """Copies the model to its claim, and replaces files that a killed command has copied."""
        self._say(f"copying the model to claim {claim}")
        with claim_files(self._client, self._target, claim) as files:
            again = f"import shutil; shutil.rmtree({path!r}, ignore_errors=True)"
            with open(os.devnull, "wb") as nothing:
                files.execute([files.python, "-I", "-S", "-c", again], None, nothing, nothing)
            files.put(self._asked.model, path, lambda _: None)

    def _there(self, made: Manifest) -> Iterator[tuple[Manifest, bool]]:
        """Creates an object unless it exists, and yields it, and whether it is new. A caller that finds an object of an
        earlier deployment continues the loop, which tries again until the cluster has removed that object. Raises
        UsageError for an object of another program, EngineError if the earlier object is not removed in time.
        """
        give_up = self._clock.monotonic() + REMOVE_SECONDS
        while self._clock.monotonic() < give_up:
            # A quota that the objects have used up refuses to create them again, before it is seen that they exist.
            before = self._client.get_if_exists(*id_of(made))
            found = before or self._client.create_if_absent(made)
            if found is not None:
                if manifests.deployment_of(found) != self._name:
                    raise UsageError(
                        f"there is a {made['kind']} {made['metadata']['name']}, which belongs to no deployment",
                        "choose another --name",
                    )
                yield found, before is None
                self._say(f"waiting until the earlier {made['kind']} {made['metadata']['name']} is removed")
                self._clock.wait(LOOK_SECONDS)
        raise EngineError(
            f"{made['kind']} {made['metadata']['name']} of an earlier deployment is still there",
            f"see: {self._client.kubectl} -n {self._client.namespace} describe {made['kind'].lower()}",
        )

    def wait_until_ready(self, *, needs_all: bool) -> DeployedObjects:
        """Waits until all replicas are ready, or without `needs_all` at least one, and returns the objects. Raises
        EngineError with the first cause.
        """
        give_up = self._clock.monotonic() + START_SECONDS
        unplaced_since = math.inf
        while True:
            now = self._clock.monotonic()
            seen = self._read(is_patient=now < give_up)
            if seen is not None:
                if seen.is_ending:
                    raise EngineError("it was removed while it started", "by its end time, or by undeploy")
                if len(seen.ready_pods) >= (seen.wanted if needs_all else 1) > 0:
                    self._say(f"{len(seen.ready_pods)} of {seen.wanted} replicas are ready")
                    return seen
                cause = reading.first_cause(seen)
                is_unplaced = cause is not None and not cause.is_final
                unplaced_since = min(unplaced_since, now) if is_unplaced else math.inf
                is_hopeless = now - unplaced_since > UNPLACED_SECONDS and not reading.is_provisioned(self._client, seen)
                if cause is not None and (cause.is_final or is_hopeless):
                    raise _failed(cause)
                if now >= give_up:
                    raise _failed(cause or Cause(f"it is not ready after {START_SECONDS} s", fix=NOT_READY))
                words = f": {cause.text}" if cause is not None else ""
                self._say(f"{len(seen.ready_pods)} of {seen.wanted} replicas are ready{words}")
            self._clock.wait(LOOK_SECONDS)

    def _read(self, *, is_patient: bool) -> DeployedObjects | None:
        """Returns the objects. Returns None for a passing error of the cluster with `is_patient`; otherwise raises
        EngineError.
        """
        try:
            return next(iter(reading.read(self._client, self._name)), DeployedObjects(self._name))
        except (Refused, Unreachable) as error:
            if not (is_patient and is_passing(error)):
                raise
            self._say(f"the cluster is asked again: {error.message}")
            return None


def _failed(cause: Cause) -> EngineError:
    lines = "".join(f"\n  {line}" for line in cause.lines) if len(cause.lines) > 1 else ""
    return EngineError(f"{cause.text}{lines}", cause.fix)


class _Said:
    """Reports progress, without repeating the last sentence."""

    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self._last = ""

    def __call__(self, text: str) -> None:
        if text != self._last:
            self._last = text
            self._on_progress(text)


def _removed(client: Client, seen: DeployedObjects, clock: Clock, on_progress: OnProgress) -> tuple[str, ...]:
    """Deletes the owner, waits until all of its objects are gone, and returns the names of the removed objects. Raises
    EngineError with the objects that are left.
    """
    say = _Said(on_progress)
    known = seen.ids
    if seen.owner is not None:
        client.delete(BATCH, "Job", seen.name, is_owned_first=True)
    give_up = clock.monotonic() + REMOVE_SECONDS
    while left := list(_left(client, seen.name, known)):
        if clock.monotonic() > give_up:
            raise EngineError(
                f"{seen.name} is not removed completely: {', '.join(left)}",
                f"see: {client.kubectl} -n {client.namespace} get all -l {layout.DEPLOYMENT_LABEL}={seen.name}",
            )
        say(f"waiting until {', '.join(left)} {'is' if len(left) == 1 else 'are'} gone")
        clock.wait(LOOK_SECONDS)
    return tuple(f"{kind} {name}" for _, kind, name in known)


def _left(client: Client, name: str, known: Sequence[Id]) -> Iterator[str]:
    """Yields those of the objects, and the pods, that still exist. Objects of other programs with the same names are
    ignored.
    """
    for api, kind, its in known:
        found = client.get_if_exists(api, kind, its)
        if found is not None and manifests.deployment_of(found) == name:
            yield f"{kind} {its}"
    for pod in client.find("v1", "Pod", f"{layout.DEPLOYMENT_LABEL}={name}")["items"]:
        yield f"Pod {pod['metadata']['name']}"
