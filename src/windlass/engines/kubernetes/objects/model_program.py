"""Program of the init container of a deployment: unpacks and links the files of the model in one folder.

It runs from its source text by any Python 3.7 or newer, so that an image with an old one gets a clear error.
"""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path


def main(model: str, source: str, pieces: str) -> None:
    """Fills the folder `model` with the archive in the files of the folder `pieces`, and with links to what `source`, a
    file or a folder, has besides; both may be empty.
    """
    if sys.version_info < (3, 10):  # noqa: UP036
        found = ".".join(map(str, sys.version_info[:2]))
        sys.exit(f"the server needs Python 3.10, and the image has {found}: name another --image")
    if pieces:
        files = sorted(path for path in Path(pieces).iterdir() if not path.name.startswith("."))
        with tarfile.open(fileobj=io.BytesIO(b"".join(path.read_bytes() for path in files))) as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.10.11 and older have none
            archive.extractall(model)
    if source:
        if not Path(source).exists():
            sys.exit(f"the model is not there: {source} does not exist in the volume")
        for path in Path(source).iterdir() if Path(source).is_dir() else [Path(source)]:
            link = Path(model, path.name)
            if not (link.exists() or link.is_symlink()):
                link.symlink_to(path)
    if not any(Path(model).iterdir()):
        sys.exit("the folder of the model is empty")


if __name__ == "__main__":
    main(*sys.argv[1:4])
