"""The Terraform configuration of a cluster, with its variables, outputs and state as Python values."""
