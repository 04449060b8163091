"""Lists the AWS resources of a cluster service by service, and reports every listing that failed."""

from windlass.clusters.audit.report import AuditReport, FoundObject, PriceKey, Unknown
from windlass.clusters.audit.run import audit

__all__ = ["AuditReport", "FoundObject", "PriceKey", "Unknown", "audit"]
