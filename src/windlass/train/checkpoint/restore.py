"""Finds the newest verified checkpoint, all ranks agreeing on it, and loads it into the parts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

from windlass.train.checkpoint import files
from windlass.train.checkpoint.agreement import World
from windlass.train.checkpoint.encoding import Decoder, TensorName
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
from windlass.train.checkpoint.parts import ModulePart, OnlyEpochs, Part
from windlass.train.checkpoint.reader import FolderReader
from windlass.train.checkpoint.retry import Retry
from windlass.train.checkpoint.storage import Folder

T = TypeVar("T")


@dataclass(frozen=True)
class Refused:
    """A checkpoint that was passed over."""

    found: Found
    fault: Fault
    """`DAMAGED` or `UNKNOWN_FORMAT`; what is unreadable is not passed over."""
    reason: str


def choose(folder: str, world: World, retry: Retry, run_id: str = "") -> tuple[Found | None, list[Refused]]:
    """The newest verified checkpoint, and the newer ones that are damaged or of an unknown format. A collective.

    Where the run `run_id` has saved any, those of other runs in the folder count as older: what another run saved
    later, or what of it cannot be read, is nothing to this run.

    None where there is no checkpoint, or where all are proved damaged. Raises on all ranks UnreadableCheckpoint where
    the folder or a checkpoint newer than any verified one cannot be read, also after retries: to go on from an older
    one, or from none, would lose what it holds. Raises UnknownFormat where there are checkpoints of an unknown format
    and none that is verified.
    """
    refused: list[Refused] = []
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
            refused.append(Refused(found, fault, "; ".join(map(str, problems))))
    unknown = [one for one in refused if one.fault is Fault.UNKNOWN_FORMAT]
    if unknown:
        raise UnknownFormat(
            f"none of the {len(refused)} checkpoints in {folder} can be loaded, and nothing was changed: "
            f"{unknown[0].found.name}: {unknown[0].reason}; resume with the version of Windlass that wrote it, "
            "or train in another folder"
        )
    return None, refused


def choose_only(wanted: str, folder: str, world: World, retry: Retry) -> Found:
    """The one checkpoint of this name or path. Raises FileNotFoundError, BadCheckpoint or UnreadableCheckpoint on all
    ranks."""
    path = os.path.abspath(wanted if os.sep in wanted else os.path.join(folder, wanted))
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
    """The checkpoints in a folder, newest first, as rank 0 lists them. A collective.

    Raises UnreadableCheckpoint on all ranks where the folder cannot be read.
    """
    found: list[Found] = []
    problem: Problem | None = None
    if world.rank == 0 or not world.talks:
        try:
            found = retry.call(lambda: files.list_checkpoints(folder), folder)
        except OSError as error:
            problem = Problem(Fault.UNREADABLE, described(error, folder))
    found, problem = world.broadcast((found, problem))
    if problem is not None:
        raise unreadable(folder, [problem])
    return found


def together(action: Callable[[], T], path: str, world: World, retry: Retry) -> T:
    """What `action()` gives on this rank, reads repeated. Where it fails on one rank, all raise. A collective."""
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
    """The error that all ranks raise. `windlass why` knows it by its words."""
    told = "; ".join(sorted({problem.text for problem in problems}))
    return UnreadableCheckpoint(
        f"{path} cannot be read, also after retries ({told}). No checkpoint was changed or removed, and no step was "
        "trained. Make it readable on every node, then resume; `windlass resume --from NAME` (or "
        "WINDLASS_RESUME_FROM=NAME) goes on from another checkpoint"
    )


def _examine(listed: Found, world: World, retry: Retry) -> tuple[Found, list[Problem]]:
    """A listed checkpoint, its manifest read again where that failed, and what is wrong with it. A collective."""
    found = listed
    if listed.fault is Fault.UNREADABLE and not listed.complete:
        found = world.broadcast(_find_again(listed, retry) if world.rank == 0 or not world.talks else None)
    if not found.complete:
        return found, [Problem(found.fault, found.problem)]
    return found, verify(found, world, retry)


def _find_again(listed: Found, retry: Retry) -> Found:
    folder, name = os.path.split(listed.path)

    def find() -> Found:
        found = files.find(Folder(folder), folder, name)
        if found.fault is Fault.UNREADABLE and not found.complete:
            raise OSError(found.problem)
        return found

    try:
        return retry.call(find, listed.path)
    except OSError as error:
        return replace(listed, problem=str(error))


def verify(found: Found, world: World, retry: Retry) -> list[Problem]:
    """What is wrong with it; each rank reads its share of the files, all of them where ranks cannot talk."""
    storage = Folder(os.path.dirname(found.path))
    shares = _shares(found.files, world.size if world.talks else 1)
    mine = shares[world.rank if world.talks else 0]
    problems = [problem for file in mine if (problem := files.verify_file(storage, found, file, retry))]
    return sorted({problem for theirs in world.gather(problems) for problem in theirs}, key=str)


def _shares(listed: Mapping[str, Mapping[str, Any]], num_shares: int) -> list[list[str]]:
    shares: list[list[str]] = [[] for _ in range(num_shares)]
    load = [0] * num_shares
    for file in sorted(listed, key=lambda file: (-listed[file]["bytes"], file)):
        least = min(range(num_shares), key=lambda share: (load[share], share))
        shares[least].append(file)
        load[least] += listed[file]["bytes"]
    return shares


class Loader:
    """Loads one verified checkpoint."""

    def __init__(self, found: Found, parts: Sequence[Part], world: World, retry: Retry, *, allow_pickle: bool) -> None:
        """A collective. Raises BadCheckpoint, or UnreadableCheckpoint on all ranks."""
        self._retry = retry
        self._reader = together(lambda: FolderReader(found.path), found.path, world, retry)
        self._parts = parts
        self._world = world
        decoder = Decoder(allow_pickle=allow_pickle)
        self.common: dict[str, Any] = decoder.decode(self._reader.ranks[0]["common"], "checkpoint")
        """What rank 0 kept for all: the progress, and the state of common parts."""
        self.same_world = found.world_size == world.size
        own = self._reader.ranks[world.rank]["own"] if world.rank < found.world_size else None
        self.own: dict[str, Any] | None = decoder.decode(own, "checkpoint") if own is not None else None
        """What this rank kept for itself; None where it is one more than there were."""
        self._found = found

    def load(self) -> None:
        """Everything, or an error before anything has changed. Raises ValueError where names or shapes differ.

        Raises UnreadableCheckpoint on all ranks where one rank fails in the middle of reading: the model's tensors are
        then partly loaded.
        """
        targets: dict[str, torch.Tensor] = {}
        for part in self._parts:
            if isinstance(part, ModulePart):
                targets.update({f"{part.name}.{path}": tensor for path, tensor in part.existing().items()})
        self._check_parts()
        self._check_modules(targets)
        trees = {part.name: self._tree(part) for part in self._parts}
        for part in self._parts:
            part.check(trees[part.name])
            if not isinstance(part, ModulePart):
                for path, ref in _refs(trees[part.name], ()):
                    targets[ref.name] = self._make(part, path, ref)
        self._read(targets)
        for part in self._parts:
            if isinstance(part, ModulePart):
                mine = {path: targets[f"{part.name}.{path}"] for path in part.existing()}
                part.load({**mine, **(trees[part.name] or {})})
            elif not isinstance(part, OnlyEpochs):
                part.load(_filled(trees[part.name], targets))

    def _tree(self, part: Part) -> Any:
        kept = (self.own or {}) if part.per_rank else self.common
        return kept["parts"].get(part.name) if "parts" in kept else None

    def _check_parts(self) -> None:
        saved: Mapping[str, bool] = self.common["kinds"]
        now = {part.name: part.per_rank for part in self._parts}
        problems = []
        if set(now) - set(saved):
            problems.append(f"it has no {_list(set(now) - set(saved))}")
        if set(saved) - set(now):
            problems.append(f"it also has {_list(set(saved) - set(now))}, which Checkpoint(...) was not given")
        if problems:
            raise ValueError(f"the checkpoint {self._found.name} is of another script: {'; '.join(problems)}")
        per_rank = [name for name, of_rank in now.items() if of_rank]
        if per_rank and not self.same_world:
            raise ValueError(
                f"the checkpoint {self._found.name} was made by {self._found.world_size} ranks, and {_list(per_rank)} "
                f"has a state for each rank, which cannot be dealt to {self._world.size}; a sampler whose position is "
                "common to all ranks can: windlass.train.sampler.BatchSampler"
            )

    def _check_modules(self, targets: Mapping[str, torch.Tensor]) -> None:
        prefixes = tuple(f"{part.name}." for part in self._parts if isinstance(part, ModulePart))
        there = {name for name in self._reader.places if name.startswith(prefixes)} if prefixes else set()
        held = set().union(*self._world.gather(set(targets)))
        lines = []
        if held - there:
            lines.append(f"the checkpoint lacks {_list(held - there)}")
        if there - held and self._world.talks:
            lines.append(f"the model lacks {_list(there - held)}")
        for name in sorted(set(targets) & there):
            saved = self._reader.shape(name), self._reader.dtype(name)
            now = tuple(targets[name].shape), targets[name].dtype
            if saved != now:
                lines.append(f"{name} was {_described(*saved)} and is now {_described(*now)}")
        if lines:
            raise ValueError(f"the checkpoint {self._found.name} does not fit: {'; '.join(lines[:20])}")

    def _make(self, part: Part, path: tuple[str, ...], ref: TensorName) -> torch.Tensor:
        shape, dtype = self._reader.shape(ref.name), self._reader.dtype(ref.name)
        like = part.template(path, shape)
        if like is not None:
            made = torch.empty_like(like, dtype=dtype, requires_grad=False)
            return made.data if isinstance(made, torch.nn.Parameter) else made
        return torch.empty(shape, dtype=dtype)

    def _read(self, targets: dict[str, torch.Tensor]) -> None:
        """DCP's planner finds which chunks make up what this rank holds."""
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        plain: dict[str, Any] = {name: tensor.detach() for name, tensor in targets.items()}
        planner.set_up_planner(plain, self._reader.read_metadata(), self._world.rank == 0)
        plan = planner.finish_plan(planner.create_local_plan())
        with torch.no_grad():  # a plan that failed half-way is read again from its beginning
            together(lambda: self._reader.read_data(plan, planner).wait(), self._found.path, self._world, self._retry)


def _refs(tree: Any, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], TensorName]]:
    """Path and name of every tensor in a tree."""
    if isinstance(tree, TensorName):
        return [(path, tree)]
    if isinstance(tree, Mapping):
        return [found for key, value in tree.items() for found in _refs(value, (*path, str(key)))]
    if isinstance(tree, (list, tuple, set, frozenset)):
        return [found for number, value in enumerate(tree) for found in _refs(value, (*path, str(number)))]
    return []


def _filled(tree: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The tree with its tensors."""
    if isinstance(tree, TensorName):
        return tensors[tree.name]
    if isinstance(tree, dict):
        for key, value in tree.items():
            tree[key] = _filled(value, tensors)
        return tree
    if isinstance(tree, list):
        return [_filled(value, tensors) for value in tree]
    if isinstance(tree, (tuple, set, frozenset)):
        return type(tree)(_filled(value, tensors) for value in tree)
    return tree


def _described(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"


def _list(names: Any) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:10]) + (f" and {len(ordered) - 10} more" if len(ordered) > 10 else "")
