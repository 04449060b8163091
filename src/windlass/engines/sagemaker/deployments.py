"""Deploys models to SageMaker endpoints that end by themselves, lists them, and removes all of their objects."""

from __future__ import annotations

import builtins
import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

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
)
from windlass.engines.model_files import model_digest
from windlass.engines.sagemaker import endpoint_requests, layout, objects
from windlass.engines.sagemaker.endpoint_access import EndpointAccess
from windlass.engines.sagemaker.endpoint_list import EndpointList, phase_of
from windlass.engines.sagemaker.endpoint_objects import EndpointObjects, listed
from windlass.engines.sagemaker.endpoint_requests import (
    END_TAG,
    LAST,
    SERVERLESS_GB,
    Body,
    Names,
    Requests,
    end_tag,
    endpoint_name,
    schedule_name,
    scheduled_at,
)
from windlass.engines.sagemaker.hosting import CONFIG, ENDPOINT, LOG_GROUP, MODEL, Hosting
from windlass.engines.sagemaker.inference_images import is_aws_image, serving_image
from windlass.engines.sagemaker.instances import misspelt, num_gpus
from windlass.engines.sagemaker.model_archive import write_archive
from windlass.errors import EngineError, UsageError
from windlass.runs.clock import Clock
from windlass.spec.targets import SageMakerTarget

CREATE_SECONDS: Final = 35 * 60.0
"""Maximum seconds in which an endpoint must become ready. AWS gives up after an hour, or never."""
PROGRESS_SECONDS: Final = 60.0


class EndpointFailed(EngineError):
    """An endpoint has failed, or does not become ready."""


class SageMakerDeployments(Deployments):
    """Deployments of one target of kind sagemaker."""

    serves_in_run_images: ClassVar[bool] = False

    def __init__(self, target: SageMakerTarget, home: Path, hosting: Hosting | None = None, clock: Clock | None = None):
        """`home` is the folder of this user's records; `hosting` and `clock` default to AWS and the system clock."""
        self._access = EndpointAccess(target, home, hosting, clock or Clock())
        self._objects = EndpointObjects(self._access)
        self._list = EndpointList(self._access, self._objects)

    # -- plan ---------------------------------------------------------------------------------------------------------

    @override
    def place(self) -> str:
        return f"account {self._access.role.split(':')[4]}, {self._access.target.region}"

    @override
    def plan(self, request: DeploymentRequest) -> DeploymentPlan:
        made, image = self._requests(request)
        where = "serverless" if request.is_serverless else f"{request.replicas} × {request.instance}"
        end = (
            ()
            if request.ends_at is None
            else (f"create {len(made.schedules)} one-time schedules of EventBridge Scheduler that delete everything",)
        )
        return DeploymentPlan(
            request,
            self._access.target.name,
            (
                *end,
                f"upload the model to {made.archive}",
                f"create model {made.names.part} with {image}",
                f"create endpoint configuration {made.names.part}: {where}",
                f"create endpoint {made.names.endpoint}, and wait until it is ready",
            ),
            tuple(self._notes(request, image)),
            self._access.price(request.instance, request.replicas),
            self._access.target.currency,
            (*made.schedules, made.model, made.config, made.endpoint),
        )

    def _requests(self, request: DeploymentRequest) -> tuple[Requests, str]:
        """Returns the requests of a deployment and its image. Raises UsageError for what SageMaker cannot do."""
        for reason, hint in self._refusals(request):
            raise UsageError(reason, hint)
        target, gpus = self._access.target, 0 if request.is_serverless else num_gpus(request.instance) or 0
        image = serving_image(request.image, request.model, target.region, gpus, is_in_vpc=bool(target.subnets))
        made = endpoint_requests.requests(
            request,
            target,
            role=self._access.role,
            schedule_role=self._access.schedule_role,
            image=image,
            model_digest=model_digest(request.model),
        )
        return made, image

    def _refusals(self, request: DeploymentRequest) -> Iterator[tuple[str, str]]:
        """Yields reasons why SageMaker cannot fulfil a request, each with a hint."""
        name = self._access.target.name
        if request.source:
            yield "SageMaker reads a model and its code from one archive", "copy the model to this machine first"
        if request.uses_kserve:
            yield "KServe runs in clusters, not on SageMaker", "leave out --kserve"
        if request.exposure is not None:
            yield "an endpoint has no load balancer: requests carry credentials of AWS", "leave out --expose"
        if request.secrets or request.service_account:
            yield "an endpoint runs with the role of its target", "leave out --secret and --service-account"
        if request.server_options:
            yield "images for SageMaker have a server of their own", "write code/inference.py, without server options"
        if request.max_replicas:
            yield "autoscaling of endpoints is not supported on SageMaker", "name the number: --replicas"
        if request.is_serverless:
            if request.instance:
                yield "serverless endpoints have no instance type", "leave out --instance or --serverless"
            if request.replicas > 1:
                yield "serverless endpoints have no replicas: AWS scales them", "leave out --replicas"
            if request.cpus != DEFAULT_CPUS:
                yield "serverless endpoints have CPUs in proportion to their memory", "set --memory, without --cpus"
            if request.gpus:
                yield "serverless endpoints have no GPUs", "leave out --serverless, and name an --instance"
            if request.memory_bytes > SERVERLESS_GB << 30:
                yield f"serverless endpoints have at most {SERVERLESS_GB} GiB of memory", "name an --instance"
        elif not request.instance.startswith("ml."):
            found = f"found {request.instance}" if request.instance else "none is named"
            yield f"an endpoint needs an instance type that begins with ml., {found}", "--instance ml.m5.large"
        elif misspelt(request.instance):
            yield f"there is no instance type {request.instance}", misspelt(request.instance)
        elif request.gpus > (num_gpus(request.instance) or 0):
            yield f"{request.instance} has fewer than {request.gpus} GPUs", "name another --instance"
        elif request.cpus != DEFAULT_CPUS or request.memory_bytes != DEFAULT_MEMORY_BYTES:
            yield (
                f"CPUs and memory of an endpoint are those of {request.instance}",
                "leave out --cpus and --memory, or name another --instance",
            )
        if request.ends_at is not None and request.ends_at <= self._access.clock.time():
            yield "the end of the deployment is in the past", "name a longer time: --for 8h"
        if request.ends_at is not None and not self._access.target.schedule_role:
            yield (
                f"nothing on AWS would end the deployment: target {name} names no schedule_role",
                f"set schedule_role: (windlass check --on {name} --role prints its policy), or --keep the deployment",
            )

    def _notes(self, request: DeploymentRequest, image: str) -> Iterator[str]:
        if request.ends_at is None:
            yield f"nothing ends the deployment: windlass undeploy {request.name} --on {self._access.target.name}"
        if not is_aws_image(image):
            yield f"SageMaker starts the program `serve` of {image}; whether the image has one is not checked"
        if "pytorch-inference" in image:
            yield "AWS published the last patches of its PyTorch inference images for 2026-06-30"

    # -- deploy -------------------------------------------------------------------------------------------------------

    @override
    def deploy(
        self, plan: DeploymentPlan, on_progress: OnProgress, credentials: Mapping[str, bytes] | None = None
    ) -> Deployment:
        """Deploys as `Deployments.deploy`. `credentials` are ignored: requests to endpoints are signed with those of
        AWS.
        """
        made, _ = self._requests(plan.request)
        if (*made.schedules, made.model, made.config, made.endpoint) != plan.objects:
            raise UsageError("the model or the target has changed since the plan", "plan the deployment again")
        before = self._require_same(made.names)
        if before is not None and phase_of(before) is DeploymentPhase.READY:
            arn, tags = str(before["EndpointArn"]), end_tag(self._claim(made, plan.request))
            self._access.answered(partial(self._access.hosting.tag, arn, tags))
            on_progress(f"endpoint {made.names.endpoint} is ready")
        else:
            before = self._create_or_remove(made, plan.request, on_progress, is_new=before is None)
        return self._access.answered(partial(self._list.deployment, plan.request.name, before))

    def _create_or_remove(
        self, made: Requests, request: DeploymentRequest, on_progress: OnProgress, *, is_new: bool
    ) -> Body:
        """Creates all objects, waits until the endpoint is ready, and returns its description.

        Raises EngineError with the first cause, after all that was created is removed, or with what is left. An
        endpoint that is not new is kept unless it has failed: another machine may be waiting for it.
        """
        try:
            self._create(made, request, on_progress)
            return self._wait_ready(made.names, on_progress)
        except EngineError as error:
            if not is_new and not isinstance(error, EndpointFailed):
                kept = f"{error.message}; endpoint {made.names.endpoint}, which existed before, is kept"
                raise EngineError(kept, error.hint or self._hint(error.message)) from error
            on_progress(f"{error.message}; removing what was created")
            try:
                self._objects.remove(request.name, made.names.digest, on_progress)
            except EngineError as left:
                end = "" if request.ends_at is None else "; its schedules, which were created first, also end it"
                raise EngineError(f"{error.message}; {left.message}", f"{left.hint}{end}") from error
            raise EngineError(error.message, error.hint or self._hint(error.message)) from error

    def _require_same(self, names: Names) -> Body | None:
        """Returns the description of the endpoint; None if it does not exist.

        Raises UsageError if objects of another request have the name, or while the endpoint is being deleted.
        """
        found = self._access.answered(partial(self._objects.found, names.deployment))
        if any(one.digest != names.digest for one in found):
            raise UsageError(
                f"there is a deployment {names.deployment} with another request: {listed(found)}",
                f"choose another name, or first: windlass undeploy {names.deployment} --on {self._access.target.name}",
            )
        endpoint = self._access.answered(partial(self._access.hosting.describe, ENDPOINT, names.endpoint))
        if endpoint is not None and endpoint["EndpointConfigName"] != names.part:
            raise UsageError(f"endpoint {names.endpoint} was not created by this deployment", "choose another name")
        if endpoint is not None and phase_of(endpoint) is DeploymentPhase.DELETING:
            raise UsageError(f"endpoint {names.endpoint} is being deleted", "repeat the command in some minutes")
        return endpoint

    def _create(self, made: Requests, request: DeploymentRequest, on_progress: OnProgress) -> None:
        """Creates all objects that do not exist yet; the endpoint last. Raises UsageError, EngineError."""
        if (ends_at := self._claim(made, request)) is not None:
            on_progress(f"EventBridge Scheduler deletes the deployment at {end_tag(ends_at)[END_TAG]}")
        with tempfile.TemporaryDirectory(prefix="windlass-model-") as folder:
            archive = Path(folder, layout.MODEL_ARCHIVE)
            try:
                write_archive(request.model, archive)
            except OSError as error:
                raise EngineError(
                    f"the model cannot be packed: {error.strerror}", "is there space in TMPDIR?"
                ) from error
            except UsageError as error:  # a file has changed since the plan; the schedules exist by now
                raise EngineError(error.message, error.hint) from error
            objects.upload(made.archive, layout.MODEL_ARCHIVE, archive, self._access.home)
        on_progress(f"uploaded the model to {made.archive}")
        hosting = self._access.hosting
        for kind, body in ((MODEL, made.model), (CONFIG, made.config), (ENDPOINT, made.endpoint)):
            tags = [{**one, "Value": end_tag(ends_at).get(one["Key"], one["Value"])} for one in body["Tags"]]
            given = {**body, "Tags": tags}
            self._access.answered(partial(hosting.create, kind, given))
            on_progress(f"created {kind.word} {body[kind.field]}")

    def _claim(self, made: Requests, request: DeploymentRequest) -> float | None:
        """Creates the schedules and returns the end of the deployment, in Unix seconds; None if it never ends.

        The schedule of the endpoint reserves the name, and keeps its time if the deploy is repeated. Raises UsageError
        if another request has the name or the schedule has no time, EngineError.
        """
        hosting = self._access.hosting
        first = self._access.answered(partial(hosting.schedule, schedule_name(request.name, "endpoint")))
        ends_at = request.ends_at if first is None else scheduled_at(first)
        if first is not None and ends_at is None:
            raise UsageError(
                f"schedule {first['Name']} has the expression {first['ScheduleExpression']}: the end is unknown",
                "in the console of EventBridge Scheduler, make it a one-time schedule or delete it",
            )
        if ends_at is None:
            for kind in LAST:
                self._access.answered(partial(hosting.delete_schedule, schedule_name(request.name, kind)))
            return None
        role = self._access.schedule_role if first is None else str(first["Target"]["RoleArn"])
        for body in endpoint_requests.schedules(made.names, self._access.target.region, made.archive, role, ends_at):
            if self._access.answered(partial(hosting.create_schedule, body)):
                continue
            found = self._access.answered(partial(hosting.schedule, body["Name"]))
            if found is not None and found.get("Description") != made.names.digest:
                raise UsageError(
                    f"another deploy of {made.names.deployment} is in progress", "choose another name, or wait for it"
                )
            self._access.answered(partial(hosting.update_schedule, body))
        return ends_at

    def _wait_ready(self, names: Names, on_progress: OnProgress) -> Body:
        """Waits until the endpoint is ready and returns its description. Raises EngineError with the first cause."""
        began = said_at = self._access.clock.time()
        while True:
            found = self._access.answered(partial(self._access.hosting.describe, ENDPOINT, names.endpoint))
            if found is None:
                raise EngineError(f"endpoint {names.endpoint} was deleted while it was being created")
            if found["EndpointConfigName"] != names.part:
                raise EngineError(f"another deploy has created endpoint {names.endpoint}", "choose another name")
            phase, waited = phase_of(found), self._access.clock.time() - began
            if phase is DeploymentPhase.READY:
                on_progress(f"endpoint {names.endpoint} is ready after {waited:.0f} s")
                return found
            if phase is not DeploymentPhase.CREATING:
                raise self._failure(names.endpoint, found)
            if waited >= CREATE_SECONDS:
                raise self._stuck(names.endpoint)
            if self._access.clock.time() - said_at >= PROGRESS_SECONDS:
                said_at = self._access.clock.time()
                on_progress(f"endpoint {names.endpoint} is Creating for {waited / 60:.0f} minutes")
            self._access.pause(waited)

    def _failure(self, endpoint: str, found: Body) -> EndpointFailed:
        """Returns the error for an endpoint that has failed, with the first cause that AWS reports."""
        reason = str(found.get("FailureReason") or f"AWS reports no reason, and status {found['EndpointStatus']}")
        message, hint = f"endpoint {endpoint} has failed: {reason}", ""
        if "capacity" in reason.lower():
            return EndpointFailed(message, "name another instance type: --instance, or try again later")
        if (lines := self._log_lines(endpoint)) is None:
            return EndpointFailed(
                f"{message} Its container has no log group: it did not start, or may write no logs",
                "has the image a program `serve`, and may role: write logs? "
                f"windlass check --on {self._access.target.name} --role prints its policy",
            )
        errors = [line for line in lines if "Error" in line or "Exception" in line] or lines
        said = f" Its log: {errors[-1].strip()[:500]}" if errors else ""
        hint = f"aws logs tail {LOG_GROUP}{endpoint}" if lines else "read the log in CloudWatch"
        return EndpointFailed(f"{message}{said}", hint)

    def _hint(self, message: str) -> str:
        """Returns the hint for a refused request."""
        check = f"windlass check --on {self._access.target.name} --role prints the policies"
        for words, hint in (
            ("Schedule", f"{check}; or nothing ends the deployment: --keep"),
            ("ssume role", check),
            ("authorized", check),
            ("limit", "ask for more: Service Quotas, Amazon SageMaker, in the console"),
        ):
            if words in message:
                return hint
        return ""

    def _stuck(self, endpoint: str) -> EndpointFailed:
        """Returns the error for an endpoint that does not become ready."""
        minutes = int(CREATE_SECONDS // 60)
        lines = self._log_lines(endpoint)
        said = f"its log ends with: {lines[-1].strip()[:500]}" if lines else "it has no log, and AWS reports no reason"
        return EndpointFailed(
            f"endpoint {endpoint} is still Creating after {minutes} minutes: {said}",
            "try another instance type or region; AWS has such endpoints fail after about an hour",
        )

    def _log_lines(self, endpoint: str) -> builtins.list[str] | None:
        """Returns the last log lines of an endpoint; None if it has no log group or the login may not read it."""
        with contextlib.suppress(EngineError):
            return self._access.hosting.log_lines(endpoint)
        return None

    # -- list, undeploy, invoke ---------------------------------------------------------------------------------------

    @override
    def list(self) -> tuple[Deployment, ...]:
        return self._list.deployments()

    @override
    def undeploy(self, name: str, on_progress: OnProgress) -> tuple[str, ...]:
        if not self._access.answered(partial(self._objects.found, name)):
            raise self._unknown(name)
        return self._objects.remove(name, "", on_progress)

    @override
    def invoke(self, name: str, body: bytes, content_type: str, accept: str, timeout: float) -> ModelResponse:
        found = self._access.hosting.invoke(endpoint_name(name), body, content_type, accept, timeout)
        if found is not None:
            return found
        if (endpoint := self._access.hosting.describe(ENDPOINT, endpoint_name(name))) is not None:
            raise EngineError(f"{name} answers no requests: its endpoint is {endpoint['EndpointStatus']}")
        raise self._unknown(name)

    def _unknown(self, name: str) -> UsageError:
        where = self._access.target.name
        return UsageError(f"there is no deployment {name} on {where}", f"windlass services --on {where} lists them")
