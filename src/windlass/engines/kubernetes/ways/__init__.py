"""The kinds of objects by which a cluster can be had to make the pods of an attempt; one module for each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from windlass.engines.kubernetes.ways.base import Way
from windlass.engines.kubernetes.ways.job import IndexedJob
from windlass.engines.kubernetes.ways.jobset import JobSet
from windlass.engines.kubernetes.ways.pytorchjob import PyTorchJob
from windlass.engines.kubernetes.ways.trainjob import TrainJob

WAYS: Final[Mapping[str, Way]] = MappingProxyType(
    {way.name: way for way in (IndexedJob(), JobSet(), TrainJob(), PyTorchJob())}
)
"""By what `via:` calls them."""
MAKERS: Final = tuple(
    (way.api, way.kind) for way in (WAYS["trainjob"], WAYS["pytorchjob"], WAYS["jobset"], WAYS["job"])
)
"""API and kind of what makes pods, outermost first: a TrainJob would make anew a JobSet of its own that was deleted."""
