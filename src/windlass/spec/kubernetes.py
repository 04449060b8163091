"""Options of a job for the Kubernetes engine, and options of pods that a Kubernetes target can have too."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StrictBool,
    StrictInt,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import PydanticCustomError

from windlass.spec.names import Label, LabelKey, LabelValue, OnlyList, Text, matching, unfit_for_pods
from windlass.spec.positions import Path, found
from windlass.spec.problems import refuse, refuse_all
from windlass.spec.quantities import exact
from windlass.spec.sections import DataClaim, Results, Section, Workload
from windlass.spec.units import Duration, Size, parse_duration

TOPOLOGY: Mapping[str, str] = {"node": "kubernetes.io/hostname", "zone": "topology.kubernetes.io/zone"}
"""Node labels of the places that have a name of their own."""
_TAINT = re.compile(r"(?P<key>[^=:]+)(?:=(?P<value>[^:]*))?(?::(?P<effect>\w+))?")


def _toleration(given: object) -> object:
    """Converts a taint in the notation of kubectl, `KEY[=VALUE][:EFFECT]`, to the fields of a toleration."""
    if not isinstance(given, str):
        return given
    match = _TAINT.fullmatch(given)
    if match is None:
        raise refuse(f"{found(given)} is not a taint", "write KEY, KEY=VALUE or KEY=VALUE:NoSchedule")
    return {name: text for name, text in match.groupdict().items() if text is not None}


class Toleration(Section):
    """A node taint that pods tolerate."""

    key: LabelKey | None = None
    """Key of the taint. Default: all keys."""
    value: LabelValue | None = None
    """Value of the taint. Default: any value."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint. Default: all effects."""
    seconds: Annotated[StrictInt, Field(ge=0)] | None = None
    """Seconds for which pods stay on a node that gets a taint with effect `NoExecute`. Default: no limit."""

    @field_validator("value")
    @classmethod
    def _of_a_key(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("key", "") is None:
            raise refuse(f"is {value}, and there is no key whose value it is", "set key:")
        return value

    @field_validator("seconds")
    @classmethod
    def _of_no_execute(cls, seconds: int | None, info: ValidationInfo) -> int | None:
        if seconds is not None and info.data.get("effect", "NoExecute") != "NoExecute":
            raise refuse(f"is {seconds}, and only taints of NoExecute evict pods", "set effect: NoExecute")
        return seconds


def _topology(given: str) -> str:
    return TOPOLOGY.get(given, given)


TopologyKey = Annotated[LabelKey, AfterValidator(_topology)]


class Affinity(Section):
    """Placement of the pods of a run relative to each other."""

    same: TopologyKey | None = None
    """All pods run on nodes with the same value of this node label: `zone`, or a label key such as that of a rack.
    Default: no such rule."""
    apart: TopologyKey | None = None
    """No two pods run on nodes with the same value of this node label: `node`, `zone` or a label key. Default: pods
    prefer separate nodes, and share one if no other has room."""


def _quantity(given: object) -> object:
    if isinstance(given, bool) or not isinstance(given, str | int | float) or exact(given) is None:
        raise refuse(f"expected a quantity, found {found(given)}", "write for example 4, 500m or 16Gi")
    return str(given)


Amounts = dict[LabelKey, Annotated[str, BeforeValidator(_quantity, json_schema_input_type=str | int | float)]]


def _patch(given: object) -> object:
    """Checks the outline of a patch for a pod template; only the engine can check its content."""
    errors = [(path, refuse(message, hint)) for path, message, hint in _problems_of_patch(given)]
    if errors:
        raise refuse_all(errors)
    return given


def _problems_of_patch(given: object) -> Iterator[tuple[Path, str, str]]:
    hint = "write the fields of a pod template: {metadata: {…}, spec: {…}}"
    if not isinstance(given, Mapping):
        yield (), f"expected a mapping, found {found(given)}", hint
        return
    for name in given:
        if name not in ("metadata", "spec"):
            yield (str(name),), "is no field of a pod template", hint
        elif not isinstance(given[name], Mapping):
            yield (name,), f"expected a mapping, found {found(given[name])}", hint
    yield from unfit_for_pods(given)


PodPatch = Annotated[
    dict[str, Any],
    BeforeValidator(_patch, json_schema_input_type=dict[str, Any]),
    WithJsonSchema({"type": "object", "properties": {"metadata": {"type": "object"}, "spec": {"type": "object"}}}),
]
Capability = Annotated[
    str, matching(r"(?!CAP_)[A-Z][A-Z_]*", "a capability", "write it without CAP_, for example IPC_LOCK")
]


def _annotations(given: Mapping[str, str]) -> Mapping[str, str]:
    errors: list[tuple[Path, PydanticCustomError]] = [
        ((key,), refuse("has a prefix that is not for users", "choose another prefix, or none"))
        for key in given
        if key.rpartition("/")[0].endswith("windlass.dev")
    ]
    errors += [(path, refuse(message, hint)) for path, message, hint in unfit_for_pods(given)]
    if errors:
        raise refuse_all(errors)
    return given


class PodOptions(Section):
    """Options of the pods of a run. A job's options are added to those of its target, and take precedence."""

    annotations: Annotated[dict[LabelKey, Text], AfterValidator(_annotations)] = Field(default_factory=dict)
    """Annotations of all pods of a run and of the objects that own them. Default: none."""
    node_selector: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    """Node labels that the ranks' pods require. Default: none."""
    tolerations: Annotated[
        tuple[Annotated[Toleration, BeforeValidator(_toleration, json_schema_input_type=str | Toleration)], ...],
        OnlyList,
    ] = ()
    """Node taints that all pods of a run tolerate, as in `kubectl taint`: `[dedicated=training:NoSchedule]`, or as
    mappings with `key`, `value`, `effect`, `seconds`. The taint of GPU nodes is tolerated if GPUs are requested.
    Default: none."""
    affinity: Affinity = Affinity()
    """Placement of the ranks' pods relative to each other: `{same: zone, apart: node}`. Default: pods prefer separate
    nodes."""
    limits: Amounts = Field(default_factory=dict)
    """Further resources of a pod, or other limits than `resources` gives: `{vpc.amazonaws.com/efa: 4, hugepages-2Mi:
    5Gi, ephemeral-storage: 100Gi, amd.com/gpu: 8}`. Default: none."""
    requests: Amounts = Field(default_factory=dict)
    """Requests that differ from the limits, by resource, such as `cpu` or `memory`. Default: requests equal limits."""
    capabilities: Annotated[tuple[Capability, ...], OnlyList] = ()
    """Linux capabilities of the ranks, such as `[IPC_LOCK]` for RDMA. Linux gives them to processes of root alone: with
    `pod: {spec: {securityContext: {runAsUser: 0, runAsNonRoot: false}}}`. Default: none."""
    read_only_root: StrictBool | None = None
    """Whether the root file system of the ranks is read-only; `/tmp` is writable. Pods of Windlass itself always have
    a read-only root. Default false."""
    env_from: Annotated[tuple[Label, ...], OnlyList] = ()
    """ConfigMaps of the namespace whose entries become environment variables of the ranks. Default: none."""
    pod: PodPatch = Field(default_factory=dict)
    """Strategic merge patch of the ranks' pod template, for all other fields: `{spec: {runtimeClassName: nvidia}}`. The
    ranks' container is called `node`. Default: none."""
    supervisor_pod: PodPatch = Field(default_factory=dict)
    """Strategic merge patch of the pod template of the supervisor, and of the pods that copy data or check the cluster.
    Their container is called `supervisor` here. Default: none."""

    def over(self, target: PodOptions) -> Self:
        """Returns these options, of a job, with those of its target; the patches are the job's alone."""
        mine, its = (
            {name: getattr(one, name) for name in PodOptions.model_fields if name not in ("pod", "supervisor_pod")}
            for one in (self, target)
        )
        return self.model_copy(update={name: _both(mine[name], its[name]) for name in mine})


def _both(job: Any, target: Any) -> Any:
    if isinstance(job, dict):
        return {**target, **job}
    if isinstance(job, tuple):
        return (*target, *(one for one in job if one not in target))
    if isinstance(job, Affinity):
        return Affinity(same=job.same or target.same, apart=job.apart or target.apart)
    return target if job is None else job


def _ttl(given: object) -> object:
    """Validates a time to live: a duration or `never`."""
    return given if given == "never" else parse_duration(given)


Ttl = Annotated[float | Literal["never"], BeforeValidator(_ttl, json_schema_input_type=Duration | Literal["never"])]


class KubernetesOptions(PodOptions):
    """Options of the Kubernetes engine."""

    via: Workload = "auto"
    """Workload kind. Default `auto`: a Job; a TrainJob with `runtime`, an MPIJob with `launcher: mpi`."""
    runtime: Label | None = None
    """Name of a training runtime of the cluster for the TrainJob. Default: one is created for the run."""
    runtime_kind: Literal["TrainingRuntime", "ClusterTrainingRuntime"] | None = None
    """Kind of `runtime`. Default: the one of this name in the namespace, or else in the cluster."""
    namespace: Label | None = None
    """Namespace of the run. Default: the target's."""
    results: Results | None = None
    """Storage that keeps outputs and checkpoints after pods are deleted: `{claim: NAME}` or `{size: 20GiB}`. Default:
    none; outputs are fetched to this machine, see `outputs_max`."""
    outputs_max: Size | None = None
    """Maximum bytes of the outputs of all pods that are fetched to the user's machine after the last attempt; larger
    outputs are deleted with the pods. `0` fetches nothing. Only without `results`. Default: 1GiB."""
    data: DataClaim | None = None
    """Storage in which data sets are staged: `{size: 200GiB}` or `{claim: NAME}`. Default: the target's."""
    service_account: Label | None = None
    """Service account of the pods. Default: the namespace's default; its token is never mounted."""
    image_pull_secrets: Annotated[tuple[Label, ...], OnlyList] = ()
    """Secrets of the namespace with credentials of image registries, in addition to the target's. Default: none."""
    ttl: Ttl | None = None
    """Seconds for which pods are kept after their attempt ends, and the run's objects (at least an hour) after the run
    ends; or `never`. Default: a week. A run whose claim would be deleted with it is kept until `windlass rm RUN`."""
    lost_after: Annotated[Duration, Field(ge=0)] | None = None
    """Seconds that a node may be unreachable, once its cluster has noticed, before its pods are declared lost. Default:
    30 if `restarts` or a range of nodes lets the job continue without them, else the cluster's own, usually 300."""
    spares: Annotated[StrictInt, Field(ge=0, le=1000)] = 0
    """Pods that wait, with their resources reserved, to replace a lost pod at once. Default: 0. Needs restarts, a Job
    (`via: job`) without a queue, and Kubernetes 1.29."""

    @field_validator("outputs_max")
    @classmethod
    def _without_results(cls, size: int | None, info: ValidationInfo) -> int | None:
        if size is not None and info.data.get("results") is not None:
            raise refuse("is given together with results, which keep outputs of any size", "leave out one of the two")
        return size
