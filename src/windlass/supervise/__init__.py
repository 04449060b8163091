"""Supervises one run: starts attempts on a backend, ingests node events, applies the restart policy."""
