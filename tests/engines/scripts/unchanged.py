"""A script without Windlass, which writes its results to its working directory."""

from pathlib import Path

Path("out", "deep").mkdir(parents=True, exist_ok=True)
Path("out", "deep", "model.bin").write_bytes(b"m" * 1000)
Path("notes.txt").write_text("seen")
Path("__pycache__").mkdir(exist_ok=True)
Path("__pycache__", "x.pyc").write_bytes(b"x")
