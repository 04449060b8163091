"""Engine for this machine: nodes are process trees, and each run has one detached supervisor process."""
