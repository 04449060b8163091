"""Record store: a SQLite file for events and statuses of all runs, and a folder for each run's logs and results."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import math
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from windlass.errors import NoSuchRun, StoreError, StoreFull, UnsupportedVersion
from windlass.runs import events, naming, read_only
from windlass.runs.clock import Clock
from windlass.runs.events import (
    RECORD_VERSION,
    CheckpointChanged,
    CodeFiles,
    ConditionChanged,
    DataStaged,
    E,
    Entry,
    Event,
    Json,
    Machine,
    OutputsCollected,
    OutputsUploaded,
    Progress,
    RootCause,
    RunEnding,
)
from windlass.runs.filesystem import is_on_network
from windlass.runs.machine import this_machine
from windlass.runs.phase import Phase
from windlass.runs.private import RECORD, prepare
from windlass.runs.record import (
    About,
    Attempt,
    Dropped,
    Files,
    RankState,
    Status,
    Supervision,
    Times,
    advance,
    created,
)
from windlass.runs.trash import Trash, remove
from windlass.runs.warnings import RunWarning
from windlass.worker.reserve import FULL_ERRORS, Reserve
from windlass.worker.values import Value

if TYPE_CHECKING:
    from windlass.plan.plan import Plan

SCHEMA: Final = """
    CREATE TABLE runs (
        id TEXT PRIMARY KEY,
        created_at REAL NOT NULL,
        ended_at REAL,
        version INTEGER NOT NULL,
        phase TEXT NOT NULL,
        status TEXT NOT NULL,
        progress TEXT,
        plan TEXT NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX runs_by_age ON runs (created_at DESC);
    CREATE INDEX runs_unfinished ON runs (created_at DESC) WHERE ended_at IS NULL;
    CREATE TABLE events (
        run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        seq INTEGER NOT NULL,
        time REAL NOT NULL,
        kind TEXT NOT NULL,
        data TEXT NOT NULL,
        PRIMARY KEY (run_id, seq)
    ) WITHOUT ROWID;
"""
SCHEMA_VERSION: Final = 2
"""Version of the tables. A file with another version is not opened."""
BUSY_SECONDS: Final = 30.0
RESERVE_BYTES: Final = 512 << 10
"""Size of the reserve file in the home, whose space is used on a full disk to record the ends of runs. The size
suffices for several ends."""
NOTE: Final = "note"
"""File in the folder of a run with the user's note."""
NOTE_CHARS: Final = 4000
"""Maximum length of a note."""
OUTPUT: Final = "output"
OUTPUT_DIGEST: Final = "output.sha256"
"""File in the folder of a cluster run with the digest of its outputs. The file exists once the outputs were fetched."""
LEFTOVERS: Final = "unfinished"
"""File in the folder of a run while its engine has not completed the clean-up at the end."""
URGENT: Final = (
    events.StopRequested,
    events.RootCause,
    events.NodeLost,
    events.AttemptEnded,
    events.RunEnding,
    events.RunEnded,
)
"""Events for which the reserve is released, because without them an ended run would be displayed as running."""
PROBE_BYTES: Final = 64 << 10
MAX_EARLY: Final = 8
"""How often the reserve is used during an attempt, for exit codes and dropped log lines, until there is space again."""
LOCK_RETRIES: Final = (0.005,) * 10
"""Pauses in seconds between tries to acquire a run's lock. `is_held` takes the lock for microseconds, which must not
make a writer fail."""


def default_home(environ: Json) -> Path:
    """Returns the folder of this user's records: `$WINDLASS_HOME`, else `$XDG_DATA_HOME/windlass`, else
    `~/.local/share`.

    Raises StoreError if the path needs the user's home folder and the user has none.
    """
    if home := environ.get("WINDLASS_HOME"):
        return _expanded(home).absolute()
    data = environ.get("XDG_DATA_HOME") or _expanded(environ.get("HOME") or "~") / ".local" / "share"
    return Path(data) / "windlass"


def _expanded(path: str) -> Path:
    found = os.path.expanduser(path)
    if found.startswith("~"):
        raise StoreError(
            f"the folder of the records cannot be found: no home folder is known for {path}",
            "set WINDLASS_HOME to a folder",
        )
    return Path(found)


class Store:
    """Records of one user. Any number of processes may read; only the process that holds a run's lock writes to it."""

    def __init__(self, home: Path | str, machine: Machine | None = None) -> None:
        """Opens the record in `home`, creating it if necessary. Raises StoreError, UnsupportedVersion or StoreFull.

        If the home is not writable, the record is opened for reading, and writes raise StoreError. `machine` is the
        machine that this process runs on.
        """
        # The path is made absolute because the program may change its working folder.
        home = self.home = Path(home).absolute()
        self.machine = this_machine(os.environ) if machine is None else machine
        self.reserve = Reserve(str(home / "reserve"), RESERVE_BYTES, is_shared=True)
        self._trash = Trash(home)
        with _border(home):
            self.is_read_only = read_only.is_read_only(home / RECORD)
            if not self.is_read_only:
                prepare(home)
            self._on_network = is_on_network(home)
            try:
                self._open()
            except sqlite3.DatabaseError as error:
                # Even for reading, SQLite needs space for the index of its WAL.
                if not (_is_full(error, home) and self.reserve.release()):
                    raise
                self._open()
        for run_id in self._trash.ids():  # for these runs, a deletion was killed before it had removed the rows
            with contextlib.suppress(StoreError):
                self._forget(run_id)

    def _open(self) -> None:
        connect = read_only.connect if self.is_read_only else sqlite3.connect
        # Threads may use the connection in turn, for example to read an iterator over events.
        options: dict[str, Any] = {"isolation_level": None, "check_same_thread": False}
        self._db: sqlite3.Connection = connect(self.home / RECORD, timeout=BUSY_SECONDS, **options)
        try:
            self._make_tables()
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Closes the file; the object cannot be used afterwards."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def has_leftovers(self, run_id: str) -> bool:
        """Whether the engine's clean-up after the run is incomplete, such as a job that may still run. Raises OSError
        if the folder of the run cannot be read.
        """
        # Path objects would take too long for a list of ten thousand runs.
        try:
            os.stat(f"{self.home}/runs/{run_id}/{LEFTOVERS}")  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def run_dir(self, run_id: str) -> Path:
        """Returns the folder of a run: logs, attempts, control files and, by default, its outputs."""
        return self.home / "runs" / run_id

    # -- writing ------------------------------------------------------------------------------------------------------

    def create(
        self, run_id: str, *, name: str, target: str, output_dir: str, plan: str, time: float,
        restarts: int | None = None, user: str = "", supervisor: str = "", labels: Json | None = None,
    ) -> RunWriter:  # fmt: skip
        """Creates the record of a run and holds its lock. Raises StoreError.

        `plan` is the plan as JSON text, `restarts` the number of allowed restarts; `user` and `supervisor` as in a
        status.
        """
        run_dir = self.run_dir(run_id)
        if not (self.reserve.has_space() or self.reserve.make(margin_bytes=0)):
            raise _full(self.home)  # without the reserve, the end of the run might not be recorded on a full disk
        with _border(self.home):
            run_dir.mkdir(mode=0o700, parents=True)
            known: dict[str, Any] = {"version": RECORD_VERSION} | ({} if restarts is None else {"restarts": restarts})
            known |= {"supervisor": supervisor} if supervisor else {"machine": self.machine}
            known |= {"labels": labels} if labels else {}
            first = events.Created(run_id, name, target, output_dir, **known, user=user).event(1, time)
            status = created(first)
            lock = None
            try:
                lock = self._lock(run_id)
                if lock is None:
                    raise StoreError(f"the new run {run_id} is locked by another process")
                with self._transaction():
                    self._insert_run(status, plan)
                    self._insert(run_id, first)
            except BaseException:
                if lock is not None:
                    os.close(lock)
                remove(run_dir)
                raise
        return RunWriter(self, status, lock)

    def writer(self, run_id: str, lock: int | None = None) -> RunWriter | None:
        """Returns the writer of an existing run; None while another process holds its lock.

        `lock` is a descriptor of the run's lock, inherited from the process that held it.
        """
        held = lock
        with _border(self.home):
            for pause in (0.0, *LOCK_RETRIES) if lock is None else ():
                time.sleep(pause)
                if (held := self._lock(run_id)) is not None:
                    break
        return None if held is None else RunWriter(self, self.status(run_id, with_progress=False), held)

    def is_held(self, run_id: str) -> bool:
        """Whether a process is writing to this run now."""
        with _border(self.home):
            # With a shared lock, two processes that only test the lock do not block each other.
            lock = self._lock(run_id, fcntl.LOCK_SH)
        if lock is None:
            return True
        os.close(lock)
        return False

    def append(self, after: Status, added: Sequence[Event], plan: str | None = None) -> None:
        """Writes events of a run, the status after them, and its new plan if there is one, in one transaction.

        Only a `RunWriter` calls this method.
        """
        with _border(self.home), self._transaction():
            for event in added:
                self._insert(after.id, event)
            self._update(after, plan)

    def copy(self, run_id: str, history: Sequence[Event], plan: str | None = None) -> Status:
        """Imports the record of a run that another store writes: its events from any number on, in order.

        `plan` is required for a run that this store does not contain yet, and otherwise replaces its plan. Events that
        this store already contains are ignored. Raises StoreError, also for events that no supervisor writes, and
        UnsupportedVersion.
        """
        if not history:
            raise StoreError(f"the record of {run_id} has no events")
        with _border(self.home), _readable(run_id):
            self.run_dir(run_id).mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._transaction():
                if self._one("SELECT 1 FROM runs WHERE id = ?", run_id) is None:
                    if isinstance(first := history[0].entry, events.Created):
                        _require_readable(UnreadableRun(run_id, first.version))
                    status = created(history[0])
                    self._insert_run(status, plan or "{}")
                    self._insert(run_id, history[0])
                else:
                    status = _load(*self._of_run(run_id, "status"))
                for event in history:
                    if event.seq > status.last_seq:
                        status = advance(status, event)
                        self._insert(run_id, event)
                self._update(status, plan)
        return status

    def _update(self, status: Status, plan: str | None) -> None:
        self._db.execute(
            "UPDATE runs SET phase = ?, ended_at = ?, status = ? WHERE id = ?",
            (status.phase.value, status.times.ended_at, _dump(status), status.id),
        )
        if plan is not None:
            self._db.execute("UPDATE runs SET plan = ? WHERE id = ?", (plan, status.id))

    def set_progress(self, run_id: str, progress: Json) -> None:
        """Overwrites the newest progress. Its history is in the less frequent `progress` events."""
        with _border(self.home):
            self._db.execute("UPDATE runs SET progress = ? WHERE id = ?", (json.dumps(progress), run_id))

    def copy_progress(self, run_id: str, progress: Json) -> None:
        """Imports progress of another store, unless another process has imported newer progress meanwhile."""
        at = progress.get("at")
        with _border(self.home):
            self._db.execute(
                "UPDATE runs SET progress = ? WHERE id = ? AND coalesce(json_extract(progress, '$.at'), 0) <= ?",
                (json.dumps(progress), run_id, at if isinstance(at, int | float) else 0.0),
            )

    def write_note(self, run_id: str, text: str) -> None:
        """Replaces the note on a run; an empty text removes it. Raises StoreError."""
        path = self.run_dir(run_id) / NOTE
        with _border(self.home):
            if not text:
                path.unlink(missing_ok=True)
                return
            new = path.with_name(f"{NOTE}.new")
            new.touch(mode=0o600)
            # An argument may contain invalid bytes of the caller's locale. The note keeps the bytes.
            new.write_text(f"{text}\n", encoding="utf-8", errors="surrogateescape")
            new.replace(path)

    def delete(self, run_id: str) -> None:
        """Removes a run's row, events and folder. The caller ensures that no process writes to the run.

        Raises StoreError. A deletion that is killed is completed by a later command; see `trash.py`.
        """
        self._trash.put(self.run_dir(run_id))
        try:
            self._forget(run_id)
        except StoreFull:  # the run's own files may fill the disk, so they are removed first
            self._trash.drain(run_id)
            self._forget(run_id)
        remove(self.run_dir(run_id))
        self.empty_trash()

    def empty_trash(self) -> None:
        """Removes the files of runs whose deletion was killed."""
        self._trash.empty()

    def _forget(self, run_id: str) -> None:
        if self._one("SELECT 1 FROM runs WHERE id = ?", run_id) is None:
            return
        with _border(self.home), self._transaction():
            self._db.execute("DELETE FROM events WHERE run_id = ?", (run_id,))
            self._db.execute("DELETE FROM runs WHERE id = ?", (run_id,))

    def host_elsewhere(self, status: Status) -> str | None:
        """Returns the host name of the machine that supervises a run; None if it is this machine."""
        if status.supervision.machine is None or self.machine.keeps(status.supervision.machine):
            return None
        return status.supervision.machine.host or "another machine"

    # -- reading ------------------------------------------------------------------------------------------------------

    def find(self, prefix: str | None = None) -> str:
        """Returns the run id for `prefix`, resolved by `naming.choose`; without a prefix the newest run.

        Runs of services, such as notebooks, are found by their ids and only if no other run matches. Raises NoSuchRun.
        """
        from windlass.spec.labels import SERVICE_LABEL  # imported late: a supervisor in a cluster has no windlass.spec

        is_service = f"(instr(status, '\"{SERVICE_LABEL}\":') > 0)"
        if prefix is None:
            newest = f"SELECT id FROM runs WHERE NOT {is_service} ORDER BY created_at DESC, id LIMIT 1"
            row = self._one(newest)
            if row is None:
                raise NoSuchRun("there is no run yet", "start one: windlass run train.py")
            return str(row[0])
        if not prefix:  # an empty name, as of an unset shell variable, must not select the newest run
            raise NoSuchRun("the run id is empty", "windlass ps --all lists all ids")
        prefix = prefix.encode(errors="replace").decode()  # an argument may contain bytes that are not UTF-8
        begin = f"SELECT id, created_at, {is_service} FROM runs WHERE id >= ? AND id < ?"
        newest_first = sorted(self._all(begin, prefix, prefix + "\U0010ffff"), key=lambda row: (-row[1], row[0]))
        found = naming.choose(prefix, [str(row[0]) for row in newest_first if not row[2]])
        found = found or naming.choose(prefix, [str(row[0]) for row in newest_first])
        if found is None:
            raise NoSuchRun(f"no run has the id '{prefix}', nor a job of this name", "windlass ps --all lists all ids")
        return found

    def status(self, run_id: str, *, with_progress: bool = True) -> Status:
        """Returns the status of a run, with its newest progress. Raises NoSuchRun, UnsupportedVersion."""
        status, progress = self._of_run(run_id, "status", "progress")
        return self._at_home(_load(status, progress if with_progress else None))

    def statuses(self, *, last: int | None = None, unfinished: bool = False) -> list[Status]:
        """Returns statuses, newest first: all, the `last` ones, or only those of unfinished runs."""
        where = f"WHERE version = {RECORD_VERSION}" + (" AND ended_at IS NULL" if unfinished else "")
        limit = -1 if last is None else last
        rows = self._all(f"SELECT status, progress FROM runs {where} ORDER BY created_at DESC, id LIMIT ?", limit)
        return [self._at_home(_load(*row)) for row in rows]

    def unreadable(self) -> list[UnreadableRun]:
        """Returns the runs that `statuses` skips because another version of Windlass recorded them, newest first."""
        # The plus sign keeps SQLite from following the index of ages, which takes ten times as long for 10,000 runs.
        sql = "SELECT id, version FROM runs WHERE version != ? ORDER BY +created_at DESC, id"
        rows = self._all(sql, RECORD_VERSION)
        return [UnreadableRun(*row) for row in rows]

    def _at_home(self, status: Status) -> Status:
        """Adds the note, and the local path of the outputs if they were fetched to this machine."""
        # Path objects would take too long for a list of ten thousand runs.
        path = f"{self.home}/runs/{status.id}/{NOTE}"
        note = ""
        with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
            note = file.read().rstrip("\n")
        if note != status.about.note:  # the status has the note of the time at which the supervisor started
            status = status.with_note(note)
        if status.files.collected is None or not (self.run_dir(status.id) / OUTPUT_DIGEST).exists():
            return status
        return replace(status, output_dir=str(self.run_dir(status.id) / OUTPUT))

    def rows(self, known: dict[str, RunAbout]) -> list[RunRow]:
        """Returns what a list of all runs is filtered and ordered by, newest first, without building their statuses.

        `known` has the constant part of rows of earlier calls, and is extended: a list of 10,000 runs is then read in
        milliseconds.
        """
        # Without the sign, SQLite looks up each row by the index of creation times, which takes four times as long.
        order = "ORDER BY +created_at DESC, id"
        rows = self._all(f"SELECT id, phase, created_at, ended_at FROM runs WHERE version = ? {order}", RECORD_VERSION)
        if new := [row[0] for row in rows if row[0] not in known]:
            about = "json_extract(status, '$.name', '$.target', '$.about[1]')"
            found = self._all(
                f"SELECT id, {about} FROM runs WHERE id IN (SELECT value FROM json_each(?))", json.dumps(new)
            )
            known |= {run_id: RunAbout(*json.loads(about)) for run_id, about in found}
        return [
            RunRow(run_id, Phase(phase), created_at, ended_at, known[run_id])
            for run_id, phase, created_at, ended_at in rows
            if run_id in known
        ]

    def changes(self) -> int:
        """Returns a number that differs from the last one if another connection has changed the record meanwhile."""
        return int(self._one("PRAGMA data_version")[0])

    def marks(self) -> dict[str, tuple[Any, ...]]:
        """Returns a value for each unfinished run that differs once the run has a new event or new progress."""
        of_status = "json_extract(status, '$.last_seq')"
        rows = self._all(f"SELECT id, phase, {of_status}, progress FROM runs WHERE ended_at IS NULL")
        return {str(run_id): tuple(mark) for run_id, *mark in rows}

    def count_all(self) -> int:
        """Returns the number of runs, also of those that this version cannot read."""
        return int(self._one("SELECT count(*) FROM runs")[0])

    def count(self) -> int:
        """Returns the number of runs that this version can read."""
        row = self._one("SELECT count(*) FROM runs WHERE version = ?", RECORD_VERSION)
        return int(row[0]) if row else 0

    def plan(self, run_id: str) -> Plan:
        """Returns the plan of a run, as of its start or its last resume.

        Raises NoSuchRun, StoreError, UnsupportedVersion.
        """
        [plan] = self._of_run(run_id, "plan")
        return _read_plan(plan)

    def engine_of(self, run_id: str) -> str:
        """Returns the engine kind of a run, even if its plan cannot be read. Raises NoSuchRun, UnsupportedVersion."""
        [plan] = self._of_run(run_id, "plan")
        return str(json.loads(plan)["engine"])

    def _of_run(self, run_id: str, *columns: str) -> list[Any]:
        """Reads columns of the row of a run. Raises NoSuchRun, UnsupportedVersion."""
        row = self._one(f"SELECT version, {', '.join(columns)} FROM runs WHERE id = ?", run_id)
        if row is None:
            raise NoSuchRun(f"no run has the id '{run_id}'", "windlass ps --all lists all ids")
        _require_readable(UnreadableRun(run_id, row[0]))
        return list(row[1:])

    def events(self, run_id: str, after: int = 0, since: float = 0.0, *, last: int = (1 << 63) - 1) -> list[Event]:
        """Returns the events of a run with a number above `after`, not older than `since` (Unix seconds), in order.

        `last` is the highest number that is returned.

        Raises UnsupportedVersion.
        """
        if (row := self._one("SELECT version FROM runs WHERE id = ?", run_id)) is not None:
            _require_readable(UnreadableRun(run_id, row[0]))
        rows = self._all(
            "SELECT seq, time, kind, data FROM events WHERE run_id = ? AND seq > ? AND seq <= ? AND time >= ?"
            " ORDER BY seq",
            run_id,
            after,
            last,
            since,
        )
        return [Event(seq, when, kind, json.loads(data)) for seq, when, kind, data in rows]

    # -- the file -----------------------------------------------------------------------------------------------------

    def _lock(self, run_id: str, kind: int = fcntl.LOCK_EX) -> int | None:
        """Returns a descriptor that holds the run's lock; None if another process holds it."""
        path = self.run_dir(run_id) / "lock"
        # The lock needs the folder, and the record must stay readable if the user has removed the folder.
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        return lock

    def _insert_run(self, status: Status, plan: str) -> None:
        self._db.execute(
            "INSERT INTO runs (id, created_at, version, phase, status, plan) VALUES (?, ?, ?, ?, ?, ?)",
            (status.id, status.times.created_at, RECORD_VERSION, status.phase.value, _dump(status), plan),
        )

    def _insert(self, run_id: str, event: Event) -> None:
        self._db.execute(
            "INSERT INTO events (run_id, seq, time, kind, data) VALUES (?, ?, ?, ?, ?)",
            (run_id, event.seq, event.time, event.kind, json.dumps(event.data)),
        )

    def _one(self, sql: str, *values: Any) -> Any:
        with _border(self.home):
            return self._db.execute(sql, values).fetchone()

    def _all(self, sql: str, *values: Any) -> list[Any]:
        with _border(self.home):
            return self._db.execute(sql, values).fetchall()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def _make_tables(self) -> None:
        version = self._version()
        if version == SCHEMA_VERSION:
            if self._on_network:
                self._leave_wal()
            return
        if version != 0:
            raise UnsupportedVersion(
                f"the record in {self.home} has tables of version {version}, and this Windlass reads {SCHEMA_VERSION}",
                "use the Windlass that wrote it, or set WINDLASS_HOME to another folder; nothing was changed",
            )
        # SQLite does not wait, but fails, if two processes change the journal mode of a new file at once.
        with locked(self.home / "record.lock"):
            self._db.execute(f"PRAGMA journal_mode = {'DELETE' if self._on_network else 'WAL'}")
            with self._transaction():
                if self._version() == SCHEMA_VERSION:
                    return
                for statement in filter(str.strip, SCHEMA.split(";")):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _leave_wal(self) -> None:
        """Leaves WAL mode, which needs shared memory that other machines lack. A record in use is converted later."""
        if self._db.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
            with contextlib.suppress(sqlite3.OperationalError):
                self._db.execute("PRAGMA journal_mode = DELETE")

    def _version(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])


class RunWriter:
    """The only writer of a run. The lock ends with the writer's process, so that a killed writer blocks no other."""

    def __init__(self, store: Store, status: Status, lock: int, clock: Clock | None = None) -> None:
        self.store = store
        self.status = status
        self.lock = lock
        """Descriptor of the held lock; a child process that inherits it holds the run."""
        self._clock = clock or Clock()
        self._late: list[Event] = []
        """Events that are not written yet because the disk is full."""
        self._urgent = False
        """Whether any delayed event is urgent, and may use the reserve."""
        self._early = 0
        """How often the reserve was used for events that do not end the attempt, since the disk last had space."""

    def append(self, entry: Entry, *, at: float | None = None, plan: str | None = None) -> None:
        """Writes one event, observed at `at` (Unix seconds; default: now). Raises StoreError or StoreFull.

        `plan` replaces the run's plan, as JSON text, in the same transaction.
        """
        self._write_late()
        event = self._next(entry, at)
        after = advance(self.status, event)
        self.store.append(after, [event], plan)
        self.status = after

    def note(self, entry: Entry, *, at: float | None = None) -> None:
        """Writes an event like `append`, but a full disk only delays it; `status` includes the event at once. Raises
        StoreError.

        The end of a run or attempt is written into the space that the reserve of the home releases. Progress is not
        recorded while other events wait, so that the reserve suffices for them.
        """
        if isinstance(entry, events.Progress) and self._late:
            return
        event = self._next(entry, at)
        self._late.append(event)
        self.status = advance(self.status, event)
        with contextlib.suppress(StoreFull):
            self._urgent |= self._is_urgent(entry)
            self.catch_up()

    def set_progress(self, progress: Json) -> None:
        """Calls `Store.set_progress` unless the disk is full. Raises StoreError."""
        if self.store.reserve.has_space():
            try:
                self.store.set_progress(self.status.id, progress)
            except StoreFull:
                self.store.reserve.record_full()

    def catch_up(self) -> None:
        """Writes the events that a full disk has delayed; urgent ones use the reserve. Raises as `append`."""
        if not self._late:
            return
        reserve = self.store.reserve
        if reserve.has_space():
            self._early = 0
        elif not self._urgent:
            raise _full(self.store.home)
        try:
            self._write_late()
        except StoreFull:
            reserve.record_full()
            if not (self._urgent and reserve.release()):
                raise
            self._write_late()

    def _write_late(self) -> None:
        if self._late:
            self.store.append(self.status, self._late)
            self._late, self._urgent = [], False

    def _next(self, entry: Entry, at: float | None) -> Event:
        return entry.event(self.status.last_seq + 1, self._clock.time() if at is None else at)

    def _is_urgent(self, entry: Entry) -> bool:
        match entry:
            case events.Warned(dropped=events.OutputDropped()) | events.RankChanged(exit_code=int()):
                self._early += 1
                return self._early <= MAX_EARLY
        return isinstance(entry, URGENT)

    def events(self) -> list[Event]:
        """Returns all events of the run, including those that a full disk has delayed."""
        return [*self.store.events(self.status.id), *self._late]

    def close(self) -> None:
        """Releases the lock."""
        os.close(self.lock)


class RunAbout(NamedTuple):
    """What never changes of a run in a list."""

    name: str
    target: str
    labels: dict[str, str]


class RunRow(NamedTuple):
    """A run in a list of all runs."""

    id: str
    phase: Phase
    created_at: float
    ended_at: float | None
    about: RunAbout


@dataclass(frozen=True, slots=True)
class UnreadableRun:
    """A run recorded by another version of Windlass."""

    id: str
    version: int
    """Version of the run's record."""

    @property
    def message(self) -> str:
        """Why the run cannot be read."""
        return (
            f"{self.id} is unreadable: another version of Windlass recorded it "
            f"(record version {self.version}, and this one reads {RECORD_VERSION})"
        )


def _require_readable(run: UnreadableRun) -> None:
    if run.version != RECORD_VERSION:
        hint = f"use the Windlass that started it, or remove its record: windlass rm {run.id}"
        raise UnsupportedVersion(run.message, hint)


@contextlib.contextmanager
def locked(path: Path, *, is_patient: bool = True) -> Iterator[bool]:
    """Holds a file lock, which ends with this process; yields whether it was acquired. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if is_patient else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(lock)


def _dump(status: Status) -> str:
    """Serializes a status to JSON. The parts of a status become lists of values in field order."""
    return json.dumps(dict(zip(_FIELDS, _VALUES[Status](status), strict=True)), default=_part, separators=(",", ":"))


def _part(part: Any) -> Any:
    return part.to_json() if isinstance(part, Value) else _VALUES[type(part)](part)


def _load(text: str, progress: str | None = None) -> Status:
    data = json.loads(text)
    data |= {
        "phase": _PHASES[data["phase"]],
        "times": _times(data["times"]),
        "attempts": tuple(_attempt(values) for values in data["attempts"]),
        "ranks": tuple(RankState(*values) for values in data["ranks"]),
        "progress": Progress.from_json(_newer(json.loads(progress or "{}"), data["progress"])),
        "cause": _entry(RootCause, data["cause"]),
        "checkpoint": _entry(CheckpointChanged, data["checkpoint"]),
        "supervision": _supervision(*data["supervision"]),
        "dropped": tuple(Dropped(*values) for values in data["dropped"]),
        "files": _files(*data["files"]),
        "ending": _entry(RunEnding, data["ending"]),
        "about": About(*data["about"]),
        "warnings": tuple(map(RunWarning.from_json, data["warnings"])),
    }
    return Status(**data)


def _times(values: list[Any]) -> Times:
    found = dict(zip(_TIME_FIELDS, values, strict=True))
    found["phases"] = {_PHASES[phase]: seconds for phase, seconds in found["phases"].items()}
    return Times(**found)


def _entry(kind: type[E], data: Any) -> E | None:
    return None if data is None else kind.from_json(data)


def _supervision(machine: Any, supervisor: str, stop_requested: bool, condition: Any) -> Supervision:
    return Supervision(_entry(Machine, machine), supervisor, stop_requested, _entry(ConditionChanged, condition))


def _files(data: Any, outputs: Any, collected: Any, code_files: Any) -> Files:
    return Files(
        tuple(map(DataStaged.from_json, data)),
        _entry(OutputsUploaded, outputs),
        _entry(OutputsCollected, collected),
        tuple(map(CodeFiles.from_json, code_files)),
    )


def _newer(progress: Json, recorded: Json) -> Json:
    """Returns the later of two progress reports: the stored one, which is overwritten often, and the one in the
    record.
    """
    is_older = progress.get("at", math.inf) < recorded.get("at", -math.inf)
    return progress if progress and not is_older else recorded


def _attempt(values: list[Any]) -> Attempt:
    found = dict(zip(_ATTEMPT_FIELDS, values, strict=True))
    found["phase"], found["members"] = _PHASES[found["phase"]], tuple(found["members"])
    return Attempt(**found)


_FIELDS: Final = tuple(field.name for field in fields(Status))
_PHASES: Final = {phase.value: phase for phase in Phase}
"""The phases by value: a list of runs looks up tens of thousands, and a call of `Phase` takes 0.3 µs."""
_TIME_FIELDS: Final = tuple(field.name for field in fields(Times))
_ATTEMPT_FIELDS: Final = tuple(field.name for field in fields(Attempt))
_VALUES: Final = {
    kind: attrgetter(*(field.name for field in fields(kind)))
    for kind in (Status, Times, Supervision, Files, About, Attempt, RankState, Dropped)
}


@contextlib.contextmanager
def _border(home: Path) -> Iterator[None]:
    """Converts errors of SQLite and the file system to StoreError."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        text = str(error)
        if _is_full(error, home):
            raise _full(home) from error
        if "readonly" in text or "unable to open" in text:
            raise StoreError(f"the record in {home} cannot be written ({text})", _RIGHTS) from error
        if "locked" in text:
            raise StoreError(f"the record in {home} was locked for {BUSY_SECONDS:g} s", "try again") from error
        raise StoreError(f"the record in {home} cannot be read ({text})", "windlass doctor examines it") from error
    except OSError as error:
        if error.errno in FULL_ERRORS:
            raise _full(home) from error
        raise StoreError(f"the record in {home} cannot be used ({error.strerror or error})", _RIGHTS) from error


@functools.lru_cache(maxsize=32)
def _read_plan(text: str) -> Plan:
    from windlass.plan.plan import Plan

    return Plan.from_json(json.loads(text))


@contextlib.contextmanager
def _readable(run_id: str) -> Iterator[None]:
    """Converts errors of events that form no valid status to StoreError."""
    try:
        yield
    except (ValueError, ArithmeticError) as error:
        raise StoreError(f"the record of {run_id} cannot be read ({error})") from error


def _is_full(error: sqlite3.DatabaseError, home: Path) -> bool:
    """Whether SQLite failed because the disk is full. For a quota and for the WAL index, SQLite reports a generic I/O
    error.
    """
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
    if code & 0xFF != sqlite3.SQLITE_IOERR:
        return bool(code == sqlite3.SQLITE_FULL)
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=home, buffering=0) as probe:
            return probe.write(bytes(PROBE_BYTES)) < PROBE_BYTES
    except OSError as found:
        return found.errno in FULL_ERRORS


def _full(home: Path) -> StoreFull:
    return StoreFull(f"no space left for the record in {home}", "free some space and try again")


_RIGHTS: Final = "check who owns the folder, or set WINDLASS_HOME to one that you can write"
