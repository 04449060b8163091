"""Installs, checks, upgrades and removes the operators, drivers and storage of a cluster, at pinned versions."""
