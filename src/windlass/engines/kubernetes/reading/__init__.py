"""Reads the state of a cluster: informers, logs, queues, nodes, preflight checks, diagnosis."""
