"""`python -m windlass.storage.staging HOME (NAME SOURCE LINK)…`: stages the data sets of a run."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from windlass.storage import child
from windlass.storage.address import Address
from windlass.storage.cache import DataCache


def staged(cache: DataCache, sets: Iterable[tuple[str, str, str]]) -> Iterator[dict[str, Any]]:
    """Stages sets of (name, source, link) in order and yields a line for each. Reports its progress. The link is empty
    for a set that no run reads.

    Raises StorageError, UsageError, MissingExtra.
    """
    for name, source, link in sets:
        with child.reported(name) as progress:
            found, moved = asyncio.run(
                cache.stage(Address.parse(source, Path("/")), Path(link) if link else None, progress)
            )
        yield {"name": name, "digest": found.digest, "files": found.num_files, "bytes": found.num_bytes, "moved": moved}


def main(argv: list[str]) -> None:
    """Stages all sets in the cache of this machine. Raises StorageError, UsageError, MissingExtra, StoreError."""
    from windlass.runs.data import (
        unfinished_readers,
    )  # imported here because pods, which have no run records, use this module

    home = Path(argv[0])
    cache = DataCache(home / "data", lambda: unfinished_readers(home))
    for line in staged(cache, zip(argv[1::3], argv[2::3], argv[3::3], strict=True)):
        child.say(line)


if __name__ == "__main__":
    sys.exit(child.run(lambda: main(sys.argv[1:])))
