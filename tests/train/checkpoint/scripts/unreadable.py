"""Two ranks save, then restore while reads fail; a line of JSON for each rank of each phase, as `worlds.py` prints.

`unreadable.py FOLDER`, with the library of `tests/faults/read_errors.c` preloaded.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import worlds  # type: ignore[import-not-found]

from windlass.train.checkpoint import Checkpoint, files

CONTROL = Path(os.environ["READ_ERRORS"])
PLACE = worlds.FOLDER / "ck"


def save() -> dict[str, Any]:
    model, optimizer = worlds.make("ddp")
    saved = Checkpoint(model=model, optimizer=optimizer, folder=PLACE, every=1, when_busy="wait")
    for step in range(2):
        worlds.train(model, optimizer, step)
        saved.step()
    saved.close()
    return {"digest": worlds.digest(model, optimizer)}


def restore() -> dict[str, Any]:
    model, optimizer = worlds.make("ddp")
    try:
        saved = Checkpoint(model=model, optimizer=optimizer, folder=PLACE)
    except OSError as error:
        return {"raised": type(error).__name__, "said": str(error)}
    try:
        return {"steps": saved.restore(), "digest": worlds.digest(model, optimizer)}
    except (OSError, ValueError) as error:
        return {"raised": type(error).__name__, "said": str(error)}
    finally:
        saved.close()


def phase(name: str, seconds: float, number: int, place: Path, *, once: bool = False) -> None:
    """Restore while reads of `place` fail; the ranks repeat them for so many seconds."""
    os.environ["WINDLASS_CHECKPOINT_RETRY_SECONDS"] = str(seconds)
    CONTROL.write_text(f"{number} {place}{' once' if once else ''}\n")
    worlds.phase(name, 2, restore)
    CONTROL.unlink(missing_ok=True)


def main() -> None:
    worlds.phase("save", 2, save)
    newest = Path(files.list_checkpoints(PLACE)[0].path)
    phase("once", 30, errno.ESTALE, newest / "rank-1.json", once=True)
    phase("file of rank 1", 0.2, errno.ESTALE, newest / "rank-1.safetensors")
    phase("folder", 0.2, errno.EIO, PLACE)
    phase("older", 0, errno.EIO, Path(files.list_checkpoints(PLACE)[1].path))


if __name__ == "__main__":
    main()
