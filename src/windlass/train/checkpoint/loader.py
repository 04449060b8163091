"""Loads one verified checkpoint into the parts: either everything, or an error before anything is changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

from windlass.train.checkpoint.consensus import World
from windlass.train.checkpoint.encoding import Decoder
from windlass.train.checkpoint.files import Found
from windlass.train.checkpoint.parts import ModulePart, Part
from windlass.train.checkpoint.plan import dtype_named
from windlass.train.checkpoint.reader import FolderReader
from windlass.train.checkpoint.restore import together
from windlass.train.checkpoint.retry import Retry


class Loader:
    """Loads one verified checkpoint."""

    def __init__(self, found: Found, parts: Sequence[Part], world: World, retry: Retry, *, allow_pickle: bool) -> None:
        """Reads the index. A collective. Raises BadCheckpoint, or UnreadableCheckpoint on all ranks."""
        self._found = found
        self._parts = parts
        self._world = world
        self._retry = retry
        self._reader = together(lambda: FolderReader(found.path), found.path, world, retry)
        self._index = self._reader.index
        self._allow_pickle = allow_pickle
        self.common: dict[str, Any] = self._index.ranks[0]["common"]
        """State that rank 0 saved for all ranks: the progress, and the encoded state of common parts."""
        self.same_world = found.world_size == world.size
        self._own: dict[str, Any] = self._index.ranks[world.rank]["own"] if world.rank < found.world_size else {}
        """State that this rank saved for itself; empty if the checkpoint has fewer ranks."""
        self.rng = Decoder().decode(self._own["rng"], "rng") if self._own else None
        """State of this rank's random number generators; None if the checkpoint has fewer ranks."""

    def load(self) -> None:
        """Loads all parts. Raises ValueError, with nothing changed, if names or shapes differ.

        Raises UnreadableCheckpoint on all ranks if one rank fails while reading; the model's tensors are then partly
        loaded.
        """
        existing = {part.name: part.existing() for part in self._parts}
        targets = {f"{name}.{path}": tensor for name, found in existing.items() for path, tensor in found.items()}
        self._check_parts()
        trees = {part.name: self._decode(part, targets) for part in self._parts}
        self._check_modules(targets)
        for part in self._parts:
            part.check(trees[part.name])
        self._read(targets)
        for part in self._parts:
            loaded, tree = existing[part.name], trees[part.name]
            part.load({**loaded, **(tree or {})} if loaded else tree)

    def _decode(self, part: Part, targets: dict[str, torch.Tensor]) -> Any:
        """Decodes the state of a part and adds its tensors to `targets`, which are read later."""
        template = part.templates()

        def make(path: Sequence[str], name: str) -> torch.Tensor:
            if name not in targets:
                saved = self._index.tensor(name)
                like, dtype = template(path[1:], saved.shape), dtype_named(saved.dtype)
                made = torch.empty(saved.shape, dtype=dtype) if like is None else torch.empty_like(like, dtype=dtype)
                targets[name] = made.detach()
            return targets[name]

        kept = self._own if part.per_rank else self.common
        coded = kept["parts"].get(part.name) if kept else None
        return Decoder(make, allow_pickle=self._allow_pickle).decode(coded, part.name)

    def _check_parts(self) -> None:
        saved: Mapping[str, bool] = self.common["kinds"]
        now = {part.name: part.per_rank for part in self._parts}
        problems = []
        if set(now) - set(saved):
            problems.append(f"it has no {listing(set(now) - set(saved))}")
        if set(saved) - set(now):
            problems.append(f"it also has {listing(set(saved) - set(now))}, which Checkpoint(...) was not given")
        if problems:
            raise ValueError(f"the checkpoint {self._found.name} is of another script: {'; '.join(problems)}")
        per_rank = [name for name, of_rank in now.items() if of_rank]
        if per_rank and not self.same_world:
            raise ValueError(
                f"the checkpoint {self._found.name} was made by {self._found.world_size} ranks, and "
                f"{listing(per_rank)} has a state for each rank, which cannot be divided among {self._world.size}; "
                "a sampler whose position is common to all ranks can: windlass.train.sampler.BatchSampler"
            )

    def _check_modules(self, targets: Mapping[str, torch.Tensor]) -> None:
        prefixes = tuple(f"{part.name}." for part in self._parts if isinstance(part, ModulePart))
        saved = {name for name in self._index.places if name.startswith(prefixes)}
        held = set().union(*self._world.gather({name for name in targets if name.startswith(prefixes)}))
        lines = []
        if held - saved:
            lines.append(f"the checkpoint lacks {listing(held - saved)}")
        if saved - held and self._world.can_communicate:
            lines.append(f"the model lacks {listing(saved - held)}")
        for name in sorted(set(targets) & saved):
            before, tensor = self._index.tensor(name), targets[name]
            dtype = str(tensor.dtype).removeprefix("torch.")
            if (before.shape, before.dtype) != (tuple(tensor.shape), dtype):
                lines.append(f"{name} was {before.dtype} {list(before.shape)} and is now {dtype} {list(tensor.shape)}")
        if lines:
            raise ValueError(f"the checkpoint {self._found.name} does not fit: {'; '.join(lines[:20])}")

    def _read(self, targets: dict[str, torch.Tensor]) -> None:
        """Reads the tensors; DCP's planner finds the chunks that make up this rank's share."""
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        plain: dict[str, Any] = {name: tensor.detach() for name, tensor in targets.items()}
        planner.set_up_planner(plain, self._reader.read_metadata(), self._world.rank == 0)
        plan = planner.finish_plan(planner.create_local_plan())
        with torch.no_grad():  # after an error, `together` repeats the whole plan
            together(lambda: self._reader.read_data(plan, planner).wait(), self._found.path, self._world, self._retry)


def listing(names: Iterable[str]) -> str:
    """Lists the first ten names in order: `a, b and 3 more`."""
    ordered = sorted(names)
    return ", ".join(ordered[:10]) + (f" and {len(ordered) - 10} more" if len(ordered) > 10 else "")
