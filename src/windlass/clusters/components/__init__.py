"""Installs, checks, upgrades and removes the operators, drivers and storage of a training cluster, at pinned versions."""
