"""Prints the files below a folder with their sizes as JSON: `file_list.py FOLDER`. Opens no files.

Runs with `python -c` in pods of any image, so it imports only the standard library of Python 3.9.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

MAX_LISTED = 10_000
"""Maximum number of files that are listed; all files are counted."""
EMPTY: dict[str, Any] = {"files": 0, "bytes": 0, "named": []}


def list_files(folder: str) -> dict[str, Any]:
    """Returns the number of files, their total bytes, and the first names in alphabetical order with their sizes.

    Links are not followed and not counted. Raises OSError if the folder cannot be read and FileNotFoundError if it does
    not exist; subfolders that cannot be read are skipped.
    """
    os.scandir(folder).close()
    num_files, num_bytes = 0, 0
    named: list[tuple[str, int]] = []
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(parent, name)
            try:
                size = os.lstat(path).st_size
            except FileNotFoundError:
                continue  # the file was removed during listing
            if not os.path.isfile(path) or os.path.islink(path):
                continue
            num_files, num_bytes = num_files + 1, num_bytes + size
            if len(named) < MAX_LISTED:
                named.append((os.path.relpath(path, folder), size))
    return {"files": num_files, "bytes": num_bytes, "named": named}


if __name__ == "__main__":
    try:
        print(json.dumps(list_files(sys.argv[1])))
    except FileNotFoundError:
        print(json.dumps(EMPTY))
    except OSError as error:
        sys.exit(str(error))
