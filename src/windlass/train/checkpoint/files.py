"""Turns a folder of checkpoints into a list of what is there, newest first; verifies and prunes.

Standard library only, Python 3.9: the command line, the writer process and a training script all use it. The format
is described in docs/concepts/checkpoints.md.
"""

from __future__ import annotations

import errno
import json
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

from windlass.train.checkpoint.faults import (
    BadCheckpoint,
    Fault,
    Problem,
    UnfinishedCheckpoint,
    UnknownFormat,
    described,
)
from windlass.train.checkpoint.retry import Retry
from windlass.train.checkpoint.storage import ASIDE, Folder, NotPlainFile, Storage, is_plain_name

FORMAT = 1
MANIFEST = "manifest.json"
CHECKSUM = "crc32"
"""Three times as fast as SHA-256 with the processor's help, ten times without: `python bench/checkpoint.py`. It finds
every flipped bit and truncated file; it is no defence against someone who may write here, and no checksum beside the
data is."""
PIECE_BYTES = 4 << 20
JSON_BYTES = 256 << 20
"""More than a manifest or a rank's own state may have."""
_NAME = re.compile(r"step-(\d{8,15})-a(\d{1,9})([0-9a-f]{4})(?:-(\d{1,4}))?\Z")
_SEAL = re.compile(rb'(.*),\n "crc32": "([0-9a-f]{8})"\n}\Z', re.DOTALL)
_FILE = re.compile(r"rank-(0|[1-9]\d{0,6})\.(safetensors|json)\Z")


@dataclass(frozen=True)
class Found:
    """One checkpoint, as its name and manifest tell it; nothing of its content has been read."""

    name: str
    path: str
    step: int
    """Steps done over the whole run."""
    epoch: int
    """The epoch to go on with."""
    created_at: float
    """Unix seconds; of the folder where there is no manifest."""
    bytes: int
    complete: bool
    """Whether its manifest is valid. Only `examine` tells whether the files are as the manifest says."""
    attempt: int
    world_size: int
    run_id: str
    """The run that saved it, the only one that removes it; empty where that is not known."""
    problem: str = ""
    """Why it is not complete."""
    files: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)
    """Length and checksum of each file, as the manifest has them."""
    fault: Fault = Fault.UNFINISHED
    """What kind of problem it is, where it is not complete."""

    @property
    def is_set_aside(self) -> bool:
        """Whether it was found damaged before, and renamed."""
        return self.name.endswith(ASIDE)

    @property
    def state(self) -> str:
        """`complete`, or the kind of its problem."""
        return "complete" if self.complete else self.fault.value


def name_of(step: int, attempt: int, salt: str, again: int = 0) -> str:
    """The folder of a checkpoint: `step-00000120-a2f3c1`. `salt` is four hexadecimal digits."""
    return f"step-{step:08d}-a{attempt}{salt}" + (f"-{again}" if again else "")


def parse_name(name: str) -> tuple[int, int, str, int] | None:
    """Step, attempt, salt, and which save of the same step; None where it is no checkpoint's name.

    The name of one that was set aside is none: nothing may load it.
    """
    found = _NAME.match(name)
    return (int(found[1]), int(found[2]), found[3], int(found[4] or 0)) if found else None


def _parsed(name: str) -> tuple[int, int, str, int]:
    """As `parse_name`, also of one that was set aside; zeros for any other name."""
    return parse_name(name[: -len(ASIDE)] if name.endswith(ASIDE) else name) or (0, 0, "", 0)


def list_checkpoints(folder: str | os.PathLike[str]) -> list[Found]:
    """All checkpoints in a folder, newest first, with any fault. Raises OSError where the folder cannot be read.

    Newest is decided without a clock where that can be: of one run the later attempt, then the higher step. A resume
    from an older checkpoint therefore makes newer ones, whatever their steps are.
    """
    return listed(Folder(os.fspath(folder)), os.fspath(folder))


def listed(storage: Storage, where: str) -> list[Found]:
    """As `list_checkpoints`, of any storage; `where` stands before the names in `path`."""
    found = [find(storage, where, name) for name in storage.checkpoints() if _parsed(name)[2]]
    saved_by = {_parsed(one.name)[1:3]: one.run_id for one in found if one.run_id}
    found = [one if one.run_id else replace(one, run_id=saved_by.get(_parsed(one.name)[1:3], "")) for one in found]
    runs = {one.run_id for one in found if one.complete}
    only = next(iter(runs)) if len(runs) == 1 else ""
    newest: dict[str, float] = {}
    for one in found:
        run_id = _sorted_as(one, only)
        newest[run_id] = max(one.created_at, newest.get(run_id, 0.0))
    return sorted(
        found, key=lambda one: (newest[_sorted_as(one, only)], _sorted_as(one, only), *_age(one)), reverse=True
    )


def _sorted_as(one: Found, only: str) -> str:
    """The run among whose checkpoints it is listed. One of an unknown run is listed among those of the only run."""
    return one.run_id if one.complete or one.run_id else only


def _age(one: Found) -> tuple[int, int, int, float]:
    _, attempt, _, again = _parsed(one.name)
    return attempt, one.step, again, one.created_at


def find(storage: Storage, where: str, name: str) -> Found:
    """One checkpoint by its name; what cannot be read of it is its fault. Raises nothing."""
    path = os.path.join(where, name)
    try:
        manifest = read_manifest(storage, name)
    except BadCheckpoint as error:
        return _incomplete(storage, path, name, Problem(error.fault, str(error)))
    except NotPlainFile as error:
        return _incomplete(storage, path, name, Problem(Fault.UNKNOWN_FORMAT, str(error)))
    except OSError as error:
        text = f"it cannot be read: {described(error, os.path.join(path, MANIFEST))}"
        return _incomplete(storage, path, name, Problem(Fault.UNREADABLE, text))
    size = sum(file["bytes"] for file in manifest["files"].values())
    aside = name.endswith(ASIDE)
    return Found(
        name, path, manifest["step"], manifest["epoch"], manifest["created_at"], size, not aside, manifest["attempt"],
        manifest["world_size"], manifest["run_id"], "set aside: it was found damaged" if aside else "",
        manifest["files"], Fault.DAMAGED if aside else Fault.UNFINISHED,
    )  # fmt: skip


def _incomplete(storage: Storage, path: str, name: str, problem: Problem) -> Found:
    step, attempt, _, _ = _parsed(name)
    size, changed_at, run_id = 0, 0.0, ""
    try:
        changed_at = os.lstat(path).st_mtime
        size = sum(storage.files(name).values())
        run_id = storage.begun_by(name)
    except FileNotFoundError:
        pass  # it was removed meanwhile
    except OSError as error:
        # Without its age and its run, an unfinished one could be taken for one to remove.
        problem = Problem(Fault.UNREADABLE, f"it cannot be read: {described(error, path)}")
    if name.endswith(ASIDE) and problem.fault is not Fault.UNREADABLE:
        problem = Problem(Fault.DAMAGED, f"set aside: {problem.text}")
    return Found(
        name, path, step, 0, changed_at, size, False, attempt, 0, run_id, problem.text, fault=problem.fault
    )  # fmt: skip


# -- the manifest -----------------------------------------------------------------------------------------------------


def read_manifest(storage: Storage, name: str) -> dict[str, Any]:
    """The manifest, every field of it checked. Raises BadCheckpoint with its fault, or OSError."""
    try:
        data = read_whole(storage, name, MANIFEST)
    except FileNotFoundError:
        raise UnfinishedCheckpoint("it has no manifest: its save was not finished") from None
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(f"its manifest cannot be parsed: {error}") from None
    sealed = _SEAL.match(data)
    if sealed is not None and f"{zlib.crc32(sealed[1]):08x}".encode() != sealed[2]:
        raise BadCheckpoint(f"its manifest is damaged: its {CHECKSUM} is not that of its content")
    if not isinstance(manifest, dict):
        raise UnknownFormat("its manifest is not an object")
    if manifest.get("format") != FORMAT:
        raise UnknownFormat(f"it has format {manifest.get('format')!r}, and this version of Windlass reads {FORMAT}")
    if sealed is None:
        raise BadCheckpoint(f"its manifest is damaged: its {CHECKSUM} is missing")
    # What follows has the right checksum: it was written so, by another program.
    _check_fields(manifest)
    _check_files(manifest["files"], manifest["world_size"])
    if _parsed(name)[2] and _parsed(name)[0] != manifest["step"]:
        raise UnknownFormat(f"its manifest is of step {manifest['step']}")
    return manifest


def seal(manifest: dict[str, Any]) -> bytes:
    """The manifest as it is written: its last entry is the checksum of what stands before it."""
    content = json.dumps(manifest, indent=1).encode()[: -len(b"\n}")]
    return content + f',\n "{CHECKSUM}": "{zlib.crc32(content):08x}"\n}}'.encode()


def _check_fields(manifest: dict[str, Any]) -> None:
    for key, kind, least in (("step", int, 0), ("epoch", int, 0), ("world_size", int, 1), ("attempt", int, 0)):
        if type(manifest.get(key)) is not kind or not least <= manifest[key] < 10**15:
            raise UnknownFormat(f"its manifest has {key} {manifest.get(key)!r}")
    if type(manifest.get("created_at")) not in (int, float) or not 0 <= manifest["created_at"] < 1e12:
        raise UnknownFormat(f"its manifest has created_at {manifest.get('created_at')!r}")
    if not isinstance(manifest.get("run_id"), str) or not isinstance(manifest.get("files"), dict):
        raise UnknownFormat("its manifest lacks run_id or files")


def _check_files(files: dict[str, Any], world_size: int) -> None:
    for name, facts in files.items():
        if not is_plain_name(name) or not _FILE.match(name):
            raise UnknownFormat(f"its manifest names {name!r}, which is no file of a checkpoint")
        if not isinstance(facts, dict) or type(facts.get("bytes")) is not int or not 0 <= facts["bytes"] < 1 << 60:
            raise UnknownFormat(f"its manifest gives {name} no length")
        if not isinstance(facts.get(CHECKSUM), str):
            raise UnknownFormat(f"its manifest gives {name} no {CHECKSUM}")
    if len(files) != 2 * world_size or any(f"rank-{rank}.json" not in files for rank in range(world_size)):
        raise UnknownFormat(f"its manifest lacks files of its {world_size} ranks")


def read_whole(storage: Storage, checkpoint: str, file: str) -> bytes:
    """The content of a small file. Raises OSError, and BadCheckpoint where it is not small."""
    with storage.open(checkpoint, file) as opened:
        size = opened.seek(0, os.SEEK_END)
        if size > JSON_BYTES:
            raise BadCheckpoint(f"{file} has {size} bytes, more than such a file may have")
        opened.seek(0)
        data = bytearray()
        while len(data) < size:
            more = opened.read(size - len(data))
            if not more:
                break
            data += more
    return bytes(data)


# -- verifying --------------------------------------------------------------------------------------------------------


def verify(found: Found) -> list[str]:
    """What is wrong with it in words, every byte of it read; nothing where it is verified."""
    return [problem.text for problem in examine(found)]


def examine(found: Found, retry: Retry | None = None) -> list[Problem]:
    """As `verify`, with the kind of each problem. `retry` repeats reads that the file system fails."""
    if not found.files:
        return [] if found.complete else [Problem(found.fault, found.problem)]
    storage = Folder(os.path.dirname(found.path))
    problems = [verify_file(storage, found, file, retry) for file in sorted(found.files)]
    wrong = [problem for problem in problems if problem is not None]
    if found.is_set_aside and not wrong:
        name = found.name[: -len(ASIDE)]
        return [Problem(Fault.DAMAGED, f"set aside as damaged, and verified now; to use it again, rename it to {name}")]
    return wrong


def verify_file(storage: Storage, found: Found, file: str, retry: Retry | None = None) -> Problem | None:
    """What is wrong with one file of it, or nothing."""
    path = os.path.join(found.path, file)
    try:
        return (retry or Retry(0)).call(lambda: _compare(storage, found, file), path)
    except NotPlainFile as error:
        return Problem(Fault.UNKNOWN_FORMAT, str(error))
    except OSError as error:
        return Problem(Fault.UNREADABLE, f"{file} cannot be read: {described(error, path)}")


def _compare(storage: Storage, found: Found, file: str) -> Problem | None:
    """Length and checksum of a file against the manifest's. Raises OSError."""
    wanted = found.files[file]
    try:
        with storage.open(found.name, file) as opened:
            size = opened.seek(0, os.SEEK_END)
            if size != wanted["bytes"]:
                return Problem(Fault.DAMAGED, f"{file} has {size} bytes where the manifest says {wanted['bytes']}")
            opened.seek(0)
            checksum = checksum_of(iter(_pieces(opened)))
    except FileNotFoundError:
        if _is_gone(storage, found):  # unmounted, or removed by another process: no damage
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), os.path.join(found.path, file)) from None
        return Problem(Fault.DAMAGED, f"{file} is missing")
    if checksum != wanted[CHECKSUM]:
        return Problem(Fault.DAMAGED, f"{file} is damaged: its {CHECKSUM} is not the manifest's")
    return None


def _is_gone(storage: Storage, found: Found) -> bool:
    """Whether the manifest that was read before is not there any more. Raises OSError."""
    try:
        return MANIFEST not in storage.files(found.name)
    except FileNotFoundError:
        return True


def _pieces(opened: Any) -> Iterator[memoryview]:
    room = memoryview(bytearray(PIECE_BYTES))
    while True:
        length = opened.readinto(room)
        if not length:
            return
        yield room[:length]


def checksum_of(pieces: Iterator[memoryview]) -> str:
    """The checksum of what the pieces are together."""
    value = 0
    for piece in pieces:
        value = zlib.crc32(piece, value)
    return f"{value:08x}"


# -- export -----------------------------------------------------------------------------------------------------------


def export_safetensors(found: Found, path: str | os.PathLike[str], part: str = "model") -> None:
    """Write the tensors of one part as a plain safetensors file, put together from the ranks' pieces; no torch needed.

    The file is there whole or not at all. Raises BadCheckpoint if there is no such part or a piece is missing, OSError.
    """
    storage = Folder(os.path.dirname(found.path))
    pieces = _pieces_of(storage, found, f"{part}.")
    if not pieces:
        others = sorted({name.partition(".")[0] for name in _pieces_of(storage, found, "")})
        raise BadCheckpoint(f"it has no tensors of a part named {part!r}, only of {', '.join(others) or 'none'}")
    entries: dict[str, Any] = {}
    at = 0
    for name, boxes in pieces.items():
        kind, shape, width = boxes[0].kind, boxes[0].shape, boxes[0].width
        size = width
        for length in shape:
            size *= length
        raw = [*shape, width] if kind == "U8" and boxes[0].raw else list(shape)
        entries[name] = {"dtype": kind, "shape": raw, "data_offsets": [at, at + size]}
        at += size
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    target = os.path.abspath(os.fspath(path))
    partial = os.path.join(os.path.dirname(target), f".{os.path.basename(target)}.partial")
    try:
        with open(partial, "wb") as out:
            out.write(len(header).to_bytes(8, "little") + header)
            begin = out.tell()
            out.truncate(begin + at)
            for name, boxes in pieces.items():
                for box in boxes:
                    with storage.open(found.name, box.file) as source:
                        _copy_box(source, out, box, begin + entries[name]["data_offsets"][0])
            out.flush()
            os.fsync(out.fileno())
        os.replace(partial, target)
    except BaseException:
        if os.path.exists(partial):
            os.unlink(partial)
        raise


@dataclass(frozen=True)
class _Box:
    """A piece of a tensor in a rank's file."""

    kind: str
    """As safetensors names the type."""
    raw: bool
    """Whether safetensors has no name for the type, so that it goes as bytes."""
    width: int
    """Bytes of one element."""
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    begin: int


def _pieces_of(storage: Storage, found: Found, prefix: str) -> dict[str, list[_Box]]:
    """The pieces of each tensor whose name begins so, by the rest of the name. Raises BadCheckpoint, OSError."""
    pieces: dict[str, list[_Box]] = {}
    for rank in range(found.world_size):
        file = f"rank-{rank}.safetensors"
        header, data_begin = _header(storage, found, file)
        try:
            index = json.loads(read_whole(storage, found.name, f"rank-{rank}.json"))["tensors"]
            for key, entry in index.items():
                if entry["name"].startswith(prefix):
                    box = _box(entry, header[key], file, data_begin)
                    pieces.setdefault(entry["name"][len(prefix) :], []).append(box)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadCheckpoint(f"rank-{rank}.json cannot be read: {error!r}") from None
    for name, boxes in pieces.items():
        if any((box.shape, box.kind, box.width) != (boxes[0].shape, boxes[0].kind, boxes[0].width) for box in boxes):
            raise BadCheckpoint(f"the pieces of {name} are of different tensors")
        if sum(_product(box.sizes) for box in boxes) != _product(boxes[0].shape):
            raise BadCheckpoint(f"pieces of {name} are missing")
    return dict(sorted(pieces.items(), key=lambda item: (-item[1][0].width, item[0])))


def _header(storage: Storage, found: Found, file: str) -> tuple[dict[str, Any], int]:
    with storage.open(found.name, file) as opened:
        length = int.from_bytes(opened.read(8), "little")
        if length > min(JSON_BYTES, found.files[file]["bytes"]):
            raise BadCheckpoint(f"{file} has an impossible header")
        try:
            header = json.loads(opened.read(length))
        except ValueError as error:
            raise BadCheckpoint(f"{file} has a header that cannot be read: {error}") from None
    return header, 8 + length


def _box(entry: dict[str, Any], told: dict[str, Any], file: str, data_begin: int) -> _Box:
    shape, offsets, sizes = (tuple(entry[key]) for key in ("shape", "offsets", "sizes"))
    begin, end = told["data_offsets"]
    numbers = (*shape, *offsets, *sizes, begin, end)
    if any(type(number) is not int or not 0 <= number < 1 << 60 for number in numbers):
        raise ValueError(f"{entry['name']} has impossible numbers")
    if not len(shape) == len(offsets) == len(sizes):
        raise ValueError(f"{entry['name']} has numbers that do not fit together")
    if any(offset + size > whole for whole, offset, size in zip(shape, offsets, sizes)):  # noqa: B905 - Python 3.9
        raise ValueError(f"{entry['name']} lies outside of its tensor")
    raw = len(told["shape"]) == len(sizes) + 1
    width = told["shape"][-1] if raw else _WIDTHS[told["dtype"]]
    if end - begin != width * _product(sizes):
        raise ValueError(f"{entry['name']} has another length than its shape")
    return _Box(told["dtype"], raw, width, shape, offsets, sizes, file, data_begin + begin)


_WIDTHS = {
    "F64": 8, "I64": 8, "U64": 8, "C64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip


def _product(sizes: tuple[int, ...]) -> int:
    number = 1
    for size in sizes:
        number *= size
    return number


def _copy_box(source: BinaryIO, out: BinaryIO, box: _Box, tensor_begin: int) -> None:
    """Copy a piece to where it belongs in the whole tensor, run by run: those of its bytes that lie together there."""
    inner = len(box.sizes)
    run = box.width
    while inner and run >= 0:
        inner -= 1
        run *= box.sizes[inner]
        if box.sizes[inner] != box.shape[inner]:
            break
    if run == 0:
        return
    strides = [box.width] * len(box.shape)
    for dimension in range(len(box.shape) - 2, -1, -1):
        strides[dimension] = strides[dimension + 1] * box.shape[dimension + 1]
    first = tensor_begin + sum(offset * stride for offset, stride in zip(box.offsets, strides))  # noqa: B905
    source.seek(box.begin)
    for number in range(_product(box.sizes[:inner])):
        place = first
        for dimension in range(inner - 1, -1, -1):
            number, index = divmod(number, box.sizes[dimension])
            place += index * strides[dimension]
        out.seek(place)
        _copy_bytes(source, out, run)


def _copy_bytes(source: BinaryIO, out: BinaryIO, length: int) -> None:
    while length:
        data = source.read(min(length, PIECE_BYTES))
        if not data:
            raise OSError(f"{source.name} ended too early")
        out.write(data)
        length -= len(data)
