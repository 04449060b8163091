"""The table of all finders. An audit misses kinds of objects that have no finder."""

from __future__ import annotations

from typing import Final

from windlass.clusters.audit.finder import Finder
from windlass.clusters.audit.finders import (
    balancing,
    compute,
    eks,
    identity,
    keys,
    monitoring,
    network,
    sagemaker,
    secrets,
    storage,
    subnets,
)

FINDERS: Final[tuple[Finder, ...]] = (
    *eks.FINDERS,
    *compute.FINDERS,
    *balancing.FINDERS,
    *network.FINDERS,
    *subnets.FINDERS,
    *storage.FINDERS,
    *sagemaker.FINDERS,
    *monitoring.FINDERS,
    *identity.FINDERS,
    *keys.FINDERS,
    *secrets.FINDERS,
)
