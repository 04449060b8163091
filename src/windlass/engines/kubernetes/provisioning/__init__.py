"""Node provisioning as Karpenter and Cluster Autoscaler report it."""
