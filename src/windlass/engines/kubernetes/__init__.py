"""Any conformant Kubernetes cluster, with nothing installed in it."""
