"""Recovery after a crash: nothing that a killed command has made stays unknown to Terraform."""

from windlass.clusters.recovery.recover import needs_recovery, recover
from windlass.clusters.recovery.report import Duplicate, Foreign, Imported, Orphan, RecoveryReport

__all__ = ["Duplicate", "Foreign", "Imported", "Orphan", "RecoveryReport", "needs_recovery", "recover"]
