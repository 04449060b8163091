"""Operators, drivers and storage of a training cluster: pinned, installed, checked, upgraded, removed."""
