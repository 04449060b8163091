"""From a job and the facts of a cluster to a plan; pure but for `facts`."""
