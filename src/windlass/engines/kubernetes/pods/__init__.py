"""Pods of an attempt: their status, reuse, probe pods, exec and copy."""
