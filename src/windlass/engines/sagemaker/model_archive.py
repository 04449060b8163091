"""Packs the folder of a model as `model.tar.gz`, the archive that SageMaker unpacks at /opt/ml/model."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path

from windlass.engines.model_files import files_in, opened


def write_archive(folder: Path, archive: Path) -> None:
    """Writes a folder to a gzipped tar without owners and times. Raises UsageError as `model_digest`, OSError."""
    with (
        archive.open("wb") as file,
        gzip.GzipFile("", "wb", compresslevel=1, fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name, path in files_in(folder):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = path.stat().st_size, 0o644
            with opened(path) as content:
                tar.addfile(entry, content)
