"""Lists what exists in AWS and belongs to a cluster, service by service, and says what could not be listed."""

from windlass.clusters.audit.report import AuditReport, Found, PriceKey, Unknown
from windlass.clusters.audit.run import audit
from windlass.clusters.policies.audit import audit_actions, audit_statements

__all__ = ["AuditReport", "Found", "PriceKey", "Unknown", "audit", "audit_actions", "audit_statements"]
