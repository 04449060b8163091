"""Kubernetes objects as plain values: builds manifests, and reads pods and owner objects. Pure."""
