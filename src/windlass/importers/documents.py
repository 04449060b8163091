"""Splits the text of a manifest into its training job and the other documents."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from windlass.errors import JobFileError, Problem, near
from windlass.importers.field_hints import hints
from windlass.importers.placeholders import placeholders_of_text, refuse_placeholders
from windlass.importers.source import ImportSource, argument
from windlass.spec.positions import Path
from windlass.spec.yamltext import read_documents

JOBS: Final[dict[str, tuple[str, ...]]] = {
    "PyTorchJob": ("kubeflow.org/v1",),
    "MPIJob": ("kubeflow.org/v1alpha1", "kubeflow.org/v1alpha2", "kubeflow.org/v1", "kubeflow.org/v2beta1"),
    "TFJob": ("kubeflow.org/v1",),
    "JAXJob": ("kubeflow.org/v1",),
    "XGBoostJob": ("kubeflow.org/v1",),
    "TrainJob": ("trainer.kubeflow.org/v1alpha1",),
    "JobSet": ("jobset.x-k8s.io/v1alpha2",),
    "Job": ("batch/v1",),
    "ElasticJob": ("elastic.pytorch.org/v1alpha1",),
}
"""Supported kinds and API versions."""
RUNTIMES: Final = ("TrainingRuntime", "ClusterTrainingRuntime")


@dataclass(frozen=True, slots=True)
class Documents:
    """A job and the other documents of its file."""

    job: ImportSource
    others: tuple[ImportSource, ...] = ()

    def called(self, kind: str, name: object) -> ImportSource | None:
        """Returns the other document of this kind and name; None if the file has none."""
        for one in self.others:
            if one.view.at("kind").value == kind and one.view.at("metadata", "name").value == name:
                return one
        return None


def split(text: str, where: str) -> list[ImportSource]:
    """Returns the YAML documents of a file; a `List` of Kubernetes is replaced by its items. Raises JobFileError for
    text that is not YAML.
    """
    try:
        found, lines = read_documents(text, where)
    except JobFileError as error:
        if templated := placeholders_of_text(text, where):
            raise JobFileError(templated) from error
        raise
    sources: list[ImportSource] = []
    for at, value in enumerate(found):
        is_list = isinstance(value, dict) and str(value.get("kind", "")).endswith("List") and "items" in value
        entries: Sequence[Any] = value["items"] if is_list and isinstance(value["items"], list) else [value]
        for place, entry in enumerate(entries):
            base: Path = (at, "items", place) if is_list else (at,)
            if entry is not None:
                sources.append(ImportSource(entry, where, base, lines))
    return sources


def manifests(text: str, where: str, document: str | None = None) -> Documents:
    """Splits Kubernetes objects into the job, chosen by name if there are several, and the others.

    Raises JobFileError for no job, for several jobs without a name, and for template placeholders.
    """
    sources = split(text, where)
    jobs = [source for source in sources if _kind(source) in JOBS]
    if document is not None and jobs:
        jobs = [chosen(jobs, [_label(job) for job in jobs], document, where)]
    if len(jobs) != 1:
        raise JobFileError([_not_one(sources, jobs, where)])
    [job] = jobs
    api = job.value.get("apiVersion")
    known = JOBS[_kind(job)]
    if api not in known:
        message = f"is {api!r}, and {_kind(job)} is read in version {' and '.join(known)}"
        raise job.view.at("apiVersion").refused(message, near(str(api), known))
    others = tuple(source for source in sources if source is not job)
    for source in (job, *(other for other in others if _kind(other) in RUNTIMES)):
        refuse_placeholders(source)
    for other in others:
        other.label = _label(other)
    for source in sources:
        for key in ("apiVersion", "kind"):
            source.view.at(key).take()
    return Documents(job, others)


def _kind(source: ImportSource) -> str:
    kind = source.value.get("kind") if isinstance(source.value, dict) else None
    return kind if isinstance(kind, str) else ""


def _label(source: ImportSource) -> str:
    name = source.view.at("metadata", "name").value
    return f"{_kind(source) or 'document'}/{name}" if isinstance(name, str) else _kind(source) or "document"


def _not_one(sources: list[ImportSource], jobs: list[ImportSource], where: str) -> Problem:
    if len(jobs) > 1:
        named = ", ".join(f"{_label(job)} (line {job.line(())})" for job in jobs)
        hint = f"windlass import --document {shlex.quote(_label(jobs[0]))} {argument(where)}, and so each of them"
        return Problem(where, "", f"holds several jobs: {named}", hint)
    kinds = ", ".join(dict.fromkeys(filter(None, map(_kind, sources))))
    known = ", ".join(JOBS)
    if any(isinstance(source.value, dict) and ("run" in source.value or "setup" in source.value) for source in sources):
        return Problem(where, "", "is no Kubernetes object", "windlass import --sky reads a task of SkyPilot")
    if any(isinstance(source.value, dict) and "roles" in source.value for source in sources):
        return Problem(where, "", "is no Kubernetes object", "windlass import --torchx reads an AppDef of TorchX")
    of_kind = [hints("other kind")[kind] for kind in map(_kind, sources) if kind in hints("other kind")]
    if of_kind:
        message = f"holds no job that is read: found {kinds}, {of_kind[0].meaning}"
        return Problem(where, "", message, of_kind[0].instead)
    found = f"found {kinds}" if kinds else "it is empty" if not sources else "no document has a kind"
    others = "of other systems SkyPilot (--sky), TorchX (--torchx) and SageMaker are read"
    return Problem(where, "", f"holds no job that is known: {found}", f"known kinds are {known}; {others}")


def chosen(sources: Sequence[ImportSource], labels: Sequence[str], document: str, where: str) -> ImportSource:
    """Returns the document that the user names: `PyTorchJob/llama`, `llama`, or a number from 1. Raises
    JobFileError.
    """
    named = [
        source for source, label in zip(sources, labels, strict=True) if document in (label, *label.split("/")[1:])
    ]
    if not named and document.isdecimal() and 0 < int(document) <= len(sources):
        named = [sources[int(document) - 1]]
    if len(named) == 1:
        return named[0]
    message = f"holds {len(named) or 'no'} jobs of the name {document!r}: it has {', '.join(labels)}"
    raise JobFileError([Problem(where, "--document", message, near(document, labels))])
