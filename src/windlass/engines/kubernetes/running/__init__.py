"""Runs the attempts of a run on a cluster: creates, signals, reuses and removes their pods."""
