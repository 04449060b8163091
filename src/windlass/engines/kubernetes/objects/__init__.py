"""Kubernetes objects as values: manifests that are sent, and pods and owner objects that are read. Pure."""
