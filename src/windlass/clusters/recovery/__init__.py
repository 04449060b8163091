"""Recovery after a crash: adds every resource that a killed command created to the Terraform state."""

from windlass.clusters.recovery.recover import needs_recovery, recover
from windlass.clusters.recovery.report import Duplicate, Foreign, Imported, Orphan, RecoveryReport

__all__ = ["Duplicate", "Foreign", "Imported", "Orphan", "RecoveryReport", "needs_recovery", "recover"]
