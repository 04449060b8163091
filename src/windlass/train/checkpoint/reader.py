"""Reads the tensors of a checkpoint for any number of ranks: a storage reader of torch.distributed.checkpoint."""

from __future__ import annotations

import ctypes
import math
import os
from typing import Any, BinaryIO

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader

from windlass.train.checkpoint import files
from windlass.train.checkpoint.chunks import Index, Place
from windlass.train.checkpoint.opening import open_folder
from windlass.train.checkpoint.plan import dtype_named


class FolderReader(StorageReader):
    """Reads one checkpoint; also usable as `torch.distributed.checkpoint.load(state,
    storage_reader=FolderReader(path))`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """`path` is the checkpoint's folder. Raises BadCheckpoint or OSError. Checksums are not verified."""
        folder, self.name = os.path.split(os.fspath(path).rstrip("/"))
        self.folder = open_folder(folder or ".")
        self.index = Index(self.folder, self.name, files.read_manifest(self.folder, self.name)["files"])

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether the path is the folder of a checkpoint."""
        return os.path.isfile(os.path.join(os.fspath(checkpoint_id), files.MANIFEST))

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Does nothing: a reader reads one checkpoint."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Returns shapes, types and chunks of all tensors."""
        tensors: dict[str, Any] = {}
        for name, places in self.index.places.items():
            chunks = [place.chunk for place in places]
            tensors[name] = TensorStorageMetadata(
                TensorProperties(dtype=dtype_named(chunks[0].dtype)),
                torch.Size(chunks[0].shape),
                [ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes)) for chunk in chunks],
            )
        return Metadata(tensors)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Does nothing: the constructor has read the index."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Returns the plan unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Returns the plans unchanged."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> torch.futures.Future[None]:
        """Loads the requested tensors, file by file. Raises OSError."""
        by_file: dict[str, list[tuple[Place, ReadItem]]] = {}
        for item in plan.items:
            place = self._place(item.storage_index)
            by_file.setdefault(place.file, []).append((place, item))
        for file, items in by_file.items():
            with self.folder.open(self.name, file) as opened:
                for place, item in sorted(items, key=lambda pair: pair[0].begin):
                    target = planner.resolve_tensor(item).detach()
                    _load(opened, place, item, target)
                    planner.commit_tensor(item, target)
        done: torch.futures.Future[None] = torch.futures.Future()
        done.set_result(None)
        return done

    def _place(self, index: MetadataIndex) -> Place:
        offsets = tuple(index.offset or ())
        return next(place for place in self.index.places[index.fqn] if place.chunk.offsets == offsets)


def _load(opened: BinaryIO, place: Place, item: ReadItem, target: torch.Tensor) -> None:
    """Reads a box of a chunk into a tensor, without an intermediate buffer if box and tensor are contiguous."""
    if target.numel() == 0:
        return
    sizes, dtype = place.chunk.sizes, dtype_named(place.chunk.dtype)
    lengths, offsets = tuple(item.lengths), tuple(item.storage_offsets)
    begin = place.begin
    if sizes:
        row = math.prod(sizes[1:]) * dtype.itemsize
        begin += offsets[0] * row
    direct = lengths[1:] == sizes[1:]
    if direct and target.device.type == "cpu" and target.dtype == dtype and target.is_contiguous():
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
