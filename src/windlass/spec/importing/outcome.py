"""Reads the text of any known format, and writes the job file with where it comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, Literal

from windlass.errors import JobFileError, Problem
from windlass.spec.dump import dump_job
from windlass.spec.importing.documents import Documents, manifests, split
from windlass.spec.importing.draft import Draft
from windlass.spec.importing.kubeflow import elasticjob, mpijob, pytorchjob
from windlass.spec.importing.sets import job, jobset
from windlass.spec.importing.sky import sky
from windlass.spec.importing.source import Left, Source
from windlass.spec.importing.torchx import torchx
from windlass.spec.importing.trainer import trainjob
from windlass.spec.job import Job
from windlass.spec.parse import job_from_mapping, parse_job

Format = Literal["kubernetes", "torchx", "sky"]
_KINDS: Final[dict[str, Callable[[Documents, Draft, str], None]]] = {
    "PyTorchJob": pytorchjob,
    "MPIJob": mpijob,
    "TrainJob": trainjob,
    "JobSet": jobset,
    "Job": job,
    "ElasticJob": elasticjob,
}
_BESIDE: Final = {
    "ConfigMap": (
        "values and files for pods",
        "put files into the folder of the job file, and values into env:",
        False,
    ),
    "Secret": ("values that nobody is to see", "kubectl apply it, and name it: secrets: [NAME]", False),
    "Service": ("gives pods their names", "a run makes its own", True),
    "PersistentVolumeClaim": (
        "storage; a job names a claim and does not make it",
        "kubectl apply it before the first run",
        False,
    ),
    "PersistentVolume": ("storage of the cluster", "kubectl apply it before the first run", False),
    "StorageClass": ("a kind of storage", "kubectl apply it before the first run", False),
    "Namespace": ("where the job lives", "kubectl apply it before the first run", False),
    "ServiceAccount": ("who the pods are", "kubectl apply it before the first run", False),
    "PriorityClass": ("how much the job matters", "kubectl apply it before the first run", False),
    "TrainingRuntime": ("a runtime that the job does not name", "leave it out", True),
    "ClusterTrainingRuntime": ("a runtime that the job does not name", "leave it out", True),
}


@dataclass(frozen=True, slots=True)
class Imported:
    """A job that came from elsewhere."""

    job: Job
    kind: str
    """What it was: `PyTorchJob kubeflow.org/v1`."""
    left: tuple[Left, ...]
    """What of it the job does not say, in the order of the file."""
    text: str
    """The job file."""

    @property
    def lost(self) -> tuple[Left, ...]:
        """What of that somebody may have to do something about."""
        return tuple(left for left in self.left if not left.is_ours)


def import_text(text: str, where: str, *, form: Format = "kubernetes", name: str | None = None) -> Imported:
    """The job that a manifest, an AppDef or a task asks for, from a file named `where`; `name` is another for the job.

    Raises JobFileError with all problems, where it is none of these, or holds several jobs.
    """
    draft = Draft()
    if form == "kubernetes":
        found = manifests(text, where)
        sources = [found.job, *found.others]
        kind = str(found.job.value["kind"])
        _KINDS[kind](found, draft, where)
        shown = f"{kind} {found.job.value['apiVersion']}"
        for other in found.others:
            _beside(other)
    else:
        sources = [_only(split(text, where), where, form)]
        (torchx if form == "torchx" else sky)(sources[0], draft, where)
        shown = "AppDef of TorchX" if form == "torchx" else "task of SkyPilot"
    fields = {"name": "job", **draft.fields, **({} if name is None else {"name": name})}
    made = job_from_mapping(fields, where)
    left = tuple(sorted((one for source in sources for one in source.rest()), key=lambda one: one.line))
    written = _head(where, shown, left) + dump_job(made)
    parse_job(written, "job.yaml")  # what we write, we can read
    return Imported(made, shown, left, written)


def _beside(source: Source) -> None:
    """Say of a document beside the job what it is for, as far as nothing of it was read."""
    kind = source.view.at("kind").value if isinstance(source.value, dict) else None
    meaning, instead, is_ours = _BESIDE.get(
        str(kind), ("stands beside the job", "kubectl apply it, if the job needs it", False)
    )
    if not source.is_read:
        source.leave((), meaning, instead, is_ours=is_ours)
    elif kind == "ConfigMap":
        source.take(("metadata",))


def _only(sources: list[Source], where: str, form: Format) -> Source:
    """The one document. Raises JobFileError where it is none, or several."""
    filled = [source for source in sources if isinstance(source.value, dict)]
    if len(filled) == 2 and form == "sky" and set(filled[0].value) == {"name"}:
        filled = filled[1:]  # the first document of a managed job only names it
    if len(filled) == 1 and len(sources) <= 2:
        return filled[0]
    what = "a task of SkyPilot" if form == "sky" else "an AppDef of TorchX"
    message = f"holds {len(filled)} documents" if filled else "holds no mapping"
    raise JobFileError([Problem(where, "", f"{message}, and {what} is one", "leave one in the file")])


def _head(where: str, kind: str, left: tuple[Left, ...]) -> str:
    """Where the job file comes from, as its first lines."""
    count = sum(not one.is_ours for one in left)
    name = PurePath(where).name if where.isprintable() else ascii(where)
    lines = [f"# Imported from {name}: {kind}"]
    if count:
        lines.append(f"# {count} {'thing' if count == 1 else 'things'} of it did not fit: windlass import lists them")
    return "\n".join(lines) + "\n"
