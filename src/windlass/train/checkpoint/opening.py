"""Opens folders of checkpoints: on a disk, or in a store.

Standard library only, Python 3.9: the writer process uses it.
"""

from __future__ import annotations

import os

from windlass.train.checkpoint.storage import Folder, is_address


def open_folder(path: str | os.PathLike[str]) -> Folder:
    """The folder of this path, or of an address such as `s3://bucket/checkpoints`. Raises ValueError for any other."""
    text = os.fspath(path)
    if not is_address(text):
        return Folder(text)
    from windlass.train.checkpoint.object_folder import ObjectFolder  # disks need no client of a store

    return ObjectFolder(text)
