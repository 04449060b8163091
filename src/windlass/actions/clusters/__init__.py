"""Clusters of one's own on AWS: made, checked, audited and removed."""
