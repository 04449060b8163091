"""Unpacks a model at /opt/ml/model and becomes the program that serves it. Standard library only, Python 3.9.

Runs in the container as `python -I serve_start.py COMMAND...`. Beside it are `model.tar.gz` and, for Windlass's own
model server, `serving.zip`.
"""

from __future__ import annotations

import os
import sys
import tarfile
from pathlib import Path


def main(command: list[str]) -> None:
    """Executes the command. Raises OSError, tarfile.TarError."""
    here = Path(__file__).resolve().parent
    base = os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml")
    with tarfile.open(here / "model.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(Path(base, "model"))
    os.environ["PYTHONPATH"] = str(here / "serving.zip")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
