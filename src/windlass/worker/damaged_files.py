"""Finds truncated files after a rank failed to load a file, such as a checkpoint that the script has chosen.

The errors of torch, safetensors and numpy do not name the file. Only the first and last bytes of files are read, and
nothing is unpickled, so damage in the middle of a file is not found.
"""

from __future__ import annotations

import itertools
import os
import re
import time
import zipfile
from collections.abc import Iterable, Iterator

from windlass.worker.file_systems import is_of_space
from windlass.worker.protocol import DamagedFile
from windlass.worker.resume import TORN, problem_of_safetensors
from windlass.worker.saved_states import ZIPPED, walk
from windlass.worker.tracebacks import plain, traceback_of

_LOADERS = (
    (r"SafetensorError|/safetensors/", (".safetensors",)),
    (r"/torch/distributed/checkpoint/", (".distcp", ".metadata")),
    (r"/joblib/numpy_pickle", (".joblib", ".pkl")),
    (r"/numpy/lib/", (".npz",)),
    (r"/torch/serialization\.py|/torch/_weights_only_unpickler\.py", ZIPPED),
    (r"BadZipFile|/zipfile(?:\.py|/)", (*ZIPPED, ".npz", ".zip")),
    (r"\bJSONDecodeError\b", (".json",)),
    (r"pickle data was truncated|Ran out of input", (".pkl", ".pickle", ".joblib", *ZIPPED)),
)
"""Patterns that identify the loading library in a traceback, each with suffixes of the library's files. The first match
counts."""
_SAVES = re.compile(r'/torch/serialization\.py", line \d+, in (?:_?save|_legacy_save)$', re.MULTILINE)
"""Matches errors while saving a file. The incomplete file is then a result of the failure, not its cause."""
_PICKLED = (".metadata", ".pkl", ".pickle", ".joblib")
_PATH = re.compile(r"/[\w.,=+@%/-]+")
_LEGACY = bytes.fromhex("80028a0a6cfc9c46f9206aa85019")
"""First bytes of files that torch wrote before it used zip archives. Numbers without an end mark follow the pickles."""
MAX_JSON_BYTES = 4 << 20
MAX_FILES, MAX_FOUND, MAX_SECONDS = 5000, 8, 2.0


def damaged_files(tail: str, folders: Iterable[str]) -> list[DamagedFile]:
    """Returns the damaged files. Files whose name or folder is in the output come first, then the newest.

    `tail` is the last output of the failed rank. The result is empty unless the rank failed while loading a file.
    Searches `folders`, to which the run writes, and paths in the output.
    """
    trace = traceback_of(tail)
    endings = next((names for loader, names in _LOADERS if re.search(loader, trace)), ())
    if not endings or is_of_space(tail) or _SAVES.search(trace):
        return []
    words = plain(tail).replace(plain(trace), "")
    named = [path for path in dict.fromkeys(_PATH.findall(words)) if os.path.exists(path)]
    found: dict[str, tuple[bool, float, str]] = {}
    for path in _files([*named, *folders], endings, time.monotonic() + MAX_SECONDS):
        try:
            problem, written_at = problem_of_end(path), os.path.getmtime(path)
        except OSError:
            continue
        if problem:
            is_named = any(part in words for part in path.split(os.sep)[-2:])
            found.setdefault(os.path.realpath(path), (is_named, written_at, problem))
    first = sorted(found, key=lambda path: found[path], reverse=True)[:MAX_FOUND]
    return [DamagedFile(path, found[path][2]) for path in first]


def _files(paths: Iterable[str], endings: tuple[str, ...], until: float) -> Iterator[str]:
    """Yields files with the suffixes `endings` among the paths and below them, within the time limit and
    `MAX_FILES`.
    """
    paths = list(paths)
    below = itertools.chain.from_iterable(walk(path, _is_skipped) for path in paths)
    for path in itertools.chain(paths, (entry.path for entry in itertools.islice(below, MAX_FILES))):
        if time.monotonic() > until:
            return
        if path.endswith(endings) and os.path.isfile(path):
            yield path


def _is_skipped(folder: os.DirEntry[str]) -> bool:
    return folder.name.startswith(".") or folder.name in ("__pycache__", "site-packages", "node_modules")


def problem_of_end(path: str) -> str:
    """Describes how the size or the end of a file shows truncation; empty if it shows none. Raises OSError."""
    size = os.path.getsize(path)
    if not size:
        return "it is empty"
    if path.endswith(".safetensors"):
        try:
            return problem_of_safetensors(path)
        except TORN as error:
            return f"its header cannot be read: {error}"
    if path.endswith(".json"):
        return _problem_of_json(path) if size <= MAX_JSON_BYTES else ""
    with open(path, "rb") as file:
        start = file.read(len(_LEGACY))
        file.seek(size - 1)
        end = file.read()
        is_cut_zip = start.startswith(b"PK\x03\x04") and not zipfile.is_zipfile(file)
    is_pickle = path.endswith(_PICKLED) and start[:1] == b"\x80" and start != _LEGACY
    is_cut = is_cut_zip or (is_pickle and end != b".")
    return f"it ends after {size:,} bytes: it is truncated" if is_cut else ""


def _problem_of_json(path: str) -> str:
    """Describes how a JSON file is truncated; empty if it is complete or does not contain JSON. Raises OSError."""
    with open(path, "rb") as file:
        text = file.read().decode("utf-8", "replace").strip("\0 \r\n\t")
    is_cut = not text or (text[0] in "{[" and text[-1] not in "}]")
    return f"it ends after {os.path.getsize(path):,} bytes: it is truncated" if is_cut else ""
