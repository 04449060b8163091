"""This machine: nodes are process trees under one detached supervisor a run."""
