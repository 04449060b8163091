"""The kinds of objects by which a cluster can be had to make the pods of an attempt; one module for each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from windlass.engines.kubernetes.ways.base import Way
from windlass.engines.kubernetes.ways.job import IndexedJob
from windlass.engines.kubernetes.ways.jobset import JobSet
from windlass.engines.kubernetes.ways.mpijob import MPIJob
from windlass.engines.kubernetes.ways.pytorchjob import PyTorchJob
from windlass.engines.kubernetes.ways.trainjob import TrainJob

WAYS: Final[Mapping[str, Way]] = MappingProxyType(
    {way.name: way for way in (IndexedJob(), JobSet(), TrainJob(), PyTorchJob(), MPIJob())}
)
"""By what `via:` calls them."""
_OUTERMOST_FIRST: Final = ("trainjob", "pytorchjob", "mpijob", "jobset", "job")
MAKERS: Final = tuple((WAYS[name].api, WAYS[name].kind) for name in _OUTERMOST_FIRST)
"""API and kind of what makes pods, outermost first: a TrainJob would make anew a JobSet of its own that was deleted."""
