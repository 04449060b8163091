"""What a cluster reports: informers, logs, queues, nodes, preflight checks, diagnosis."""
