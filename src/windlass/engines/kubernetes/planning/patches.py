"""Plans the patches of pods: tries each on its pod template, and shows every value that a patch sets. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from windlass.engines.kubernetes.objects import transfer_manifests
from windlass.engines.kubernetes.objects.helper_manifests import read_job
from windlass.engines.kubernetes.objects.labels import SUPERVISOR
from windlass.engines.kubernetes.objects.pod_template import Shape, pod_template
from windlass.engines.kubernetes.objects.supervisor_manifests import supervisor_job
from windlass.plan.notes import Note, blocker
from windlass.plan.steps import PodPatchStep
from windlass.spec.pod_patch import PatchRefused

if TYPE_CHECKING:
    from windlass.spec.job import Job
    from windlass.spec.targets import KubernetesTarget

_SHOWN_CHARS: Final = 100


@dataclass(frozen=True, slots=True)
class Patches:
    """The patches of a run."""

    shape: Shape
    """The shape of the run with the patches that can be applied."""
    steps: tuple[PodPatchStep, ...]
    notes: tuple[Note, ...]
    """Problems of the other patches."""


def plan_patches(shape: Shape, job: Job, target: KubernetesTarget) -> Patches:
    """Returns the shape with the patches of target and job, the job's last, and their steps and problems."""
    steps: list[PodPatchStep] = []
    notes: list[Note] = []
    for origin, options, above in ((target.name, target, ""), ("job", job.kubernetes, "kubernetes.")):
        where = "" if origin == "job" else f"target {origin}: "
        for pods, patch in (("ranks", options.pod), (SUPERVISOR, options.supervisor_pod)):
            if not patch:
                continue
            name = "pod" if pods == "ranks" else "supervisor_pod"
            try:
                shape = _with(shape, job, pods, patch)
            except PatchRefused as error:
                message = f"{where}{above}{name}.{error.path}: {error.why}"
                notes.append(blocker("pod-patch", message, error.hint))
            else:
                steps += [_step(pods, origin, path, value) for path, value in _leaves(patch, "")]
    return Patches(shape, tuple(steps), tuple(notes))


def _with(shape: Shape, job: Job, pods: str, patch: Mapping[str, Any]) -> Shape:
    """Returns the shape with one more patch. Raises PatchRefused."""
    if pods == "ranks":
        shape = replace(shape, pod_patches=(*shape.pod_patches, patch))
        pod_template(shape, job, 1, job.nodes.max)
    else:
        shape = replace(shape, supervisor_patches=(*shape.supervisor_patches, patch))
        # A patch may conflict with one of these pods alone, such as by the name of a volume.
        supervisor_job(shape, job)
        transfer_manifests.check_job(shape, job, "s3://")
        read_job(shape, job, shape.run_id)
    return shape


def _step(pods: str, origin: str, path: str, value: Any) -> PodPatchStep:
    text = json.dumps(value)
    shown = text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
    by = "" if origin == "job" else f", by target {origin}"
    what = f"remove {path} from" if value is None else f"set {path} = {shown} in"
    return PodPatchStep(f"{what} the pods of the {pods}{by}", pods, origin, path, text)


def _leaves(patch: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    """Yields path and value of everything that a patch sets; a list is one value."""
    for name, value in patch.items():
        path = f"{above}.{name}".lstrip(".")
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, path)
        else:
            yield path, value
