"""An object is read as a file, also by code that looks for its end."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from windlass.stores.folder import FolderStore


def test_an_object_that_is_too_short_to_be_an_archive_is_none(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"PK")
    with FolderStore(str(tmp_path)).open("x") as file:
        assert not zipfile.is_zipfile(file)
        with pytest.raises(OSError, match="Invalid argument"):
            file.seek(-3, io.SEEK_END)
        assert file.seek(-2, io.SEEK_END) == 0
        assert file.read() == b"PK"
