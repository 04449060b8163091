"""Finds the interpreter of scripts that run on this machine."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path


def find_python(asked: str | None, base: Path, environ: Mapping[str, str]) -> Path:
    """Returns the script's interpreter: the job's, or else the active environment's, or else the one that runs
    Windlass.
    """
    if asked and "/" in asked:
        return (base / os.path.expanduser(asked)).absolute()
    if asked:
        return Path(shutil.which(asked, path=environ.get("PATH")) or asked).absolute()
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if prefix := environ.get(variable):
            return Path(prefix) / "bin" / "python"
    return Path(sys.executable)
