"""Logs of pods: followed into the files of an attempt, or fetched for a run without a local record."""
