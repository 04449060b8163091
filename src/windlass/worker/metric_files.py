"""Finds the files into which a script writes metrics, and reads the values that are new since the last scan.

The formats are event files of TensorBoard, `trainer_state.json` of transformers, `metrics.csv` of Lightning, and CSV
logs such as those of Keras and Ultralytics. Links, files in caches and hidden folders, and values that files had before
the attempt are skipped. Standard library of Python 3.9 only.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from windlass.worker import process
from windlass.worker.collect import CACHE_VARIABLES, CACHES, KERNEL, MARKS
from windlass.worker.event_file import Damaged, EventFile, Point
from windlass.worker.metric_tables import CSV_NAME, CsvFile, TrainerStates
from windlass.worker.metrics import NAME_CHARS

if TYPE_CHECKING:
    Reader = EventFile | CsvFile | TrainerStates

MAX_DEPTH = 6
"""Maximum depth of folders that are searched."""
MAX_ENTRIES = 20_000
"""Maximum number of files and folders that one scan visits."""
MAX_FOLDER_ENTRIES = 5_000
"""Maximum number of entries of one folder that are visited; larger folders contain data sets."""
MAX_FILES = 1_000
"""Maximum number of new files with metrics."""
MAX_SERIES = 500
"""Maximum number of curves of one attempt."""
MAX_POINTS = 100_000
"""Maximum number of values of one scan; the next scan continues."""
OLD_SECONDS = 60.0
"""A file that last changed at least this many seconds before the attempt is a copy of an old file. A smaller difference
may come from clocks that differ."""
EVENT_FILE = "events.out.tfevents."
TRAINER_STATE = "trainer_state.json"
SPLITS = ("train", "training", "validation", "valid", "val", "eval", "test")
"""Names of folders into which one training writes event files with the same tags, as Keras does."""
Signature = tuple[int, int, int]


class FilePoint(NamedTuple):
    """One value of a metric, and the kind of file that has it."""

    source: str
    """Kind of the file: `tensorboard`, `trainer`, `lightning` or `csv`."""
    point: Point


class _File:
    """A file with metrics, and how far it was read."""

    def __init__(self, path: str, reader: Reader) -> None:
        self.path = path
        self.reader = reader
        self.folder = os.path.dirname(path)
        if isinstance(reader, TrainerStates):
            self.folder = _trainer_folder(path)
        self.prefix = ""
        """Prefix of the names of the file's metrics."""
        self.signature: Signature | None = None
        """Inode, size and modification time of the version that was read last."""
        self.num_reads = 0
        """Number of times that this version was read to its end."""
        self.is_ended = False
        """Whether the file is not read any further, because it is damaged or belongs to another program."""


class MetricFiles:
    """Files with metrics in the folders of one attempt."""

    def __init__(self, folders: Iterable[str], skipped: Iterable[str], since: float) -> None:
        """`folders` are searched, except for those in `skipped`. `since` is the start of the attempt, in Unix
        seconds.
        """
        roots = dict.fromkeys(os.path.realpath(one) for one in folders if one and "://" not in one)
        self._roots = [root for root in roots if root != "/"]
        self._skipped = {os.path.realpath(one) for one in skipped if one} | set(KERNEL)
        self._since = since
        self._files: dict[str, _File] = {}
        self._states: dict[str, TrainerStates] = {}
        """Output folder of a Trainer → reader of its states, which knows the entries that were read."""
        self._owners: dict[tuple[str, str], str] = {}
        """Source and name of a metric → folder whose files have the metric."""
        self._max_files = MAX_FILES
        self._give_up = 0.0
        self._start = 0
        """Number of files that the next scan reads last, so that no file with a backlog delays the others."""
        self.is_behind = False
        """Whether the last scan ended by its limits, and not at the ends of the files."""
        self.notes: list[str] = []
        """Messages about files that are not read, each once."""

    def skip_existing(self, seconds: float) -> None:
        """Skips the values that files have now, which another run or attempt wrote. Searches for at most `seconds`."""
        self._give_up = time.monotonic() + seconds
        found = [(status.st_mtime, path, status) for path, status in self._search()]
        for _, path, status in sorted(found, key=lambda one: -one[0]):  # the newest state of a Trainer has all entries
            self._add(path, status, is_old=True)
        self._max_files = len(self._files) + MAX_FILES

    def scan(self, seconds: float) -> list[FilePoint]:
        """Returns the values that were written since the last scan. Reads for at most about `seconds`.

        Values that are left are returned by the next scan, and set `is_behind`; the next scan begins with other files.
        Damaged files are named in `notes`.
        """
        self._give_up = time.monotonic() + seconds
        self.is_behind = False
        found: list[FilePoint] = []
        known = [*enumerate(self._files.values(), 1)]
        for position, file in [*known[self._start :], (0, None), *known[: self._start]]:
            if file is not None:
                self._read(file, found)
            else:
                self._read_new(found)
            if self._is_over(found):
                self._start, self.is_behind = position, True
                break
        return found

    def _read_new(self, found: list[FilePoint]) -> None:
        """Searches for new files, and adds their values to `found`."""
        for path, status in self._search():
            if path not in self._files and len(self._files) < self._max_files and not self._is_over(found):
                self._add(path, status, is_old=status.st_mtime < self._since - OLD_SECONDS)
                self._read(self._files[path], found)

    # -- folders ------------------------------------------------------------------------------------------------------

    def _search(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yields the regular files whose names are those of files with metrics, in breadth-first order.

        Ends at the limits of number, depth and time. Links are not followed.
        """
        num_entries = 0
        for root in self._roots:
            waiting = deque([(root, 0)])
            while waiting and num_entries < MAX_ENTRIES and not self._is_over():
                folder, depth = waiting.popleft()
                entries = _entries(folder)
                num_entries += len(entries)
                if depth and any(entry.name in MARKS for entry in entries):
                    continue
                for entry in entries:
                    with contextlib.suppress(OSError):  # the file was removed
                        if entry.is_dir(follow_symlinks=False):
                            if depth < MAX_DEPTH and not self._is_skipped(entry):
                                waiting.append((entry.path, depth + 1))
                        elif _has_name_of_metrics(entry.name) and entry.is_file(follow_symlinks=False):
                            yield entry.path, entry.stat(follow_symlinks=False)

    def _is_skipped(self, folder: os.DirEntry[str]) -> bool:
        is_root = folder.path in self._roots  # searched separately
        return is_root or bool(CACHES.fullmatch(folder.name)) or folder.path in self._skipped

    def _is_over(self, found: list[FilePoint] | None = None) -> bool:
        return time.monotonic() > self._give_up or len(found or ()) >= MAX_POINTS

    # -- files --------------------------------------------------------------------------------------------------------

    def _add(self, path: str, status: os.stat_result, *, is_old: bool) -> None:
        """Adds a file. Of an old file, only values that are appended later are read."""
        name = os.path.basename(path)
        if name.startswith(EVENT_FILE):
            reader: Reader = EventFile(status.st_size if is_old else 0)
        elif name == TRAINER_STATE:
            is_known = _trainer_folder(path) in self._states
            reader = self._states.setdefault(_trainer_folder(path), TrainerStates())
        else:
            reader = CsvFile(name)
        file = self._files[path] = _File(path, reader)
        if is_old:
            file.signature, file.num_reads = _signature(status), 2
            if isinstance(reader, CsvFile) or (isinstance(reader, TrainerStates) and not is_known):
                with contextlib.suppress(OSError, Damaged), _opened(path) as opened:
                    reader.skip(opened)
        elif isinstance(reader, EventFile):
            file.prefix = self._prefix(file)
            file.is_ended = _is_of_other_program(name)

    def _prefix(self, file: _File) -> str:
        """Returns the prefix of the tags of an event file. If its folder is below that of another event file, it is the
        path between them, because `SummaryWriter.add_scalars` writes the same tag into subfolders. Otherwise it is the
        name of the folder if that is one of `SPLITS`, or else empty.
        """
        others = {one.folder for one in self._files.values() if isinstance(one.reader, EventFile) and one is not file}
        above = [one for one in others if file.folder.startswith(os.path.join(one, ""))]
        if above:
            return f"{os.path.relpath(file.folder, min(above, key=len))}/"
        name = os.path.basename(file.folder)
        return f"{name}/" if name in SPLITS else ""

    def _read(self, file: _File, found: list[FilePoint]) -> None:
        """Adds the new values of a file to `found`. Each version of a file is read twice, because the first read may
        happen while the file is being written.
        """
        if file.is_ended or self._is_over(found):
            return
        try:
            signature = _signature(os.lstat(file.path))
            if signature != file.signature:
                file.signature, file.num_reads = signature, 0
            if file.num_reads < 2:
                with _opened(file.path) as opened, contextlib.closing(file.reader.read(opened)) as batches:
                    for points in batches:
                        self._take(file, points, found)
                        if self._is_over(found):
                            return
                file.num_reads += 1
        except Damaged as problem:
            file.num_reads += 1
            if file.num_reads == 2:
                self._note(file, str(problem))
        except OSError:
            pass  # the file was removed or is not readable

    def _note(self, file: _File, problem: str) -> None:
        file.is_ended = not isinstance(file.reader, TrainerStates)  # a Trainer writes its state anew
        path = printable(file.path)
        self.notes.append(f"metrics in {path} are not read any further: {problem}")

    def _take(self, file: _File, points: Iterable[Point], found: list[FilePoint]) -> None:
        for point in points:
            source = file.reader.source
            name = self._name(file, source, point.name)
            if name is not None:
                found.append(FilePoint(source, point._replace(name=name)))

    def _name(self, file: _File, source: str, name: str) -> str | None:
        """Returns the name of a metric in a file. A name that files of another folder already have gets the name of its
        folder as a prefix. None for an invalid name, and beyond MAX_SERIES.
        """
        name = file.prefix + name
        for full in (name, f"{os.path.basename(file.folder)}/{name}"):
            owner = self._owners.get((source, full))
            if owner is None and len(self._owners) < MAX_SERIES and _is_name(full):
                owner = self._owners[source, full] = file.folder
            if owner == file.folder:
                return full
        return None


def folders_of(env: Mapping[str, str], code: str, skipped: Iterable[str] = ()) -> tuple[list[str], list[str]]:
    """Returns the folders of a run to search for metrics, and the folders below them to skip: data, caches, and
    `skipped`.

    `env` is the environment of the ranks, and `code` their working folder.
    """
    searched = [env.get("WINDLASS_OUTPUT_DIR", ""), env.get("WINDLASS_CHECKPOINT_DIR", ""), code]
    names = [*CACHE_VARIABLES, *(name for name in env if name.startswith("WINDLASS_DATA_"))]
    return searched, [os.path.join(code, one) for one in (*skipped, *(env[name] for name in names if env.get(name)))]


def printable(text: str) -> str:
    """Returns a text, such as the name of a file, with unprintable characters as escapes."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _is_name(text: str) -> bool:
    return len(text) <= NAME_CHARS and text.isprintable() and bool(text.strip())


def _has_name_of_metrics(name: str) -> bool:
    return name.startswith(EVENT_FILE) or name == TRAINER_STATE or CSV_NAME.fullmatch(name) is not None


def _is_of_other_program(name: str) -> bool:
    """Whether the writer of an event file is a live process that is not a descendant of this one, such as a rank of
    another run in the same folder. The name of the file contains the host and the process id of its writer.
    """
    found = re.fullmatch(r"events\.out\.tfevents\.\d+\.(.+)\.(\d{1,9})\.\d+(?:\.v2)?", name)
    if found is None or found[1] != os.uname().nodename:
        return False
    pid, me = int(found[2]), os.getpid()
    while pid not in (0, 1, me):
        status = process.stat(pid)
        if status is None:
            return False  # has ended, or is ending
        pid = status.parent
    return pid != me


def _trainer_folder(path: str) -> str:
    """Returns the output folder of the Trainer that has written a `trainer_state.json`."""
    folder = os.path.dirname(path)
    return os.path.dirname(folder) if re.fullmatch(r"checkpoint-\d+", os.path.basename(folder)) else folder


def _signature(status: os.stat_result) -> Signature:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """Returns the first entries of a folder; empty if it cannot be read."""
    try:
        with os.scandir(folder) as found:
            return [entry for entry, _ in zip(found, range(MAX_FOLDER_ENTRIES))]  # noqa: B905 - see Python 3.9
    except OSError:
        return []


def _opened(path: str) -> BinaryIO:
    """Opens a regular file. Raises OSError for links, pipes and devices, even if it has just replaced a file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is no regular file")
    return open(descriptor, "rb")
