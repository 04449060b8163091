"""Checks of an account before a run, and the permissions that runs need."""
