"""Emulation of SageMaker training on this machine: processes in place of containers, without Docker and an account."""
