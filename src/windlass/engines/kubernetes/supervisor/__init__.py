"""Runs the supervisor of a run as a pod of its cluster, and keeps the run's record there."""
