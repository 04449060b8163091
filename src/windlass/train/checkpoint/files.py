"""Lists the checkpoints of a folder, newest first; reads their manifests and verifies their files.

Standard library only, Python 3.9, because the writer process uses this module. The format is
described in docs/concepts/checkpoints.md.
"""

from __future__ import annotations

import errno
import json
import os
import re
import zlib
from dataclasses import dataclass, field, replace
from typing import Any

from windlass.train.checkpoint.faults import (
    BadCheckpoint,
    Fault,
    Problem,
    UnknownFormat,
    described,
)
from windlass.train.checkpoint.opening import open_folder
from windlass.train.checkpoint.retry import Retry
from windlass.train.checkpoint.storage import ASIDE, Folder, NotPlainFile

FORMAT = 1
MANIFEST = "manifest.json"
CHECKSUM = "crc32"
"""Algorithm of checksums. CRC-32 is three times as fast as SHA-256 with hardware support and ten times without (`python
bench/checkpoint.py`). CRC-32 detects every flipped bit and truncated file. No checksum stored beside the data protects
against an attacker with write access."""
PIECE_BYTES = 4 << 20
JSON_BYTES = 256 << 20
"""Upper limit for the bytes of a manifest or of a rank's JSON file."""
_NAME = re.compile(r"step-(\d{8,15})-a(\d{1,9})([0-9a-f]{4})(?:-(\d{1,4}))?\Z")
_SEAL = re.compile(rb'(.*),\n "crc32": "([0-9a-f]{8})"\n}\Z', re.DOTALL)


@dataclass(frozen=True)
class Found:
    """A checkpoint as described by its name and manifest, before its files are read."""

    name: str
    path: str
    step: int
    """Completed steps over the whole run."""
    epoch: int
    """Epoch in which training continues."""
    created_at: float
    """Time of the save in Unix seconds; the folder's modification time if there is no manifest."""
    bytes: int
    attempt: int
    world_size: int
    run_id: str
    """Run that saved the checkpoint, and the only run that removes it; empty if unknown."""
    fault: Fault | None = None
    """Why the checkpoint cannot be loaded; None if its manifest is valid. `examine` also compares the files."""
    problem: str = ""
    """The fault in words."""
    files: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)
    """Length and checksum of each file, from the manifest."""

    @property
    def complete(self) -> bool:
        """Whether the save was finished and the checkpoint was not set aside."""
        return self.fault is None

    @property
    def is_set_aside(self) -> bool:
        """Whether the checkpoint was renamed because it is damaged."""
        return self.name.endswith(ASIDE)

    @property
    def state(self) -> str:
        """State of the checkpoint: `complete`, or the kind of its fault."""
        return "complete" if self.fault is None else self.fault.value


def name_of(step: int, attempt: int, salt: str, again: int = 0) -> str:
    """Returns the folder name of a checkpoint, such as `step-00000120-a2f3c1`. `salt` is four hexadecimal digits."""
    return f"step-{step:08d}-a{attempt}{salt}" + (f"-{again}" if again else "")


def parse_name(name: str) -> tuple[int, int, str, int] | None:
    """Returns step, attempt, salt and the number of the save within the step; None for other names and `*.damaged`."""
    found = _NAME.match(name)
    return (int(found[1]), int(found[2]), found[3], int(found[4] or 0)) if found else None


def _parsed(name: str) -> tuple[int, int, str, int]:
    """Parses like `parse_name`, but accepts a checkpoint that was set aside; zeros for other names."""
    return parse_name(name[: -len(ASIDE)] if name.endswith(ASIDE) else name) or (0, 0, "", 0)


def list_checkpoints(folder: str | os.PathLike[str] | Folder) -> list[Found]:
    """Lists all checkpoints of a folder with their faults, newest first. Raises OSError if the folder cannot be read.

    Within a run, checkpoints are sorted by attempt, then by step, without any clock. After a resume from an older
    checkpoint, new checkpoints therefore count as newer even if their steps are lower.
    """
    folder = folder if isinstance(folder, Folder) else open_folder(os.fspath(folder))
    found = [find(folder, name) for name in folder.checkpoints() if _parsed(name)[2]]
    run_of_attempt = {_parsed(one.name)[1:3]: one.run_id for one in found if one.run_id}
    found = [replace(one, run_id=one.run_id or run_of_attempt.get(_parsed(one.name)[1:3], "")) for one in found]
    # If all checkpoints are of one run, incomplete ones without a run id are sorted as part of that run.
    runs = {one.run_id for one in found if one.complete}
    only = next(iter(runs)) if len(runs) == 1 else ""
    run_of = {one.name: one.run_id if one.complete or one.run_id else only for one in found}
    newest: dict[str, float] = {}
    for one in found:
        newest[run_of[one.name]] = max(one.created_at, newest.get(run_of[one.name], 0.0))

    def age(one: Found) -> tuple[object, ...]:
        _, attempt, _, again = _parsed(one.name)
        return newest[run_of[one.name]], run_of[one.name], attempt, one.step, again, one.created_at

    return sorted(found, key=age, reverse=True)


def find(folder: Folder, name: str) -> Found:
    """Returns one checkpoint by name; read errors become its fault. Raises nothing."""
    path = os.path.join(folder.path, name)
    try:
        manifest = _read_again(folder, name)
    except BadCheckpoint as error:
        return _incomplete(folder, name, error.fault, str(error))
    except NotPlainFile as error:
        return _incomplete(folder, name, Fault.UNKNOWN_FORMAT, str(error))
    except OSError as error:
        text = f"it cannot be read: {described(error, os.path.join(path, MANIFEST))}"
        return _incomplete(folder, name, Fault.UNREADABLE, text)
    size = sum(file["bytes"] for file in manifest["files"].values())
    found = Found(
        name,
        path,
        manifest["step"],
        manifest["epoch"],
        manifest["created_at"],
        size,
        manifest["attempt"],
        manifest["world_size"],
        manifest["run_id"],
        files=manifest["files"],
    )
    if found.is_set_aside:
        return replace(found, fault=Fault.DAMAGED, problem="set aside: it was found damaged")
    return found


def _incomplete(folder: Folder, name: str, fault: Fault, problem: str) -> Found:
    path = os.path.join(folder.path, name)
    step, attempt, _, _ = _parsed(name)
    size, changed_at, run_id = 0, 0.0, ""
    try:
        changed_at = folder.changed_at(name)
        size = sum(folder.files(name).values())
        run_id = folder.run_of(name)
    except FileNotFoundError:
        pass
    except OSError as error:
        # The checkpoint's age and run id are unknown, so it is marked unreadable and never removed.
        fault, problem = Fault.UNREADABLE, f"it cannot be read: {described(error, path)}"
    if name.endswith(ASIDE) and fault is not Fault.UNREADABLE:
        fault, problem = Fault.DAMAGED, f"set aside: {problem}"
    return Found(name, path, step, 0, changed_at, size, attempt, 0, run_id, fault, problem)


# -- the manifest -----------------------------------------------------------------------------------------------------


def _read_again(folder: Folder, name: str) -> dict[str, Any]:
    """Reads the manifest again if it is damaged, because a byte may have changed in transit. Raises as
    `read_manifest`.
    """
    for _ in range(folder.num_reads - 1):
        try:
            return read_manifest(folder, name)
        except BadCheckpoint as error:
            if error.fault is not Fault.DAMAGED:
                raise
    return read_manifest(folder, name)


def read_manifest(folder: Folder, name: str) -> dict[str, Any]:
    """Reads the manifest and checks every field. Raises BadCheckpoint with its fault, or OSError."""
    try:
        data = read_small(folder, name, MANIFEST)
    except FileNotFoundError:
        raise BadCheckpoint("it has no manifest: its save was not finished", Fault.UNFINISHED) from None
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(f"its manifest cannot be parsed: {error}") from None
    sealed = _SEAL.match(data)
    if sealed is not None and checksum(sealed[1]).encode() != sealed[2]:
        raise BadCheckpoint(f"its manifest is damaged: its {CHECKSUM} is not that of its content")
    if not isinstance(manifest, dict):
        raise UnknownFormat("its manifest is not an object")
    if manifest.get("format") != FORMAT:
        raise UnknownFormat(f"it has format {manifest.get('format')!r}, and this version of Windlass reads {FORMAT}")
    if sealed is None:
        raise BadCheckpoint(f"its manifest is damaged: its {CHECKSUM} is missing")
    # The checksum is right, so invalid fields below were written by another program and are not damage.
    _check_fields(manifest)
    if _parsed(name)[2] and _parsed(name)[0] != manifest["step"]:
        raise UnknownFormat(f"its manifest is of step {manifest['step']}")
    return manifest


def seal(manifest: dict[str, Any]) -> bytes:
    """Returns the bytes of the manifest; its last entry is the checksum of everything before it."""
    content = json.dumps(manifest, indent=1).encode()[: -len(b"\n}")]
    return content + f',\n "{CHECKSUM}": "{checksum(content)}"\n}}'.encode()


def _check_fields(manifest: dict[str, Any]) -> None:
    for key, least in (("step", 0), ("epoch", 0), ("world_size", 1), ("attempt", 0)):
        if not _is_count(manifest.get(key), least):
            raise UnknownFormat(f"its manifest has {key} {manifest.get(key)!r}")
    if type(manifest.get("created_at")) not in (int, float) or not 0 <= manifest["created_at"] < 1e12:
        raise UnknownFormat(f"its manifest has created_at {manifest.get('created_at')!r}")
    listed, num_ranks = manifest.get("files"), manifest["world_size"]
    if not isinstance(manifest.get("run_id"), str) or not isinstance(listed, dict):
        raise UnknownFormat("its manifest lacks run_id or files")
    if len(listed) != 2 * num_ranks or any(name not in listed for rank in range(num_ranks) for name in names_of(rank)):
        raise UnknownFormat(f"its manifest does not list the files of its {num_ranks} ranks")
    for name, facts in listed.items():
        if not isinstance(facts, dict) or not _is_count(facts.get("bytes")) or type(facts.get(CHECKSUM)) is not str:
            raise UnknownFormat(f"its manifest gives {name} no length or no {CHECKSUM}")


def _is_count(value: object, least: int = 0) -> bool:
    return type(value) is int and least <= value < 1 << 60


def names_of(rank: int) -> tuple[str, str]:
    """Returns the file names of a rank: its tensors, and its state with the index of the tensors."""
    return f"rank-{rank}.safetensors", f"rank-{rank}.json"


def read_small(folder: Folder, checkpoint: str, file: str) -> bytes:
    """Reads a small file. Raises OSError, and BadCheckpoint if the file is too large."""
    with folder.open(checkpoint, file) as opened:
        size = opened.seek(0, os.SEEK_END)
        if size > JSON_BYTES:
            raise BadCheckpoint(f"{file} has {size} bytes, more than such a file may have")
        opened.seek(0)
        return opened.read()


# -- verifying --------------------------------------------------------------------------------------------------------


def examine(found: Found) -> list[Problem]:
    """Reads every byte of a checkpoint and returns its problems; an empty list means verified."""
    if not found.files:
        return [Problem(found.fault, found.problem)] if found.fault is not None else []
    folder = open_folder(os.path.dirname(found.path))
    problems = [verify_file(folder, found, file) for file in sorted(found.files)]
    wrong = [problem for problem in problems if problem is not None]
    if found.is_set_aside and not wrong:
        undo = folder.undo_words(found.name)
        return [Problem(Fault.DAMAGED, f"set aside as damaged, and verified now; to use it again, {undo}")]
    return wrong


def verify_file(folder: Folder, found: Found, file: str, retry: Retry | None = None) -> Problem | None:
    """Verifies one file and returns its problem, or None. `retry` repeats reads that fail in the file system."""
    path = os.path.join(found.path, file)
    retry = retry or Retry(0)
    try:
        for _ in range(folder.num_reads - 1):
            problem = retry.call(lambda: _compare(folder, found, file), path)
            if problem is None or problem.fault is not Fault.DAMAGED:
                return problem
        return retry.call(lambda: _compare(folder, found, file), path)
    except NotPlainFile as error:
        return Problem(Fault.UNKNOWN_FORMAT, str(error))
    except OSError as error:
        return Problem(Fault.UNREADABLE, f"{file} cannot be read: {described(error, path)}")


def _compare(folder: Folder, found: Found, file: str) -> Problem | None:
    """Compares length and checksum of a file with the manifest. Raises OSError."""
    wanted = found.files[file]
    value = 0
    try:
        with folder.open(found.name, file) as opened:
            size = opened.seek(0, os.SEEK_END)
            if size != wanted["bytes"]:
                return Problem(Fault.DAMAGED, f"{file} has {size} bytes where the manifest says {wanted['bytes']}")
            opened.seek(0)
            buffer = memoryview(bytearray(PIECE_BYTES))
            while length := opened.readinto(buffer):  # type: ignore[attr-defined]
                value = zlib.crc32(buffer[:length], value)
    except FileNotFoundError:
        if _is_gone(folder, found):  # a checkpoint that was unmounted or removed as a whole is not damaged
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), os.path.join(found.path, file)) from None
        return Problem(Fault.DAMAGED, f"{file} is missing")
    if f"{value:08x}" != wanted[CHECKSUM]:
        return Problem(Fault.DAMAGED, f"{file} is damaged: its {CHECKSUM} is not the manifest's")
    return None


def _is_gone(folder: Folder, found: Found) -> bool:
    """Whether the manifest that was read before has disappeared. Raises OSError."""
    try:
        return MANIFEST not in folder.files(found.name)
    except FileNotFoundError:
        return True


def checksum(data: bytes) -> str:
    """Returns the checksum of a small file in the form used by manifests."""
    return f"{zlib.crc32(data):08x}"
