"""Converts the text of any supported format into a job file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, Literal

from windlass.errors import JobFileError, Problem
from windlass.importers.common import metadata
from windlass.importers.documents import Documents, chosen, manifests, split
from windlass.importers.draft import Draft
from windlass.importers.field_hints import Hint, hints
from windlass.importers.jobset import job, jobset
from windlass.importers.kubeflow import jaxjob, mpijob, pytorchjob, tfjob, xgboostjob
from windlass.importers.sagemaker import is_training_job, sagemaker
from windlass.importers.sagemaker_target import report_missing, target_text
from windlass.importers.secret_words import refuse_secrets
from windlass.importers.sky import sky
from windlass.importers.source import STDIN, ImportSource, UnmappedField, View, argument
from windlass.importers.torchx import torchx
from windlass.importers.trainer import trainjob
from windlass.spec.dump import dump_job
from windlass.spec.job import Job
from windlass.spec.parse import job_from_mapping, parse_job

Format = Literal["kubernetes", "torchx", "sky"]
Reader = Callable[[Documents, Draft], None]
"""Function that reads a document into the fields of a job file."""
_KINDS: Final[Mapping[str, Reader]] = {
    "PyTorchJob": pytorchjob,
    "TFJob": tfjob,
    "JAXJob": jaxjob,
    "XGBoostJob": xgboostjob,
    "MPIJob": mpijob,
    "TrainJob": trainjob,
    "JobSet": jobset,
    "Job": job,
    "ElasticJob": pytorchjob,
}
_FORMS: Final[Mapping[str, tuple[str, Reader]]] = {
    "torchx": ("AppDef of TorchX", torchx),
    "sky": ("task of SkyPilot", sky),
}
_OF_A_HEAD: Final = {"name", "execution", "placement", "primary_tasks", "termination_delay"}
"""Fields of the first document of a SkyPilot pipeline or job group, which is not a task."""
_KEPT_OUT: Final = Hint(
    "this file contains the value of a secret, and all files next to the job file are shipped with the job",
    "move it to another folder, or name it in .windlassignore",
)
_OTHER: Final = Hint("another object in the file", "kubectl apply it, if the job needs it")


@dataclass(frozen=True, slots=True)
class Imported:
    """A job converted from another format."""

    job: Job
    kind: str
    """Kind and API version of the original: `PyTorchJob kubeflow.org/v1`."""
    unmapped: tuple[UnmappedField, ...]
    """Fields without an equivalent in the job, in the order of the file."""
    text: str
    """YAML text of the job file."""
    target: str = ""
    """The target to paste into targets.yaml; empty if the original does not specify where it runs."""

    @property
    def actionable(self) -> tuple[UnmappedField, ...]:
        """The fields in `unmapped` that may need action by the user."""
        return tuple(one for one in self.unmapped if not one.is_handled)


def import_text(
    text: str, where: str, *, form: Format = "kubernetes", name: str | None = None, document: str | None = None
) -> Imported:
    """Converts a Kubernetes manifest, SageMaker training job, TorchX AppDef or SkyPilot task from a file named `where`.

    `name` replaces the job's name; `document` names the job to read if the file contains several.

    Raises JobFileError with all problems if the format is not supported, or the file contains several jobs.
    """
    draft = Draft()
    read: Reader
    if where.endswith(".py"):
        raise JobFileError([_python(text, where)])
    if form == "kubernetes" and len(sources := split(text, where)) == 1 and is_training_job(sources[0].value):
        shown, read, found = "training job of SageMaker", sagemaker, Documents(sources[0])
    elif form == "kubernetes":
        found = manifests(text, where, document)
        kind = str(found.job.value["kind"])
        shown, read = f"{kind} {found.job.value['apiVersion']}", _KINDS[kind]
        metadata(found.job.view, draft)
    else:
        shown, read = _FORMS[form]
        found = Documents(_only(split(text, where), where, form, document))
    read(found, draft)
    _pod_names(found.job.view.at("metadata", "name"), draft)
    if draft.target:
        report_missing(found.job.view, draft)
    for other in found.others:
        _beside(other)
        if other.view.at("kind").value == "Secret" and (other.view.at("data") or other.view.at("stringData")):
            draft.secret = draft.secret or other.view
    if draft.secret is not None and where != STDIN:
        draft.secret.remark(*_KEPT_OUT)
    sources = [found.job, *found.others]
    fields = {"name": "job", **draft.fields, **({} if name is None else {"name": name})}
    made = job_from_mapping(fields, where)
    refuse_secrets(made, text, where)
    unmapped = tuple(sorted((one for source in sources for one in source.rest()), key=lambda one: one.line))
    written = _head(where, shown, unmapped) + dump_job(made)
    parse_job(written, "job.yaml")  # checks that the written file can be parsed
    return Imported(made, shown, unmapped, written, target_text(draft))


def _python(text: str, where: str) -> Problem:
    """Returns the error for a Python file, with the format to import instead."""
    if re.search(r"""^\s*(?:from|import)\s+sagemaker\b|["']sagemaker["']""", text, re.MULTILINE):
        message = "is a Python script that uses SageMaker, and import does not read Python"
        described = "aws sagemaker describe-training-job --training-job-name NAME > job.json"
        hint = f"import the training job that it creates: {described}, or the JSON of its CreateTrainingJob request"
    else:
        message = "is a Python script, and import does not read Python"
        hint = f"windlass init {argument(where)} writes a job file for a training script"
    return Problem(where, "", message, hint)


def _beside(source: ImportSource) -> None:
    """Reports a document, other than the job, of which no value was read."""
    kind = source.view.at("kind").value if isinstance(source.value, dict) else None
    if not source.is_read:
        source.view.report(*hints("beside").get(str(kind), _OTHER))
    elif kind == "ConfigMap":
        source.view.at("metadata").report("a ConfigMap whose values are in the job", "nothing to do", is_handled=True)


def _pod_names(view: View, draft: Draft) -> None:
    """Reports host names of the operator's pods in the command and the variables, because pods of a run have other
    names.
    """
    if not isinstance(view.value, str):
        return
    command = draft.get("command") or [draft.get("run") or ""]
    text = "\n".join([*command, *map(str, draft.fields.get("env", {}).values())])
    found = re.findall(rf"(?<![\w./-]){re.escape(view.value)}-(?:[a-z][\w-]*-)?[0-9]+(?![\w-])", text)
    found += re.findall(r"[a-z][\w.-]*\.svc(?:\.cluster\.local)?(?![\w-])", text)
    if found:
        view.remark(
            f"{', '.join(dict.fromkeys(found))}: names of its pods or of its Service",
            "WINDLASS_MASTER_ADDR is the first node, on every target, and WINDLASS_HOSTS are all",
        )
    if re.search(r"\bhostname\b[^\n)`|]*\||\$\{HOSTNAME[#%:]", text):
        view.remark("a number extracted from the name of a pod", "WINDLASS_NODE_RANK is the number of the node")


def _only(sources: list[ImportSource], where: str, form: Format, document: str | None) -> ImportSource:
    """Returns the document of a file, by name if there are several. Raises JobFileError for no document or several."""
    filled = [source for source in sources if isinstance(source.value, dict)]
    if len(filled) == 2 and form == "sky" and set(filled[0].value) == {"name"}:
        filled = filled[1:]  # the first document of a managed job has only its name
    if len(filled) > 1 and set(filled[0].value) <= _OF_A_HEAD:
        filled = filled[1:]
    labels = [str(one.view.at("name").value or at) for at, one in enumerate(filled, 1)]
    if document is not None and filled:
        return chosen(filled, labels, document, where)
    if len(filled) == 1:
        return filled[0]
    message = f"holds {len(filled)} documents, {', '.join(labels)}" if filled else "holds no mapping"
    hint = (
        f"windlass import --{form} --document {shlex.quote(labels[0])} {argument(where)}, and so each of them"
        if filled
        else ""
    )
    raise JobFileError([Problem(where, "", f"{message}; expected one {_FORMS[form][0]}", hint)])


def _head(where: str, kind: str, unmapped: tuple[UnmappedField, ...]) -> str:
    """Returns the comment at the start of the job file: its origin, and the number of fields without an equivalent."""
    count = sum(not one.is_handled for one in unmapped)
    name = PurePath(where).name if where.isprintable() else ascii(where)
    lines = [f"# Imported from {name}: {kind}"]
    if count:
        lines.append(f"# {count} {'field' if count == 1 else 'fields'} without equivalent: windlass import lists them")
    return "\n".join(lines) + "\n"
