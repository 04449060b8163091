"""Reads logs of pods: follows them into the files of an attempt, or completes the events that pods send."""
