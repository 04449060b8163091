"""Turns a folder of checkpoints into a list of what is there, newest first; verifies and prunes.

Standard library only, Python 3.9: the command line, the writer process and a training script all use it. The format
is described in docs/concepts/checkpoints.md.
"""

from __future__ import annotations

import json
import os
import re
import time
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from windlass.train.checkpoint.storage import Folder, Storage, is_plain_name

FORMAT = 1
MANIFEST = "manifest.json"
CHECKSUM = "crc32"
"""Three times as fast as SHA-256 with the processor's help, ten times without: `python bench/checkpoint.py`. It finds
every flipped bit and truncated file; it is no defence against someone who may write here, and no checksum beside the
data is."""
PIECE_BYTES = 4 << 20
JSON_BYTES = 256 << 20
"""More than a manifest or a rank's own state may have."""
INCOMPLETE_SECONDS = 600.0
"""After so long without a change, a checkpoint that never became whole is rubbish of whoever died over it."""
_NAME = re.compile(r"step-(\d{8,15})-a(\d{1,9})([0-9a-f]{4})(?:-(\d{1,4}))?\Z")
_SEAL = re.compile(rb'(.*),\n "crc32": "([0-9a-f]{8})"\n}\Z', re.DOTALL)
_FILE = re.compile(r"rank-(0|[1-9]\d{0,6})\.(safetensors|json)\Z")


class BadCheckpoint(ValueError):
    """A checkpoint that must not be loaded; the message says why."""


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
    """Whether a manifest is there that can be read."""
    attempt: int
    world_size: int
    run_id: str
    problem: str = ""
    """Why it is not complete."""
    files: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)
    """Length and checksum of each file, as the manifest has them."""


def name_of(step: int, attempt: int, salt: str, again: int = 0) -> str:
    """The folder of a checkpoint: `step-00000120-a2f3c1`. `salt` is four hexadecimal digits."""
    return f"step-{step:08d}-a{attempt}{salt}" + (f"-{again}" if again else "")


def parse_name(name: str) -> tuple[int, int, str, int] | None:
    """Step, attempt, salt, and which save of the same step; None where it is no checkpoint's name."""
    found = _NAME.match(name)
    return (int(found[1]), int(found[2]), found[3], int(found[4] or 0)) if found else None


def list_checkpoints(folder: str | os.PathLike[str]) -> list[Found]:
    """All checkpoints in a folder, newest first, also those that never became whole. Raises OSError.

    Newest is decided without a clock where that can be: of one run the later attempt, then the higher step. A resume
    from an older checkpoint therefore makes newer ones, whatever their steps are.
    """
    return listed(Folder(os.fspath(folder)), os.fspath(folder))


def listed(storage: Storage, where: str) -> list[Found]:
    """As `list_checkpoints`, of any storage; `where` stands before the names in `path`."""
    found = [_found(storage, where, name) for name in storage.checkpoints() if parse_name(name)]
    runs = _runs(found)
    newest: dict[str, float] = {}
    for one in found:
        run_id = runs[one.name]
        newest[run_id] = max(one.created_at, newest.get(run_id, 0.0))
    return sorted(found, key=lambda one: (newest[runs[one.name]], runs[one.name], *_age(one)), reverse=True)


def _runs(found: list[Found]) -> dict[str, str]:
    """The run of each, by name; one without a manifest is of the run whose attempt it names, or of the only run."""
    told = {(parse_name(one.name) or (0, 0, ""))[1:3]: one.run_id for one in found if one.complete}
    only = next(iter(told.values())) if len(set(told.values())) == 1 else ""
    return {
        one.name: one.run_id if one.complete else told.get((parse_name(one.name) or (0, 0, ""))[1:3], only)
        for one in found
    }


def _age(one: Found) -> tuple[int, int, int, float]:
    _, attempt, _, again = parse_name(one.name) or (0, 0, "", 0)
    return attempt, one.step, again, one.created_at


def _found(storage: Storage, where: str, name: str) -> Found:
    step, attempt, _, _ = parse_name(name) or (0, 0, "", 0)
    path = os.path.join(where, name)
    try:
        manifest = read_manifest(storage, name)
    except (BadCheckpoint, OSError) as error:
        return Found(name, path, step, 0, _changed_at(path), _size(storage, name), False, attempt, 0, "", str(error))
    size = sum(file["bytes"] for file in manifest["files"].values())
    return Found(
        name, path, manifest["step"], manifest["epoch"], manifest["created_at"], size, True, manifest["attempt"],
        manifest["world_size"], manifest["run_id"], "", manifest["files"],
    )  # fmt: skip


def _size(storage: Storage, name: str) -> int:
    try:
        return sum(storage.files(name).values())
    except OSError:
        return 0


def _changed_at(path: str) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0


# -- the manifest -----------------------------------------------------------------------------------------------------


def read_manifest(storage: Storage, name: str) -> dict[str, Any]:
    """The manifest, every field of it checked. Raises BadCheckpoint or OSError."""
    try:
        data = read_whole(storage, name, MANIFEST)
    except FileNotFoundError:
        raise BadCheckpoint("it has no manifest: it never became whole") from None
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(f"its manifest cannot be read: {error}") from None
    if not isinstance(manifest, dict):
        raise BadCheckpoint("its manifest is not an object")
    if manifest.get("format") != FORMAT:
        raise BadCheckpoint(f"it has format {manifest.get('format')!r}, and this version of Windlass reads {FORMAT}")
    sealed = _SEAL.match(data)
    if sealed is None or f"{zlib.crc32(sealed[1]):08x}".encode() != sealed[2]:
        raise BadCheckpoint(f"its manifest is damaged: its {CHECKSUM} is not that of its content")
    _check_fields(manifest)
    _check_files(manifest["files"], manifest["world_size"])
    if (parse_name(name) or (manifest["step"],))[0] != manifest["step"]:
        raise BadCheckpoint(f"its manifest is of step {manifest['step']}")
    return manifest


def seal(manifest: dict[str, Any]) -> bytes:
    """The manifest as it is written: its last entry is the checksum of what stands before it."""
    content = json.dumps(manifest, indent=1).encode()[: -len(b"\n}")]
    return content + f',\n "{CHECKSUM}": "{zlib.crc32(content):08x}"\n}}'.encode()


def _check_fields(manifest: dict[str, Any]) -> None:
    for key, kind, least in (("step", int, 0), ("epoch", int, 0), ("world_size", int, 1), ("attempt", int, 0)):
        if type(manifest.get(key)) is not kind or not least <= manifest[key] < 10**15:
            raise BadCheckpoint(f"its manifest has {key} {manifest.get(key)!r}")
    if type(manifest.get("created_at")) not in (int, float) or not 0 <= manifest["created_at"] < 1e12:
        raise BadCheckpoint(f"its manifest has created_at {manifest.get('created_at')!r}")
    if not isinstance(manifest.get("run_id"), str) or not isinstance(manifest.get("files"), dict):
        raise BadCheckpoint("its manifest lacks run_id or files")


def _check_files(files: dict[str, Any], world_size: int) -> None:
    for name, facts in files.items():
        if not is_plain_name(name) or not _FILE.match(name):
            raise BadCheckpoint(f"its manifest names {name!r}, which is no file of a checkpoint")
        if not isinstance(facts, dict) or type(facts.get("bytes")) is not int or not 0 <= facts["bytes"] < 1 << 60:
            raise BadCheckpoint(f"its manifest gives {name} no length")
        if not isinstance(facts.get(CHECKSUM), str):
            raise BadCheckpoint(f"its manifest gives {name} no {CHECKSUM}")
    if len(files) != 2 * world_size or any(f"rank-{rank}.json" not in files for rank in range(world_size)):
        raise BadCheckpoint(f"its manifest lacks files of its {world_size} ranks")


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
    """What is wrong with it, every byte of it read; nothing where all is well."""
    if not found.complete:
        return [found.problem]
    storage = Folder(os.path.dirname(found.path))
    return [problem for file in sorted(found.files) if (problem := verify_file(storage, found, file))]


def verify_file(storage: Storage, found: Found, file: str) -> str:
    """What is wrong with one file of it, or nothing."""
    wanted = found.files[file]
    try:
        with storage.open(found.name, file) as opened:
            size = opened.seek(0, os.SEEK_END)
            if size != wanted["bytes"]:
                return f"{file} has {size} bytes where the manifest says {wanted['bytes']}"
            opened.seek(0)
            checksum = checksum_of(iter(_pieces(opened)))
    except FileNotFoundError:
        return f"{file} is missing"
    except OSError as error:
        return f"{file} cannot be read: {error.strerror or error}"
    return "" if checksum == wanted[CHECKSUM] else f"{file} is damaged: its {CHECKSUM} is not the manifest's"


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


# -- retention --------------------------------------------------------------------------------------------------------


def prune(
    folder: str | os.PathLike[str],
    keep: int | None,
    keep_for: float | None = None,
    *,
    distrusted: Collection[str] = (),
    clock: Callable[[], float] = time.time,
) -> list[str]:
    """Remove checkpoints beyond the newest `keep`, and those older than `keep_for` seconds; gives their names.

    The newest whole one always stays. Those in `distrusted` have been found damaged: they do not count, and go.
    Also removed is what never became whole and cannot any more. Raises OSError.
    """
    path = os.fspath(folder)
    storage = Folder(path)
    removed = []
    for name in to_prune(listed(storage, path), keep, keep_for, distrusted, clock()):
        try:
            storage.remove(name, MANIFEST)
            removed.append(name)
        except FileNotFoundError:
            pass  # somebody else has just done so
    return removed


def to_prune(
    found: list[Found], keep: int | None, keep_for: float | None, distrusted: Collection[str], now: float
) -> list[str]:
    """Which of these, newest first, are to go."""
    whole = [one for one in found if one.complete and one.name not in distrusted]
    if not whole:
        return []
    gone = [one.name for one in found if one.name in distrusted]
    for number, one in enumerate(whole):
        too_many = keep is not None and number >= max(1, keep)
        too_old = keep_for is not None and now - one.created_at > keep_for
        if number and (too_many or too_old):
            gone.append(one.name)
    newest = parse_name(whole[0].name)
    for one in found:
        if not one.complete and one.name not in distrusted and newest and _is_rubbish(one, newest, now):
            gone.append(one.name)
    return gone


def _is_rubbish(one: Found, newest: tuple[int, int, str, int], now: float) -> bool:
    """Whether an incomplete checkpoint can no longer become whole: a later save of its own attempt already has."""
    mine = parse_name(one.name)
    if mine is None:
        return False
    same_attempt = (mine[1], mine[2]) == (newest[1], newest[2])
    if same_attempt:
        return (mine[0], mine[3]) < (newest[0], newest[3])
    return now - one.created_at > INCOMPLETE_SECONDS


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
