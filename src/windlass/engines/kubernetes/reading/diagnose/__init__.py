"""Diagnosis rules of the Kubernetes engine, which use the cluster's state in addition to the observations of a run."""
