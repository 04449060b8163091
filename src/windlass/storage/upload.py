"""`python -m windlass.storage.upload HOME NAME FOLDER DESTINATION`: a process that uploads the outputs of a run."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from windlass.storage import child
from windlass.storage.address import Address
from windlass.storage.copy import Copy
from windlass.storage.opening import journal_for, open_place


def main(home: str, name: str, folder: str, destination: str) -> None:
    """Copy what the destination lacks of a folder, and verify it. Raises StorageError, UsageError, MissingPart."""
    of, to = (Address.parse(text, Path("/")) for text in (folder, destination))
    places = open_place(of, Path(home)), open_place(to, Path(home))
    # That of a supervisor which was killed just now may still have it.
    with child.reported(name) as progress, journal_for(of, to, Path(home), waits=True) as journal:
        done = asyncio.run(Copy(*places, journal, progress).run())
    child.say({
        "name": name, "digest": done.manifest.digest, "files": len(done.manifest.files),
        "bytes": done.manifest.num_bytes, "moved": done.num_bytes,
        "refused": [f"{one.name}: {one.why}" for one in done.refused],
    })  # fmt: skip


if __name__ == "__main__":
    sys.exit(child.run(lambda: main(*sys.argv[1:])))
