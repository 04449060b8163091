"""Keeps runs whose nodes tell of themselves in files: attempt after attempt, whoever plays the nodes."""
