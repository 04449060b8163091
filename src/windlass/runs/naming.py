"""Resolves a run argument: a run id, a unique prefix of one, or a job name (its newest run)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from windlass.errors import NoSuchRun

SHOWN: Final = 5
"""Maximum number of candidates in a message."""


def job_name(run_id: str) -> str:
    """Returns the job name in a run id: `digits` of `digits-7f3k2`."""
    return run_id.rpartition("-")[0]


def choose(asked: str, ids: Sequence[str], where: str = "") -> str | None:
    """Returns the id that `asked` refers to among `ids`, which are newest first; None if none matches.

    `where` names the target in messages. Raises NoSuchRun if the prefix is ambiguous and no job has this name.
    """
    if asked in ids:
        return asked
    found = [one for one in ids if one.startswith(asked)]
    if len(found) <= 1:
        return next(iter(found), None)
    named = next((one for one in found if job_name(one) == asked), None)
    if named is None:
        raise ambiguous(asked, found, where)
    return named


def ambiguous(asked: str, ids: Sequence[str], where: str = "") -> NoSuchRun:
    """Returns the error for a prefix of several run ids."""
    on = f" on {where}" if where else ""
    names = ", ".join(ids[:SHOWN]) + (" and more" if len(ids) > SHOWN else "")
    return NoSuchRun(f"several runs{on} begin with '{asked}': {names}", "write more letters of the id")


def newest_of(asked: str, run_id: str) -> str:
    """Returns a line that names the newest run of a job; empty if an id or a prefix was given."""
    return f"{asked}: its newest run is {run_id}" if job_name(run_id) == asked else ""
