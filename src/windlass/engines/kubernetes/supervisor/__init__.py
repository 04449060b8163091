"""Runs the supervisor of a run as a pod in the cluster, and stores the run's record there."""
