"""Decides which checkpoints a run removes: its own surplus ones, and none that may still be useful.

| checkpoint | removed |
|---|---|
| complete, of this run | beyond the newest `keep`, or older than `keep_for`; the newest is always kept |
| damaged, of this run | set aside first; removed as above, once a newer checkpoint of this run has been verified |
| unfinished, of this run | once it can no longer be finished |
| hidden, because its removal was interrupted | at once, of any run |
| unreadable, of an unknown format, of another or an unknown run | never |

Standard library only, Python 3.9, because the writer process uses this module.
"""

from __future__ import annotations

import os
import time
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from windlass.train.checkpoint import files
from windlass.train.checkpoint.faults import Fault
from windlass.train.checkpoint.files import Found
from windlass.train.checkpoint.opening import open_folder
from windlass.train.checkpoint.storage import Folder

INCOMPLETE_SECONDS = 600.0
"""Seconds without a change after which an unfinished checkpoint of an earlier attempt counts as abandoned."""


@dataclass
class Pruned:
    """Names of the checkpoints that were removed or set aside."""

    removed: list[str] = field(default_factory=list)
    set_aside: list[str] = field(default_factory=list)


def prune(
    path: str | os.PathLike[str],
    run_id: str,
    keep: int | None,
    keep_for: float | None = None,
    *,
    faults: Mapping[str, Fault] = types.MappingProxyType({}),
    verify: Callable[[Found], object] = files.examine,
) -> Pruned:
    """Sets damaged checkpoints aside, then removes the surplus checkpoints of run `run_id`. Raises OSError.

    `faults` maps names to faults that the caller has found by reading. Damaged checkpoints of this run are set aside;
    those with another fault do not count as kept and are not removed. `verify` reads one checkpoint and returns its
    problems; it is called only before a damaged checkpoint is removed.
    """
    folder = open_folder(os.fspath(path))
    folder.finish_removals()
    done = Pruned()
    for one in files.list_checkpoints(folder) if faults else ():
        if faults.get(one.name) is Fault.DAMAGED and one.run_id in (run_id, ""):
            try:
                folder.set_aside(one.name)
                done.set_aside.append(one.name)
            except OSError:
                pass  # another process changed the checkpoint, or the disk is read-only
    found = [one for one in files.list_checkpoints(folder) if one.name not in faults]
    for one in to_prune(found, run_id, keep, keep_for, time.time()):
        if one.fault is Fault.DAMAGED and not _is_superseded(one, found, verify):
            continue
        if not _opens(folder, one):
            continue
        try:
            folder.remove(one.name, files.MANIFEST)
            done.removed.append(one.name)
        except FileNotFoundError:
            pass
    return done


def _opens(folder: Folder, found: Found) -> bool:
    """Whether every file of the checkpoint can be opened; otherwise it is unreadable, even with a valid manifest."""
    try:
        for file in found.files:
            folder.open(found.name, file).close()
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return True


def _is_superseded(damaged: Found, found: list[Found], verify: Callable[[Found], object]) -> bool:
    """Whether a complete checkpoint of the same run is newer and verified; `found` is sorted newest first."""
    for one in found:
        if one.name == damaged.name:
            return False
        if one.complete and one.run_id == damaged.run_id:
            return not verify(one)
    return False


def to_prune(found: list[Found], run_id: str, keep: int | None, keep_for: float | None, now: float) -> list[Found]:
    """Returns the checkpoints that run `run_id` removes; damaged ones only if a newer one is verified. Input newest
    first.
    """
    mine = [one for one in found if one.run_id == run_id and run_id]
    newest = next((one for one in mine if one.complete), None)
    if newest is None:
        return []
    gone = []
    num_newer = 0
    for one in mine:
        if one.complete or one.fault is Fault.DAMAGED:
            too_old = keep_for is not None and now - one.created_at > keep_for
            too_many = keep is not None and num_newer >= max(1, keep)
            if num_newer and (too_many or too_old):
                gone.append(one)
            num_newer += one.complete
        elif one.fault is Fault.UNFINISHED and _is_given_up(one, newest, now):
            gone.append(one)
    return gone


def _is_given_up(one: Found, newest: Found, now: float) -> bool:
    """Whether an unfinished checkpoint can no longer be finished, because a later save of its attempt was."""
    mine, last = files.parse_name(one.name), files.parse_name(newest.name)
    if mine is None or last is None:
        return False
    if mine[1:3] == last[1:3]:
        return (mine[0], mine[3]) < (last[0], last[3])
    return now - one.created_at > INCOMPLETE_SECONDS
