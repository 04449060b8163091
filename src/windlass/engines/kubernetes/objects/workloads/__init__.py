"""The kinds of owner objects whose controllers create the pods of an attempt; one module for each."""

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
"""By their names in `via:`."""
_OUTERMOST_FIRST: Final = ("trainjob", "pytorchjob", "mpijob", "jobset", "job")
OWNER_KINDS: Final = tuple((WORKLOADS[name].api, WORKLOADS[name].kind) for name in _OUTERMOST_FIRST)
"""API and kind of owner objects, outermost first: a TrainJob recreates a JobSet of its own that was deleted."""
OWNING_PARTS: Final = tuple((one.api, kind) for one in WORKLOADS.values() for kind, _ in one.parts)
"""API and kind of what owns owner objects of its own: a runtime is deleted after the TrainJob that refers to it."""
