"""Kinds of Kubernetes objects, and their resource names in URLs of the API server."""

from __future__ import annotations

from typing import Final

PLURALS: Final = {
    "ConfigMap": "configmaps", "Service": "services", "Pod": "pods", "Event": "events", "Node": "nodes",
    "PersistentVolumeClaim": "persistentvolumeclaims", "PersistentVolume": "persistentvolumes",
    "CSIDriver": "csidrivers", "Secret": "secrets", "Job": "jobs", "JobSet": "jobsets",
    "CustomResourceDefinition": "customresourcedefinitions", "SelfSubjectAccessReview": "selfsubjectaccessreviews",
    "SelfSubjectRulesReview": "selfsubjectrulesreviews", "ResourceQuota": "resourcequotas",
    "TrainJob": "trainjobs", "TrainingRuntime": "trainingruntimes", "PyTorchJob": "pytorchjobs", "MPIJob": "mpijobs",
    "ClusterTrainingRuntime": "clustertrainingruntimes",
    "Workload": "workloads", "LocalQueue": "localqueues", "ClusterQueue": "clusterqueues",
    "StorageClass": "storageclasses", "ServiceAccount": "serviceaccounts", "Namespace": "namespaces",
    "NodePool": "nodepools", "NodeClaim": "nodeclaims", "Lease": "leases",
    "Deployment": "deployments", "HorizontalPodAutoscaler": "horizontalpodautoscalers",
    "InferenceService": "inferenceservices",
    "Role": "roles", "RoleBinding": "rolebindings", "NetworkPolicy": "networkpolicies",
}  # fmt: skip
"""Resource name of each kind in URLs of the API server: `pods` for Pod."""
CLUSTER_WIDE: Final = frozenset({"Node", "CustomResourceDefinition", "StorageClass", "Namespace", "ClusterQueue",
                                 "PersistentVolume", "CSIDriver",
                                 "NodePool", "NodeClaim", "ClusterTrainingRuntime", "SelfSubjectAccessReview",
                                 "SelfSubjectRulesReview"})  # fmt: skip
