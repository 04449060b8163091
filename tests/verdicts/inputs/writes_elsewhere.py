"""Writes its results to a folder of a file system that takes no new ones."""

from pathlib import Path

results = Path("/sys/results")
results.mkdir()
(results / "model.txt").write_text("weights")
