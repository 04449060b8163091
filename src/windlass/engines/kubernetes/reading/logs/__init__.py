"""Reads logs of pods: appends new lines to the log files of an attempt, or reads events that a pod could not send."""
