"""SageMaker's list operations for audits, which ministack lacks. Nothing runs, and no job or endpoint changes state.

Endpoints with their configurations and models, notebook instances, training jobs (always in progress, or with a warm
pool), processing and transform jobs, domains and apps, HyperPod clusters, tags. Requests are validated with botocore's
model.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any

from botocore.validate import ParamValidator
from ministack import app
from ministack.core import iam_actions, router
from ministack.core.responses import AccountRegionScopedDict, get_account_id, get_region
from tests.fakeaws.emulator.extensions.shapes import model_of

KINDS = {
    "EndpointConfig": ("endpoint-config", "EndpointConfigName"),
    "Endpoint": ("endpoint", "EndpointName"),
    "NotebookInstance": ("notebook-instance", "NotebookInstanceName"),
    "TrainingJob": ("training-job", "TrainingJobName"),
    "ProcessingJob": ("processing-job", "ProcessingJobName"),
    "TransformJob": ("transform-job", "TransformJobName"),
    "Model": ("model", "ModelName"),
    "Domain": ("domain", "DomainName"),
    "App": ("app", "AppName"),
    "Cluster": ("cluster", "ClusterName"),
}
"""Kinds by the word in operation names: the word in ARNs, and the member with an object's name."""
LISTS = {
    "ListEndpoints": ("Endpoint", "Endpoints"),
    "ListNotebookInstances": ("NotebookInstance", "NotebookInstances"),
    "ListTrainingJobs": ("TrainingJob", "TrainingJobSummaries"),
    "ListProcessingJobs": ("ProcessingJob", "ProcessingJobSummaries"),
    "ListTransformJobs": ("TransformJob", "TransformJobSummaries"),
    "ListDomains": ("Domain", "Domains"),
    "ListApps": ("App", "Apps"),
    "ListClusters": ("Cluster", "ClusterSummaries"),
}
STATES = {
    "Endpoint": ("EndpointStatus", "InService"),
    "NotebookInstance": ("NotebookInstanceStatus", "InService"),
    "TrainingJob": ("TrainingJobStatus", "InProgress"),
    "ProcessingJob": ("ProcessingJobStatus", "InProgress"),
    "TransformJob": ("TransformJobStatus", "InProgress"),
    "Domain": ("Status", "InService"),
    "App": ("Status", "InService"),
    "Cluster": ("ClusterStatus", "InService"),
}


class SageMakerError(Exception):
    """A SageMaker error: its code and message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class SageMaker:
    """The operations of the service; objects are stored per account and region, by kind and name."""

    def __init__(self) -> None:
        self.things = AccountRegionScopedDict()

    def act(self, operation: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """Runs an operation and returns its response; None for one that is not emulated."""
        verb, _, kind = re.sub(r"^(Create|Describe|Delete|Stop)", r"\1 ", operation).partition(" ")
        if kind in KINDS:
            return self._one(verb, kind, body)
        if operation in LISTS:
            return self._list(*LISTS[operation], body)
        if operation == "ListTags":
            return {"Tags": self._by("Arn", body["ResourceArn"])["Tags"]}
        return None

    def _one(self, verb: str, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        if verb == "Create":
            return self._create(kind, body)
        id = "DomainId" if kind == "Domain" else KINDS[kind][1]
        thing = self._by(id, body[id])
        if verb == "Describe":
            return thing
        del self.things[f"{kind}/{thing[KINDS[kind][1]]}"]
        return {}

    def _create(self, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        word, member = KINDS[kind]
        if f"{kind}/{body[member]}" in self.things:
            raise SageMakerError("ResourceInUse", f"{kind} {body[member]} exists")
        now, arn = time.time(), f"arn:aws:sagemaker:{get_region()}:{get_account_id()}:{word}/{body[member]}"
        thing = {"Tags": [], **body, f"{kind}Arn": arn, "Arn": arn, "CreationTime": now, "LastModifiedTime": now}
        if kind in STATES:
            thing |= dict([STATES[kind]])
        made = {f"{kind}Arn": arn}
        match kind:
            case "Domain":
                thing["DomainId"] = made["DomainId"] = f"d-{len(self.things):012d}"
            case "Endpoint":
                config = self._by("EndpointConfigName", body["EndpointConfigName"])
                thing["ProductionVariants"] = [
                    {"VariantName": one["VariantName"], "CurrentInstanceCount": one.get("InitialInstanceCount", 0)}
                    for one in config["ProductionVariants"]
                ]
            case "TrainingJob":
                self._start(thing)
            case "Cluster":
                thing["InstanceGroups"] = [
                    {**one, "CurrentCount": one["InstanceCount"]} for one in body["InstanceGroups"]
                ]
        self.things[f"{kind}/{body[member]}"] = thing
        return made

    def _start(self, job: dict[str, Any]) -> None:
        """Starts a job; a job with a warm pool counts as ended immediately."""
        job |= {"SecondaryStatus": "Training", "ModelArtifacts": {"S3ModelArtifacts": "s3://bucket/model.tar.gz"}}
        if job["ResourceConfig"].get("KeepAlivePeriodInSeconds"):
            job |= {"TrainingJobStatus": "Completed", "WarmPoolStatus": {"Status": "Available"}}

    def _list(self, kind: str, answer: str, body: dict[str, Any]) -> dict[str, Any]:
        found = [thing for key, thing in self.things.items() if key.startswith(f"{kind}/")]
        if wanted := body.get("StatusEquals"):
            found = [thing for thing in found if thing[STATES[kind][0]] == wanted]
        if wanted := body.get("WarmPoolStatusEquals"):
            found = [thing for thing in found if thing.get("WarmPoolStatus", {}).get("Status") == wanted]
        if wanted := body.get("DomainIdEquals"):
            found = [thing for thing in found if thing["DomainId"] == wanted]
        start, size = int(body.get("NextToken") or 0), body.get("MaxResults", 10)
        more = {"NextToken": str(start + size)} if start + size < len(found) else {}
        return {answer: found[start : start + size], **more}

    def _by(self, member: str, value: str) -> dict[str, Any]:
        for thing in self.things.values():
            if thing.get(member) == value:
                return dict(thing)
        raise SageMakerError("ValidationException", f'Could not find "{value}".')


def extend() -> None:
    """Serves SageMaker in addition to ministack's services, with the same identity policies."""
    service = SageMaker()

    async def handle(method: str, path: str, headers: dict[str, str], body: bytes, query: dict[str, Any]) -> Any:
        operation, asked = headers.get("x-amz-target", "").rpartition(".")[2], json.loads(body or b"{}")
        try:
            shapes = model_of("sagemaker").operation_model(operation)
            problems = ParamValidator().validate(asked, shapes.input_shape)
            if problems.has_errors():
                raise SageMakerError("ValidationException", problems.generate_report())
            answer = service.act(operation, asked)
        except SageMakerError as error:
            return _answer(400, {"__type": error.code, "message": error.message})
        if answer is None:
            return _answer(400, {"__type": "UnknownOperationException", "message": f"{operation} is not emulated"})
        known = shapes.output_shape.members if shapes.output_shape is not None else {}
        return _answer(200, {name: value for name, value in answer.items() if name in known})

    app.SERVICE_HANDLERS["sagemaker"] = handle
    router.SERVICE_PATTERNS["sagemaker"] = {"target_prefixes": ["SageMaker"], "credential_scope": "sagemaker"}
    iam_actions.SERVICE_TO_IAM_NAMESPACE["sagemaker"] = "sagemaker"


def _answer(status: int, body: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    return status, {"Content-Type": "application/x-amz-json-1.1"}, json.dumps(body).encode()
