"""Kubernetes engine: runs jobs on any conformant cluster, with nothing installed in it."""
