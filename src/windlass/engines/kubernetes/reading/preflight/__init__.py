"""Checks of a cluster before a run: RBAC, capacity, network, nodes, operators and storage."""
