"""Finds the newest verified checkpoint of a script that saves its own, and adds the arguments to resume from it.

Nothing is unpickled.

| checkpoint | is verified if |
|---|---|
| a file of torch.save, Lightning or Keras (`.keras`) | it is a readable zip file with correct checksums |
| a `.safetensors` file | its header is readable, and the file has the length given in it |
| a folder of transformers' Trainer | it contains `trainer_state.json` and weights, and each file as above is verified |
| a folder of torch.distributed.checkpoint | it contains `.metadata`, and each file as above is verified |
| a folder of accelerate | it contains `random_states_0.pkl`, and each file as above is verified |

In a zip file without checksums, the sizes are verified.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import glob
import itertools
import json
import os
import re
import stat
import struct
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from windlass.worker.protocol import NodeSpec, ResumeSpec
from windlass.worker.saved_states import ZIPPED, walk

PLACE = "{path}"
"""Placeholder for the path of the checkpoint in resume arguments. Arguments without it leave the choice to the
script."""
STATE = "trainer_state.json"
LAST_WRITTEN = (STATE, ".metadata", "random_states_0.pkl")
"""Files that are written last, one for each kind of checkpoint folder."""
WEIGHTS = re.compile(
    r"(model|pytorch_model|adapter_model|diffusion_pytorch_model).*\.(safetensors|bin)|.*\.distcp|.*_model_states\.pt"
)
"""Names of files with weights; DeepSpeed writes `model_states.pt` files into a subfolder such as `global_step500`."""
HEADER_BYTES = 100_000_000
"""Maximum header size that the safetensors library accepts."""
TORN = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    NotImplementedError,
    MemoryError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
)
"""Exceptions that reading a damaged file may raise."""
UNREADABLE = frozenset({
    errno.EIO, errno.ESTALE, errno.EACCES, errno.EPERM, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN,
    errno.EHOSTUNREACH, errno.ENODEV, errno.ENXIO, errno.EREMOTEIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM,
})  # fmt: skip
"""Errors of the file system or of this process; such an error does not prove that the checkpoint is damaged."""
WITHOUT_ACCESS = frozenset({errno.EACCES, errno.EPERM})
PAUSES = (0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0)
"""Seconds between repeated reads of unreadable files; in total long enough for the failover of an NFS server."""

NEAR = 5
"""Maximum number of similar names that are reported if no file matches the pattern."""
MAX_COMPARED = 1000


class Choice(NamedTuple):
    """Checkpoint from which an attempt resumes."""

    path: str | None
    """Path of the checkpoint, a file or a folder; None if there is none."""
    words: tuple[str, ...]
    """Arguments that are added to the command line of every rank."""
    events: tuple[dict[str, Any], ...]
    """Checkpoint events: `refused` checkpoints with their reasons, then the `restored` checkpoint."""


def choose(request: ResumeSpec, since: float, sleep: Callable[[float], None] = time.sleep) -> Choice:
    """Chooses the newest verified checkpoint that matches `request.find`.

    The pattern is searched in `request.folder` and, if it includes a folder, also in `request.code`. Outside the run's
    own folders (`request.own`), checkpoints written before `since` (Unix seconds) are ignored, because they belong to
    other runs. If the user has requested a checkpoint (`request.named`), only this checkpoint and those written after
    `request.named_at` are considered. Raises ValueError if the requested checkpoint is not verified.

    After a file system error, which does not prove damage, reading is repeated after each of `PAUSES`. Then OSError is
    raised with the path: training must not start anew while a verified checkpoint may exist.
    """
    for pause in PAUSES:
        try:
            return _choose(request, since)
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
        sleep(pause)
    return _choose(request, since)


def _choose(request: ResumeSpec, since: float) -> Choice:
    named = request.named
    refused: list[dict[str, Any]] = []
    for path in candidates(request, since):
        if named and _written_at(path) <= request.named_at:
            break
        problem = problem_of(path)
        if not problem:
            return _chosen(request, path, refused)
        refused.append({"action": "refused", "name": _name(request, path), "reason": problem})
    if not named:
        if refused:
            reason = f"all {len(refused)} that match {request.find} are refused"
            refused.append({"action": "none-verified", "step": 0, "reason": reason})
        return Choice(None, (), tuple(refused))
    path = os.path.join(request.folder, named)
    problem = problem_of(path)
    if problem:
        raise ValueError(f"cannot resume from {named}: {problem}")
    return _chosen(request, path, refused)


def add_resume_arguments(specs: Sequence[NodeSpec]) -> list[NodeSpec]:
    """Returns the node specs of an attempt with resume arguments, the same for all ranks; see `choose`.

    Events to report are added to the spec of rank 0; in a later attempt, also the event that no checkpoint matches.
    Specs without `resume` are returned unchanged. Raises ValueError.
    """
    first = specs[0]
    if first.resume is None:
        return list(specs)
    choice = choose(first.resume, first.since)
    if choice.path is None and not choice.events and first.attempt > 1:
        choice = choice._replace(events=(missing(first.resume, first.since),))
    return [
        spec.replace(
            ranks=tuple(rank.replace(argv=(*rank.argv, *choice.words)) for rank in spec.ranks),
            found=choice.events if spec.ranks[0].rank == 0 else (),
        )
        for spec in specs
    ]


def missing(request: ResumeSpec, since: float) -> dict[str, Any]:
    """Returns the event for a pattern that no checkpoint matches: the folder that was searched, and its contents.

    In the event, `near` are the names in `folder` most similar to the pattern, `entries` is the number of all names,
    and `older` the number of matching checkpoints of other runs.
    """
    pattern = _pattern(request)
    folder = os.path.normpath(os.path.join(request.folder, _before_wildcards(pattern)))
    if not os.path.isdir(folder) and os.path.dirname(pattern):
        folder = os.path.normpath(os.path.join(request.code, _before_wildcards(pattern)))
    names = _names_in(folder)
    wanted = os.path.basename(pattern)
    near = sorted(names, key=lambda name: (-difflib.SequenceMatcher(None, wanted, name).ratio(), _natural(name)))
    event = {"action": "missing", "find": request.find, "folder": folder, "near": near[:NEAR], "entries": len(names)}
    event.update({} if os.path.isdir(folder) else {"absent": True})
    older = len(candidates(request.replace(own=()), 0.0)) if not candidates(request, since) else 0
    return {**event, "older": older} if older else event


def _pattern(request: ResumeSpec) -> str:
    """Returns the pattern `request.find` with `~` replaced by the user's home folder."""
    first, slash, rest = request.find.partition("/")
    home = os.path.expanduser(first)
    return request.find if home == first else f"{glob.escape(home)}{slash}{rest}"


def _before_wildcards(pattern: str) -> str:
    """Returns the folder part of a pattern up to its first wildcard."""
    parts = os.path.dirname(pattern).split(os.sep)
    plain = list(itertools.takewhile(lambda part: not glob.has_magic(part), parts))
    return os.sep.join(plain)


def _names_in(folder: str) -> list[str]:
    """Returns names in a folder, at most `MAX_COMPARED` to limit the time; empty for a missing folder."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in itertools.islice(entries, MAX_COMPARED)]
    except OSError:
        return []


def candidates(request: ResumeSpec, since: float) -> list[str]:
    """Returns all possible checkpoints of this run, newest first."""
    pattern = _pattern(request)
    folders = [request.folder, *([request.code] if os.path.dirname(pattern) else [])]
    found: dict[str, str] = {}
    for folder in folders:  # an absolute pattern ignores the folder
        _require_readable(os.path.join(folder, _before_wildcards(pattern)))
        for path in glob.glob(os.path.join(glob.escape(folder), pattern), recursive=True):
            if _exists(path):
                found.setdefault(os.path.realpath(path), path)
    own = tuple(os.path.join(os.path.realpath(folder), "") for folder in request.own)
    ours = [path for real, path in found.items() if real.startswith(own) or _written_at(path) > since]
    return sorted(ours, key=lambda path: (_written_at(path), _natural(path)), reverse=True)


def _require_readable(folder: str) -> None:
    """Raises OSError if a folder exists but cannot be listed; `glob` would treat it as empty."""
    try:
        os.listdir(folder)
    except OSError as error:
        if error.errno in UNREADABLE:
            raise


def _exists(path: str) -> bool:
    return _mode(path) != 0


def _is_folder(path: str) -> bool:
    return stat.S_ISDIR(_mode(path))


def _mode(path: str) -> int:
    """Returns the mode of a file; 0 if it does not exist. Raises OSError if the file system cannot be read."""
    try:
        return os.stat(path).st_mode
    except OSError as error:
        if error.errno in UNREADABLE:
            raise
        return 0


def _raise_unless_foreign(error: OSError) -> None:
    """Raises the error of a file in a checkpoint if the file system cannot be read.

    A broad pattern may also match folders without permission that are not checkpoints, such as `lost+found`.
    """
    if error.errno in UNREADABLE - WITHOUT_ACCESS:
        raise error


def problem_of(path: str) -> str:
    """Returns why a checkpoint cannot be used; empty if the checkpoint is verified. Raises OSError if it cannot be
    read.
    """
    try:
        return _problem_of_folder(path) if _is_folder(path) else _problem_of_file(path)
    except FileNotFoundError:
        return "it does not exist"
    except TORN as error:
        return _damage(error, path)


def _damage(error: BaseException, path: str) -> str:
    """Describes the damage that a read error shows. Re-raises an OSError that does not prove damage."""
    if isinstance(error, OSError) and error.errno in UNREADABLE:  # OSErrors of read and seek lack the path
        raise error if error.filename else OSError(error.errno, error.strerror, path) from error
    return str(error) or type(error).__name__


def _chosen(request: ResumeSpec, path: str, refused: list[dict[str, Any]]) -> Choice:
    event = dict[str, Any](action="restored", source="found", name=_name(request, path), bytes=sum(_sizes(path)))
    step = step_of(path)
    if step is not None:
        event["step"] = step
    if request.named and not any(PLACE in word for word in request.words):
        raise ValueError(f"cannot resume from {request.named}: checkpoint.resume has no {PLACE}, so the script chooses")
    words = tuple(word.replace(PLACE, path) for word in request.words)
    return Choice(path, words, (*refused, event))


def step_of(path: str) -> int | None:
    """Returns the step of a checkpoint from its `trainer_state.json` or its name (`step=120`); None if unknown."""
    try:
        with open(os.path.join(path, STATE)) as file:
            step = json.load(file)["global_step"]
        return step if isinstance(step, int) else None
    except (*TORN, KeyError, TypeError):
        found = re.search(r"step[=_-]?(\d{1,15})", os.path.basename(path))
        return int(found[1]) if found else None


# -- files ------------------------------------------------------------------------------------------------------------


def _problem_of_file(path: str) -> str:
    with open(path, "rb") as file:
        start = file.read(4)
    if not start:
        return "it is empty"
    if path.endswith(".safetensors"):
        return problem_of_safetensors(path)
    if start == b"PK\x03\x04" or path.endswith(ZIPPED):
        return _problem_of_zip(path, start)
    return "it cannot be verified: it is neither a torch.save nor a safetensors file"


def _problem_of_zip(path: str, start: bytes) -> str:
    if start != b"PK\x03\x04":
        return "it cannot be verified: torch.save writes zip files since torch 1.6, and this file is not one"
    with zipfile.ZipFile(path) as file:
        records = file.infolist()
        if any(record.file_size for record in records) and not any(record.CRC for record in records):
            return _problem_of_sizes(file)
        bad = file.testzip()
    return f"the checksum of {bad} in it is wrong" if bad is not None else ""


def _problem_of_sizes(file: zipfile.ZipFile) -> str:
    """Checks a file without checksums: torch.save writes zeros for them after `set_crc32_options(False)`. Returns the
    problem, or empty. Raises exceptions in `TORN`.
    """
    for record in file.infolist():
        file.open(record).close()  # raises BadZipFile unless the record's header is at its place
        end = record.header_offset + record.compress_size
        if record.file_size != record.compress_size or end > file.start_dir:
            return f"the size of {record.filename} in it is wrong"
    return ""


def problem_of_safetensors(path: str) -> str:
    """Compares the length of a safetensors file with its header. Returns the problem, or empty. Raises exceptions in
    `TORN`.
    """
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > min(HEADER_BYTES, size - 8):
            return f"it ends within its header, after {size} bytes"
        header = json.loads(file.read(length))
    ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
    expected = 8 + length + max(ends, default=0)
    return f"it has {size} bytes, and should have {expected}" if size != expected else ""


# -- folders ----------------------------------------------------------------------------------------------------------


def _problem_of_folder(path: str) -> str:
    names = sorted(os.path.relpath(name, path) for name in _files(path))
    if not any(name in LAST_WRITTEN for name in names):
        return f"it cannot be verified: there is no {' or '.join(LAST_WRITTEN)}"
    if STATE in names and not any(WEIGHTS.fullmatch(os.path.basename(n)) for n in names):
        return "there are no weights"
    for name in names:
        try:
            problem = _problem_within(path, name)
        except TORN as error:
            problem = _damage(error, os.path.join(path, name))
        if problem:
            return f"{name}: {problem}"
    return ""


def _problem_within(folder: str, name: str) -> str:
    path = os.path.join(folder, name)
    if name.endswith(".index.json"):
        with open(path) as file:
            shards = set(json.load(file)["weight_map"].values())
        missing = sorted(shard for shard in shards if not _exists(os.path.join(os.path.dirname(path), shard)))
        return f"it names {missing[0]}, which does not exist" if missing else ""
    if name == STATE:
        with open(path) as file:
            return "" if isinstance(json.load(file), dict) else "it has no state"
    if name.endswith((".safetensors", *ZIPPED)):
        return _problem_of_file(path)
    return ""


def _files(path: str) -> Iterator[str]:
    if not _is_folder(path):
        yield path
        return
    for entry in walk(path, on_error=_raise_unless_foreign):
        if not os.path.isdir(entry.path):
            yield entry.path


def _sizes(path: str) -> Iterator[int]:
    for name in _files(path):
        with contextlib.suppress(OSError):  # dangling links are skipped
            yield os.path.getsize(name)


def _written_at(path: str) -> float:
    """Returns the modification time of a checkpoint in Unix seconds; for a folder, the newest time of its files."""
    times = [0.0]
    for name in _files(path):
        try:
            times.append(os.path.getmtime(name))
        except OSError as error:  # a dangling link is skipped
            _raise_unless_foreign(error)
    return max(times)


def _natural(path: str) -> Sequence[tuple[int, str]]:
    """Returns a sort key that puts `checkpoint-900` before `checkpoint-1000`."""
    return [(int(digits or 0), text) for text, digits in re.findall(r"(\D*)(\d*)", path)]


def _name(request: ResumeSpec, path: str) -> str:
    """Returns the path relative to the checkpoint folder, or the whole path for a checkpoint outside that folder."""
    inside = os.path.join(request.folder, "")
    return path[len(inside) :] if path.startswith(inside) else path
