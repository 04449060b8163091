"""The web page of runs, metrics, logs and targets, served on this machine."""
