"""Builds manifests of Kubernetes objects, and interprets pods and owner objects, as plain values. Pure."""
