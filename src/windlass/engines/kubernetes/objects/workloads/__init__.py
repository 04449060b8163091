"""Workload kinds: the owner objects whose controllers create the pods of an attempt, one module per kind."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from windlass.engines.kubernetes.objects.workloads.base import Workload
from windlass.engines.kubernetes.objects.workloads.job import IndexedJob
from windlass.engines.kubernetes.objects.workloads.jobset import JobSet
from windlass.engines.kubernetes.objects.workloads.mpijob import MPIJob
from windlass.engines.kubernetes.objects.workloads.pytorchjob import PyTorchJob
from windlass.engines.kubernetes.objects.workloads.trainjob import TrainJob

WORKLOADS: Final[Mapping[str, Workload]] = MappingProxyType(
    {one.name: one for one in (IndexedJob(), JobSet(), TrainJob(), PyTorchJob(), MPIJob())}
)
"""Workload kinds by their names in `via:`."""
_OUTERMOST_FIRST: Final = ("trainjob", "pytorchjob", "mpijob", "jobset", "job")
OWNER_KINDS: Final = tuple((WORKLOADS[name].api, WORKLOADS[name].kind) for name in _OUTERMOST_FIRST)
"""API version and kind of all owner objects, outermost first: a TrainJob recreates its JobSet if the JobSet is deleted
first."""
OWNING_PARTS: Final = tuple((one.api, kind) for one in WORKLOADS.values() for kind, _ in one.parts)
"""API version and kind of objects that owner objects refer to: a TrainingRuntime is deleted after the TrainJob that
refers to it."""
