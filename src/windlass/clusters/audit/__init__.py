"""Lists what exists in AWS and belongs to a cluster, service by service, and says what could not be listed."""

from windlass.clusters.audit.report import AuditReport, Found, PriceKey, Unknown
from windlass.clusters.audit.run import audit

__all__ = ["AuditReport", "Found", "PriceKey", "Unknown", "audit"]
