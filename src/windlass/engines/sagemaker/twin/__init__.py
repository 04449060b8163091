"""Emulation of SageMaker training on this machine: processes instead of containers, and no AWS account."""
