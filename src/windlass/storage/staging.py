"""`python -m windlass.storage.staging HOME (NAME SOURCE LINK)…`: a process that stages the data sets of a run."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from windlass.storage import child
from windlass.storage.address import Address
from windlass.storage.cache import DataCache


def main(argv: list[str]) -> None:
    """Stage all sets, one after the other. Raises StorageError, UsageError, MissingPart."""
    cache = DataCache(Path(argv[0]))
    for name, source, link in zip(argv[1::3], argv[2::3], argv[3::3], strict=True):
        with child.reported(name) as progress:
            staged, moved = asyncio.run(cache.stage(Address.parse(source, Path("/")), Path(link), progress))
        child.say({"name": name, "digest": staged.digest, "files": staged.num_files, "bytes": staged.num_bytes,
                   "moved": moved})  # fmt: skip


if __name__ == "__main__":
    sys.exit(child.run(lambda: main(sys.argv[1:])))
