"""Layout and index of tensor chunks in the checkpoint files of ranks; export of a whole part as safetensors.

Standard library only: `windlass checkpoints export` needs no torch.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

from windlass.train.checkpoint import files
from windlass.train.checkpoint.faults import BadCheckpoint, NoSuchPart
from windlass.train.checkpoint.opening import open_folder
from windlass.train.checkpoint.storage import Folder, replacing

HEADER_MULTIPLE = 4096
"""Alignment in bytes of the data in a file: a page, so that tensors of any type are aligned in memory."""
SAFETENSORS = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "complex64": "C64",
}  # fmt: skip
"""Type names of torch → of safetensors. Tensors of other types are stored as bytes with one more dimension; the rank's
JSON file records their type."""
_DTYPE = re.compile(r"[a-z]+(\d+)[a-z0-9_]*\Z")


@dataclass(frozen=True)
class Chunk:
    """A rectangular part of a tensor, written by one rank."""

    name: str
    dtype: str
    """Type name of torch, such as `float32`."""
    shape: tuple[int, ...]
    """Shape of the whole tensor."""
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def is_full(self) -> bool:
        """Whether the chunk covers the whole tensor."""
        return self.sizes == self.shape

    @property
    def key(self) -> str:
        """Key in the file: `model.weight`, or `model.weight@128,0` for a part of the tensor."""
        return self.name if self.is_full else f"{self.name}@{','.join(map(str, self.offsets))}"

    @property
    def num_bytes(self) -> int:
        """Size of the chunk in bytes."""
        return math.prod(self.sizes) * item_bytes(self.dtype)


def full_chunk(name: str, dtype: str, shape: Sequence[int]) -> Chunk:
    """Returns the chunk that covers a whole tensor."""
    return Chunk(name, dtype, tuple(shape), (0,) * len(shape), tuple(shape))


def item_bytes(dtype: str) -> int:
    """Returns the bytes of one element, from the bit count in torch's type name. Raises ValueError for other names."""
    if dtype == "bool":
        return 1
    found = _DTYPE.match(dtype)
    if found is None:
        raise ValueError(f"{dtype!r} is no type of a tensor")
    return max(1, int(found[1]) // 8)


# -- layout -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """Layout of one rank's file: a safetensors header, then the data of the chunks in order."""

    chunks: tuple[Chunk, ...]
    begins: tuple[int, ...]
    """Offset of each chunk's data in bytes from the start of the file."""
    header: bytes
    end: int
    """Length of the file in bytes."""

    @functools.cached_property
    def index(self) -> dict[str, Any]:
        """Entry of each key for the rank's JSON file; computed once for all saves."""
        pairs = zip(self.chunks, self.begins)  # noqa: B905 - Python 3.9
        return {chunk.key: {**asdict(chunk), "begin": begin} for chunk, begin in pairs}


def lay_out(chunks: Sequence[Chunk]) -> Layout:
    """Lays out a file with these chunks, widest types first so that each chunk is aligned."""
    ordered = sorted(chunks, key=lambda chunk: (-item_bytes(chunk.dtype), chunk.name, chunk.offsets))
    entries: dict[str, Any] = {}
    offsets = []
    at = 0
    for chunk in ordered:
        kind, sizes = SAFETENSORS.get(chunk.dtype), list(chunk.sizes)
        if kind is None:
            kind, sizes = "U8", [*sizes, item_bytes(chunk.dtype)]
        entries[chunk.key] = {"dtype": kind, "shape": sizes, "data_offsets": [at, at + chunk.num_bytes]}
        offsets.append(at)
        at += chunk.num_bytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % HEADER_MULTIPLE)
    header = len(text).to_bytes(8, "little") + text
    return Layout(tuple(ordered), tuple(len(header) + offset for offset in offsets), header, len(header) + at)


# -- index ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Location of a chunk's bytes: file and offset."""

    chunk: Chunk
    file: str
    begin: int


class Index:
    """The merged JSON files of all ranks: state of each rank, and location of every chunk of each tensor."""

    def __init__(self, folder: Folder, checkpoint: str, manifest_files: dict[str, Any]) -> None:
        """Reads the JSON files and checks every number against the files. Raises BadCheckpoint, OSError."""
        self.ranks: list[dict[str, Any]] = []
        self.places: dict[str, list[Place]] = {}
        """Locations of a tensor's chunks, by the name of the tensor."""
        for rank in range(len(manifest_files) // 2):
            file, state = files.names_of(rank)
            try:
                own = json.loads(files.read_small(folder, checkpoint, state))
                tensors = own["tensors"].items()
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise BadCheckpoint(f"{state} cannot be parsed: {error!r}") from None
            self.ranks.append(own)
            for key, entry in tensors:
                try:
                    place = _place(entry, file)
                except (KeyError, TypeError, ValueError) as error:
                    raise BadCheckpoint(f"{state} describes {key!r} wrongly: {error}") from None
                if place.begin + place.chunk.num_bytes > manifest_files[file]["bytes"]:
                    raise BadCheckpoint(f"{state} places {key!r} beyond the end of {file}")
                self.places.setdefault(place.chunk.name, []).append(place)
        for name, places in self.places.items():
            _check_cover(name, places)

    def tensor(self, name: str) -> Chunk:
        """Returns one chunk of a tensor, for its shape and type. Raises BadCheckpoint if the tensor has no chunk."""
        if name not in self.places:
            raise BadCheckpoint(f"the tensor {name!r} is not in its files")
        return self.places[name][0].chunk


def _place(entry: dict[str, Any], file: str) -> Place:
    shape, offsets, sizes = (tuple(entry[key]) for key in ("shape", "offsets", "sizes"))
    numbers = (*shape, *offsets, *sizes, entry["begin"])
    if any(type(number) is not int or not 0 <= number < 1 << 60 for number in numbers):
        raise ValueError("it has impossible numbers")
    if not len(shape) == len(offsets) == len(sizes) <= 64 or type(entry["name"]) is not str:
        raise ValueError("its numbers do not fit together")
    if any(offset + size > full for full, offset, size in zip(shape, offsets, sizes)):  # noqa: B905 - Python 3.9
        raise ValueError("it lies outside of its tensor")
    item_bytes(entry["dtype"])
    return Place(Chunk(entry["name"], entry["dtype"], shape, offsets, sizes), file, entry["begin"])


def _check_cover(name: str, places: list[Place]) -> None:
    first = places[0].chunk
    if any((place.chunk.shape, place.chunk.dtype) != (first.shape, first.dtype) for place in places):
        raise BadCheckpoint(f"the parts of {name} are of different tensors")
    if len({place.chunk.offsets for place in places}) != len(places):
        raise BadCheckpoint(f"parts of {name} are there twice")
    if sum(math.prod(place.chunk.sizes) for place in places) != math.prod(first.shape):
        raise BadCheckpoint(f"parts of {name} are missing")


# -- export -----------------------------------------------------------------------------------------------------------


def export_safetensors(found: files.Found, path: str | os.PathLike[str], part: str = "model") -> None:
    """Writes the tensors of one part as a plain safetensors file, assembled from the chunks of all ranks.

    The file appears only once it is complete. Raises NoSuchPart, BadCheckpoint if a chunk is missing, OSError.
    """
    folder = open_folder(os.path.dirname(found.path))
    places = Index(folder, found.name, found.files).places
    chosen = {name[len(part) + 1 :]: places[name] for name in places if name.startswith(f"{part}.")}
    if not chosen:
        others = ", ".join(sorted({name.partition(".")[0] for name in places}))
        raise NoSuchPart(f"it has no tensors of a part named {part!r}, only of {others or 'none'}")
    firsts = {name: chosen[name][0].chunk for name in chosen}
    layout = lay_out([full_chunk(name, first.dtype, first.shape) for name, first in firsts.items()])
    with replacing(os.path.abspath(os.fspath(path))) as out:
        out.write(layout.header)
        out.truncate(layout.end)
        for full, begin in zip(layout.chunks, layout.begins):  # noqa: B905 - Python 3.9
            for place in chosen[full.name]:
                with folder.open(found.name, place.file) as source:
                    _copy_chunk(source, out, place, begin)


def _copy_chunk(source: BinaryIO, out: BinaryIO, place: Place, begin: int) -> None:
    """Copies a chunk into the whole tensor at `begin`, one contiguous range of bytes at a time."""
    chunk = place.chunk
    if not chunk.num_bytes:
        return
    strides = [item_bytes(chunk.dtype)]
    for length in reversed(chunk.shape[1:]):
        strides.insert(0, strides[0] * length)
    outer = len(chunk.sizes)  # number of leading dimensions that the copy must loop over
    run = strides[-1]
    while outer:
        outer -= 1
        run *= chunk.sizes[outer]
        if chunk.sizes[outer] != chunk.shape[outer]:
            break
    first = begin + sum(offset * stride for offset, stride in zip(chunk.offsets, strides))  # noqa: B905
    source.seek(place.begin)
    for number in range(math.prod(chunk.sizes[:outer])):
        at = first
        for dimension in range(outer - 1, -1, -1):
            number, index = divmod(number, chunk.sizes[dimension])
            at += index * strides[dimension]
        out.seek(at)
        _copy_bytes(source, out, run)


def _copy_bytes(source: BinaryIO, out: BinaryIO, length: int) -> None:
    while length:
        data = source.read(min(length, files.PIECE_BYTES))
        if not data:
            raise OSError(f"{source.name} ended too early")
        out.write(data)
        length -= len(data)
