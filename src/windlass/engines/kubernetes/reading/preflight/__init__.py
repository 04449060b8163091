"""Checks before anything runs: RBAC, capacity, network and what the cluster has."""
