"""Finds the newest verified checkpoint by agreement of all ranks; each rank reads its share of the files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar, cast

from windlass.train.checkpoint import files
from windlass.train.checkpoint.consensus import World
from windlass.train.checkpoint.faults import (
    BadCheckpoint,
    Fault,
    Problem,
    UnknownFormat,
    UnreadableCheckpoint,
    described,
    worst,
)
from windlass.train.checkpoint.files import Found
from windlass.train.checkpoint.opening import open_folder
from windlass.train.checkpoint.retry import Retry
from windlass.train.checkpoint.storage import absolute

T = TypeVar("T")


def choose(folder: str, world: World, retry: Retry, run_id: str = "") -> tuple[Found | None, list[Found]]:
    """Returns the newest verified checkpoint, and the newer ones that are damaged or of an unknown format. A
    collective.

    If run `run_id` has saved checkpoints, all checkpoints of other runs count as older, so that another run's saves or
    unreadable files have no effect.

    Returns None without checkpoints, or if all are proved damaged. Raises UnreadableCheckpoint on all ranks if the
    folder or a checkpoint newer than any verified one cannot be read after retries: resuming from an older one would
    lose progress. Raises UnknownFormat if there are checkpoints of an unknown format and no verified one.
    """
    refused: list[Found] = []
    candidates = list_together(folder, world, retry)
    if any(one.complete and one.run_id == run_id for one in candidates):
        candidates.sort(key=lambda one: one.run_id not in (run_id, ""))
    for listed in candidates:
        if listed.is_set_aside:
            continue
        found, problems = _examine(listed, world, retry)
        fault = worst(problems)
        if fault is None:
            return found, refused
        if fault is Fault.UNREADABLE:
            raise unreadable(found.path, [problem for problem in problems if problem.fault is fault])
        if fault is not Fault.UNFINISHED:
            refused.append(replace(found, fault=fault, problem="; ".join(map(str, problems))))
    unknown = [one for one in refused if one.fault is Fault.UNKNOWN_FORMAT]
    if unknown:
        raise UnknownFormat(
            f"none of the {len(refused)} checkpoints in {folder} can be loaded, and nothing was changed: "
            f"{unknown[0].name}: {unknown[0].problem}; resume with the version of Windlass that wrote it, "
            "or train in another folder"
        )
    return None, refused


def choose_only(wanted: str, folder: str, world: World, retry: Retry) -> Found:
    """Returns the checkpoint with this name or path. Raises FileNotFoundError, BadCheckpoint or UnreadableCheckpoint on
    all ranks.
    """
    path = absolute(wanted if os.sep in wanted else os.path.join(folder, wanted))
    parent, name = os.path.split(path)
    candidates = list_together(parent, world, retry)
    listed = next((one for one in candidates if one.name == name), None)
    if listed is None:
        near = ", ".join(one.name for one in candidates[:5] if one.complete)
        raise FileNotFoundError(
            f"WINDLASS_RESUME_FROM={wanted}: there is no checkpoint {path}" + (f"; there are {near}" if near else "")
        )
    found, problems = _examine(listed, world, retry)
    if worst(problems) is Fault.UNREADABLE:
        raise unreadable(path, problems)
    if problems:
        raise BadCheckpoint(f"WINDLASS_RESUME_FROM={wanted} cannot be loaded: {'; '.join(map(str, problems))}")
    return found


def list_together(folder: str, world: World, retry: Retry) -> list[Found]:
    """Returns the checkpoints of a folder, newest first, as rank 0 lists them. A collective.

    Raises UnreadableCheckpoint on all ranks if the folder cannot be read.
    """
    found = together(lambda: files.list_checkpoints(folder) if world.lists else [], folder, world, retry)
    listed: list[Found] = world.broadcast(found)
    return listed


def together(action: Callable[[], T], path: str, world: World, retry: Retry) -> T:
    """Runs `action()` on this rank, and repeats failed reads. If `action` fails on one rank, all ranks raise. A
    collective.
    """
    result: T | None = None
    problem: Problem | None = None
    try:
        result = retry.call(action, path)
    except OSError as error:
        problem = Problem(Fault.UNREADABLE, described(error, path))
    problems = [one for one in world.gather(problem) if one is not None]
    if problems:
        raise unreadable(path, problems)
    return cast(T, result)


def unreadable(path: str, problems: Sequence[Problem]) -> UnreadableCheckpoint:
    """Returns the error that all ranks raise. `windlass why` recognizes its text."""
    texts = "; ".join(sorted({problem.text for problem in problems}))
    return UnreadableCheckpoint(
        f"{path} cannot be read, also after retries ({texts}). No checkpoint was changed or removed, and no step was "
        "trained. Make it readable on every node, then resume; `windlass resume --from NAME` (or "
        "WINDLASS_RESUME_FROM=NAME) resumes from another checkpoint"
    )


def _examine(listed: Found, world: World, retry: Retry) -> tuple[Found, list[Problem]]:
    """Returns a checkpoint and its problems, after reading its manifest again if the first read failed. A
    collective.
    """
    found = listed
    if listed.fault is Fault.UNREADABLE:
        found = world.broadcast(_find_again(listed, retry) if world.lists else None)
    if found.fault is not None:
        return found, [Problem(found.fault, found.problem)]
    return found, _verify(found, world, retry)


def _find_again(listed: Found, retry: Retry) -> Found:
    def find() -> Found:
        found = files.find(open_folder(os.path.dirname(listed.path)), listed.name)
        if found.fault is Fault.UNREADABLE:
            raise OSError(found.problem)
        return found

    try:
        return retry.call(find, listed.path)
    except OSError as error:
        return replace(listed, problem=str(error))


def _verify(found: Found, world: World, retry: Retry) -> list[Problem]:
    """Returns the problems of a checkpoint; each rank reads its share, or all files if ranks cannot communicate."""
    folder = open_folder(os.path.dirname(found.path))
    largest_first = sorted(found.files, key=lambda file: (-found.files[file]["bytes"], file))
    mine = largest_first[world.rank :: world.size] if world.can_communicate else largest_first
    problems = [problem for file in mine if (problem := files.verify_file(folder, found, file, retry))]
    return sorted({problem for of_rank in world.gather(problems) for problem in of_rank}, key=str)
