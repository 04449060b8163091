"""`python -m windlass.storage.upload HOME NAME FOLDER DESTINATION`: uploads the outputs of a run."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass.storage import child
from windlass.storage.address import Address
from windlass.storage.copy import Copy
from windlass.storage.folder import Folder
from windlass.storage.helpers import number_here
from windlass.storage.opening import journal_for, open_place
from windlass.storage.place import Throttled


def uploaded(
    home: str, name: str, folder: str, destination: str, *, num_helpers: Callable[[int], int] | None = None
) -> dict[str, Any]:
    """Copies the files of a folder that the destination lacks, and verifies them. Returns a result line; reports
    progress.

    A missing folder counts as empty: the run wrote no outputs. `failed` counts files that the store did not accept.
    Raises StorageError, UsageError, MissingExtra; Throttled if a later upload may succeed.
    """
    of, to = (Address.parse(text, Path("/")) for text in (folder, destination))
    places = Folder(of, may_be_missing=True), open_place(to, Path(home))
    # The copy waits, because the upload of a supervisor that was just killed may still hold the lock.
    with child.reported(name) as progress, journal_for(of, to, Path(home), waits=True) as journal:
        done = asyncio.run(Copy(*places, journal, progress, num_helpers=num_helpers).run())
    failed = [one for one in done.refused if one.is_failure]
    if failed and all(one.passes for one in failed):
        raise Throttled(f"{len(failed)} files were not taken by {to}, the first: {failed[0].name}: {failed[0].why}")
    return {
        "name": name,
        "digest": done.digest,
        "files": done.num_files,
        "bytes": done.set_bytes,
        "moved": done.num_bytes,
        "refused": [f"{one.name}: {one.why}" for one in sorted(done.refused, key=lambda one: not one.is_failure)],
        "failed": len(failed),
    }


if __name__ == "__main__":
    sys.exit(child.run(lambda: child.say(uploaded(*sys.argv[1:], num_helpers=number_here))))
