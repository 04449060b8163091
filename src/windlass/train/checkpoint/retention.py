"""Which checkpoints a run removes: its own beyond as many as it keeps, and none that may still be of use.

| what | removed |
|---|---|
| complete, of this run | beyond the newest `keep`, or older than `keep_for`; the newest stays in any case |
| damaged, of this run | set aside first; removed as above, once a newer checkpoint of this run has been verified |
| unfinished, of this run | once it cannot be finished any more |
| unreadable, of an unknown format, of another run or of an unknown one | never |

Standard library only, Python 3.9: the command line and the writer process use it.
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
"""After so long without a change, an unfinished checkpoint of an earlier attempt will not be finished any more."""


@dataclass
class Pruned:
    """What was removed and set aside, by the names that they had."""

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
    """Set aside what was found damaged, then remove what the run `run_id` keeps no longer. Raises OSError.

    `faults` has what the caller found by reading, by name. What is damaged is set aside, unless it is of another run;
    what has another fault neither counts as kept nor is removed. `verify` reads one checkpoint and returns its
    problems; it is called only before a damaged one is removed.
    """
    folder = open_folder(os.fspath(path))
    done = Pruned()
    for one in files.list_checkpoints(folder) if faults else ():
        if faults.get(one.name) is Fault.DAMAGED and one.run_id in (run_id, ""):
            try:
                folder.set_aside(one.name)
                done.set_aside.append(one.name)
            except OSError:
                pass  # by another process, or the disk is read only: it does not count as kept
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
            pass  # removed by another process
    return done


def _opens(folder: Folder, found: Found) -> bool:
    """Whether every file of it can be opened. One that cannot is unreadable, whatever its manifest says."""
    try:
        for file in found.files:
            folder.open(found.name, file).close()
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return True


def _is_superseded(damaged: Found, found: list[Found], verify: Callable[[Found], object]) -> bool:
    """Whether the newest complete one of the same run, `found` being newest first, is newer and verified."""
    for one in found:
        if one.name == damaged.name:
            return False
        if one.complete and one.run_id == damaged.run_id:
            return not verify(one)
    return False


def to_prune(found: list[Found], run_id: str, keep: int | None, keep_for: float | None, now: float) -> list[Found]:
    """Which of these, newest first, the run `run_id` removes; damaged ones only if a newer one is verified."""
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
    """Whether an unfinished checkpoint can no longer be finished: a later save of its own attempt already was."""
    mine, last = files.parse_name(one.name), files.parse_name(newest.name)
    if mine is None or last is None:
        return False
    if mine[1:3] == last[1:3]:
        return (mine[0], mine[3]) < (last[0], last[3])
    return now - one.created_at > INCOMPLETE_SECONDS
