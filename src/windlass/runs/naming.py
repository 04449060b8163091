"""Finds the run that an argument names: by id, by a unique prefix of it, or by job name (its newest run)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from windlass.errors import NoSuchRun

SHOWN: Final = 5
"""So many of several candidates are named."""


def job_name(run_id: str) -> str:
    """The name of the job of a run, by its id: `digits` of `digits-7f3k2`."""
    return run_id.rpartition("-")[0]


def choose(asked: str, ids: Sequence[str], where: str = "") -> str | None:
    """The id that is meant among `ids`, which are newest first; None where none begins so.

    `where` names the target in messages. Raises NoSuchRun where several begin so, and none is of a job of this name.
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
    """The error where the ids of several runs begin so."""
    on = f" on {where}" if where else ""
    names = ", ".join(ids[:SHOWN]) + (" and more" if len(ids) > SHOWN else "")
    return NoSuchRun(f"several runs{on} begin with '{asked}': {names}", "write more letters of the id")


def newest_of(asked: str, run_id: str) -> str:
    """In one line, the run that the name of a job stands for; empty where an id was given, or its beginning."""
    return f"{asked}: its newest run is {run_id}" if job_name(run_id) == asked else ""
