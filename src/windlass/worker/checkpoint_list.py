"""Prints the checkpoints of a folder as JSON: `checkpoint_list.py FOLDER`. Opens manifests and no other files.

Runs with `python -c` in pods of any image, so it imports only the standard library of Python 3.9.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

MANIFEST = "manifest.json"
PREFIX = "step-"
"""Prefix of the folder names of checkpoints."""
MANIFEST_BYTES = 16 << 20
"""Maximum bytes read from a manifest; longer manifests become invalid."""


def list_checkpoints(folder: str) -> dict[str, Any]:
    """Returns the checkpoints in a folder by name, with time, file sizes and manifest, and the number of other entries.

    Links are not followed. A missing folder counts as empty. Raises OSError if the folder cannot be read.
    """
    found: dict[str, Any] = {}
    others = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False):
                    found[entry.name] = _checkpoint(entry.path)
                else:
                    others += 1
    except FileNotFoundError:
        pass
    return {"checkpoints": found, "others": others}


def _checkpoint(path: str) -> dict[str, Any]:
    seen: dict[str, Any] = {"changed_at": 0.0, "files": {}, "manifest": None}
    try:
        seen["changed_at"] = os.lstat(path).st_mtime
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False) and not entry.name.startswith("."):
                    seen["files"][entry.name] = entry.stat(follow_symlinks=False).st_size
        if MANIFEST in seen["files"]:
            with open(os.path.join(path, MANIFEST), encoding="utf-8", errors="replace", newline="") as file:
                seen["manifest"] = file.read(MANIFEST_BYTES)
    except FileNotFoundError:
        pass  # the checkpoint was removed during listing
    except OSError as error:
        seen["error"] = str(error)
    return seen


if __name__ == "__main__":
    try:
        print(json.dumps(list_checkpoints(sys.argv[1])))
    except OSError as error:
        sys.exit(str(error))
