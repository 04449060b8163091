"""Turns a verified checkpoint's files back into tensors, for any number of ranks: a storage reader of DCP."""

from __future__ import annotations

import ctypes
import json
import math
import os
from dataclasses import dataclass
from typing import Any, BinaryIO

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)  # fmt: skip
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader

from windlass.train.checkpoint import files
from windlass.train.checkpoint.faults import BadCheckpoint
from windlass.train.checkpoint.plan import Chunk, dtype_named
from windlass.train.checkpoint.storage import Folder, Storage


@dataclass(frozen=True)
class Place:
    """Where a chunk's bytes are."""

    chunk: Chunk
    file: str
    begin: int


class FolderReader(StorageReader):
    """Reads one checkpoint: `torch.distributed.checkpoint.load(state, storage_reader=FolderReader(path))` works too."""

    def __init__(self, path: str | os.PathLike[str], storage: Storage | None = None) -> None:
        """`path` is the checkpoint's folder. Raises BadCheckpoint or OSError; it does not verify checksums."""
        self.path = os.fspath(path)
        folder, self.name = os.path.split(self.path.rstrip("/"))
        self.storage = storage or Folder(folder or ".")
        self.manifest = files.read_manifest(self.storage, self.name)
        self.places: dict[str, list[Place]] = {}
        """By the name of the tensor."""
        self.ranks: list[dict[str, Any]] = []
        """What each rank wrote of its own state."""
        for rank in range(self.manifest["world_size"]):
            self._read_rank(rank)
        self._check_cover()

    def _read_rank(self, rank: int) -> None:
        own = json.loads(files.read_whole(self.storage, self.name, f"rank-{rank}.json"))
        self.ranks.append(own)
        file = f"rank-{rank}.safetensors"
        length = self.manifest["files"][file]["bytes"]
        for key, entry in own["tensors"].items():
            try:
                place = _place(entry, file)
            except (KeyError, TypeError, ValueError) as error:
                raise BadCheckpoint(f"rank-{rank}.json describes {key!r} wrongly: {error}") from None
            if place.begin + place.chunk.num_bytes > length:
                raise BadCheckpoint(f"rank-{rank}.json places {key!r} beyond the end of {file}")
            self.places.setdefault(place.chunk.name, []).append(place)

    def _check_cover(self) -> None:
        for name, places in self.places.items():
            first = places[0].chunk
            if any((place.chunk.shape, place.chunk.dtype) != (first.shape, first.dtype) for place in places):
                raise BadCheckpoint(f"the parts of {name} are of different tensors")
            if len({place.chunk.offsets for place in places}) != len(places):
                raise BadCheckpoint(f"parts of {name} are there twice")
            if sum(math.prod(place.chunk.sizes) for place in places) != math.prod(first.shape):
                raise BadCheckpoint(f"parts of {name} are missing")

    def shape(self, name: str) -> tuple[int, ...]:
        """The whole shape of a tensor. Raises BadCheckpoint if there is none of this name."""
        return self._first(name).shape

    def dtype(self, name: str) -> torch.dtype:
        """The type of a tensor. Raises BadCheckpoint if there is none of this name."""
        return dtype_named(self._first(name).dtype)

    def _first(self, name: str) -> Chunk:
        if name not in self.places:
            raise BadCheckpoint(f"the tensor {name!r} is not in its files")
        return self.places[name][0].chunk

    # -- what DCP asks ------------------------------------------------------------------------------------------------

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it names a checkpoint of ours."""
        return os.path.isfile(os.path.join(os.fspath(checkpoint_id), files.MANIFEST))

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """A reader is of one checkpoint."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Shapes, types and chunks of all tensors."""
        return Metadata(
            {
                name: TensorStorageMetadata(
                    TensorProperties(dtype=dtype_named(places[0].chunk.dtype)),
                    torch.Size(places[0].chunk.shape),
                    [
                        ChunkStorageMetadata(torch.Size(place.chunk.offsets), torch.Size(place.chunk.sizes))
                        for place in places
                    ],
                )
                for name, places in self.places.items()
            }
        )

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to set up."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """As it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """As they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> torch.futures.Future[None]:
        """Load what the plan asks for, file by file. Raises OSError."""
        by_file: dict[str, list[tuple[Place, ReadItem]]] = {}
        for item in plan.items:
            place = self._place(item.storage_index)
            by_file.setdefault(place.file, []).append((place, item))
        for file, items in by_file.items():
            with self.storage.open(self.name, file) as opened:
                for place, item in sorted(items, key=lambda pair: pair[0].begin):
                    target = planner.resolve_tensor(item).detach()
                    _load(opened, place, item, target)
                    planner.commit_tensor(item, target)
        done: torch.futures.Future[None] = torch.futures.Future()
        done.set_result(None)
        return done

    def _place(self, index: MetadataIndex) -> Place:
        offsets = tuple(index.offset or ())
        return next(place for place in self.places[index.fqn] if place.chunk.offsets == offsets)


def _place(entry: dict[str, Any], file: str) -> Place:
    shape, offsets, sizes = (tuple(entry[key]) for key in ("shape", "offsets", "sizes"))
    numbers = (*shape, *offsets, *sizes, entry["begin"])
    if any(type(number) is not int or not 0 <= number < 1 << 60 for number in numbers):
        raise ValueError("it has impossible numbers")
    if not len(shape) == len(offsets) == len(sizes) <= 64 or type(entry["name"]) is not str:
        raise ValueError("its numbers do not fit together")
    if any(offset + size > whole for whole, offset, size in zip(shape, offsets, sizes, strict=True)):
        raise ValueError("it lies outside of its tensor")
    dtype_named(entry["dtype"])
    return Place(Chunk(entry["name"], entry["dtype"], shape, offsets, sizes), file, entry["begin"])


def _load(opened: BinaryIO, place: Place, item: ReadItem, target: torch.Tensor) -> None:
    """Read a box of a chunk into a tensor; straight into its memory where both are one run of bytes."""
    if target.numel() == 0:
        return
    sizes, dtype = place.chunk.sizes, dtype_named(place.chunk.dtype)
    lengths, offsets = tuple(item.lengths), tuple(item.storage_offsets)
    begin = place.begin
    if sizes:
        row = math.prod(sizes[1:]) * dtype.itemsize
        begin += offsets[0] * row
    straight = lengths[1:] == sizes[1:]
    if straight and target.device.type == "cpu" and target.dtype == dtype and target.is_contiguous():
        _read_into(opened, begin, target)
        return
    rows = torch.empty((lengths[0], *sizes[1:]) if sizes else (), dtype=dtype)
    _read_into(opened, begin, rows)
    for dimension in range(1, len(sizes)):
        rows = rows.narrow(dimension, offsets[dimension], lengths[dimension])
    target.copy_(rows)


def _read_into(opened: BinaryIO, begin: int, target: torch.Tensor) -> None:
    length = target.numel() * target.dtype.itemsize
    left = memoryview((ctypes.c_char * length).from_address(target.data_ptr())).cast("B")
    opened.seek(begin)
    while left:
        count = opened.readinto(left)  # type: ignore[attr-defined]
        if not count:
            raise OSError(f"{opened.name} ended {len(left)} bytes too early")
        left = left[count:]
