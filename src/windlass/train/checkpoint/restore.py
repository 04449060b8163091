"""Finds the newest checkpoint that verifies, all ranks agreeing on it, and loads it into the parts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

from windlass.train.checkpoint import files
from windlass.train.checkpoint.agreement import World
from windlass.train.checkpoint.encoding import Decoder, TensorName
from windlass.train.checkpoint.files import Found
from windlass.train.checkpoint.parts import ModulePart, OnlyEpochs, Part
from windlass.train.checkpoint.reader import FolderReader
from windlass.train.checkpoint.storage import Folder


@dataclass(frozen=True)
class Refused:
    """A checkpoint that was found bad."""

    found: Found
    reason: str


def choose(folder: str, world: World) -> tuple[Found | None, list[Refused]]:
    """The newest checkpoint every byte of which is as it was written, and the newer ones that are not. A collective."""
    candidates: list[Found] = world.broadcast(
        files.list_checkpoints(folder) if world.rank == 0 or not world.talks else []
    )
    refused = []
    for found in candidates:
        if not found.complete:
            if "no manifest" not in found.problem:
                refused.append(Refused(found, found.problem))
            continue
        problems = verify(found, world)
        if not problems:
            return found, refused
        refused.append(Refused(found, "; ".join(problems)))
    return None, refused


def choose_only(wanted: str, folder: str, world: World) -> Found:
    """The one checkpoint of this name or path. Raises FileNotFoundError or BadCheckpoint on all ranks."""
    path = os.path.abspath(wanted if os.sep in wanted else os.path.join(folder, wanted))
    parent, name = os.path.split(path)
    listed = files.list_checkpoints(parent) if world.rank == 0 or not world.talks else []
    candidates: list[Found] = world.broadcast(listed)
    found = next((one for one in candidates if one.name == name), None)
    if found is None:
        near = ", ".join(one.name for one in candidates[:5] if one.complete)
        raise FileNotFoundError(
            f"WINDLASS_RESUME_FROM={wanted}: there is no checkpoint {path}" + (f"; there are {near}" if near else "")
        )
    problems = verify(found, world) if found.complete else [found.problem]
    if problems:
        raise files.BadCheckpoint(f"WINDLASS_RESUME_FROM={wanted} cannot be loaded: {'; '.join(problems)}")
    return found


def verify(found: Found, world: World) -> list[str]:
    """What is wrong with it; each rank reads its share of the files, all of them where ranks cannot talk."""
    storage = Folder(os.path.dirname(found.path))
    shares = _shares(found.files, world.size if world.talks else 1)
    mine = shares[world.rank if world.talks else 0]
    problems = [problem for file in mine if (problem := files.verify_file(storage, found, file))]
    return sorted({problem for theirs in world.gather(problems) for problem in theirs})


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

    def __init__(self, found: Found, parts: Sequence[Part], world: World, *, allow_pickle: bool) -> None:
        """Raises BadCheckpoint or OSError."""
        self._reader = FolderReader(found.path)
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
        """Everything, or an error before anything has changed. Raises ValueError where names or shapes differ."""
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
        with torch.no_grad():
            self._reader.read_data(planner.finish_plan(planner.create_local_plan()), planner).wait()


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
