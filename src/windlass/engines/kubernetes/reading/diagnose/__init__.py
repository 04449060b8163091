"""Diagnosis rules of the Kubernetes engine, which combine a cluster's state with the observations of a run."""
