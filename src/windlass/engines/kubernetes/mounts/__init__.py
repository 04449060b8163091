"""Data sets that the cluster mounts: the choice of the driver, the volumes, and tasks of repositories."""
