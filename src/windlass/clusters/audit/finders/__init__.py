"""The table of all finders; the audit covers only the kinds of objects that it lists."""

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
