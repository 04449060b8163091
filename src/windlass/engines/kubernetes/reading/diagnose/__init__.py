"""Diagnosis rules of the Kubernetes engine: each reads what the cluster reports beside the observations of a run."""
