"""Opens folders of checkpoints: on a disk, or in a store.

Standard library only, Python 3.9, because the writer process uses this module.
"""

from __future__ import annotations

import os

from windlass.train.checkpoint.storage import Folder, is_address


def open_folder(path: str | os.PathLike[str]) -> Folder:
    """Opens a folder by path or by address, such as `s3://bucket/checkpoints`. Raises ValueError for any other
    address.
    """
    text = os.fspath(path)
    if not is_address(text):
        return Folder(text)
    from windlass.train.checkpoint.object_folder import ObjectFolder

    return ObjectFolder(text)
