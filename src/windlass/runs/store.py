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
from typing import TYPE_CHECKING, Any, Final, Self

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
"""Version of the tables. A file with tables of another version is not opened."""
BUSY_SECONDS: Final = 30.0
RESERVE_BYTES: Final = 512 << 10
"""Reserved in the home for the ends of its runs; enough for the pages that SQLite writes for some of them."""
NOTE: Final = "note"
"""In the folder of a run: what its user has written about it."""
NOTE_CHARS: Final = 4000
"""The longest note on a run."""
OUTPUT: Final = "output"
OUTPUT_DIGEST: Final = "output.sha256"
"""In the folder of a run on a cluster: its outputs, once they were brought here, and then their digest."""
LEFTOVERS: Final = "unfinished"
"""There too, while something of the end of the run is left to do."""
URGENT: Final = (
    events.StopRequested,
    events.RootCause,
    events.NodeLost,
    events.AttemptEnded,
    events.RunEnding,
    events.RunEnded,
)
"""Events for which the reserve is released: without them a run that has ended would be shown as running."""
PROBE_BYTES: Final = 64 << 10
MAX_EARLY: Final = 8
"""How often the reserve is used during an attempt, for exit codes and dropped log lines, until there is space."""
LOCK_RETRIES: Final = (0.005,) * 10
"""Seconds between tries for a run's lock: `is_held` takes it for some microseconds, which must not fail a writer."""


def default_home(environ: Json) -> Path:
    """Where the records of this user are: `$WINDLASS_HOME`, else `$XDG_DATA_HOME/windlass`, else `~/.local/share`.

    Raises StoreError where that begins with the home folder of a user who has none.
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
    """The records of one user. Any number of processes may read; only the process that holds a run's lock writes it."""

    def __init__(self, home: Path | str, machine: Machine | None = None) -> None:
        """Open the record in `home`, made if it is not there. Raises StoreError, UnsupportedVersion or StoreFull.

        Where the home cannot be written, the record in it is read, and what would write it raises StoreError. `machine`
        is the one that this process runs on.
        """
        home = self.home = Path(home).absolute()  # a program may change its folder
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
                # Even to read, SQLite needs room for the index of its WAL.
                if not (_is_full(error, home) and self.reserve.release()):
                    raise
                self._open()
        for run_id in self._trash.ids():  # a deletion was killed after its first step
            with contextlib.suppress(StoreError):
                self._forget(run_id)

    def _open(self) -> None:
        connect = read_only.connect if self.is_read_only else sqlite3.connect
        # Threads may take turns with it: those that read an iterator over events, for one.
        options: dict[str, Any] = {"isolation_level": None, "check_same_thread": False}
        self._db: sqlite3.Connection = connect(self.home / RECORD, timeout=BUSY_SECONDS, **options)
        try:
            self._make_tables()
        except BaseException:
            self._db.close()  # which also removes the files that SQLite keeps beside an open record
            raise

    def close(self) -> None:
        """Close the file; the object cannot be used afterwards."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def has_leftovers(self, run_id: str) -> bool:
        """Whether its engine has left something of its end to do, such as a job that may go on."""
        return (self.run_dir(run_id) / LEFTOVERS).exists()

    def run_dir(self, run_id: str) -> Path:
        """The folder of a run: logs, attempts, control files and, unless the job says otherwise, its outputs."""
        return self.home / "runs" / run_id

    # -- writing ------------------------------------------------------------------------------------------------------

    def create(
        self, run_id: str, *, name: str, target: str, output_dir: str, plan: str, time: float,
        restarts: int | None = None, user: str = "", supervisor: str = "", labels: Json | None = None,
    ) -> RunWriter:  # fmt: skip
        """Create the record of a run and hold its lock. Raises StoreError.

        `plan` is the plan as JSON text, `restarts` how many of them it allows; `user` and `supervisor` as in a status.
        """
        run_dir = self.run_dir(run_id)
        if not (self.reserve.has_space() or self.reserve.make(margin_bytes=0)):
            raise _full(self.home)  # its end could not be written
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
        """The one writer of an existing run, or None while another process holds it.

        `lock` is a descriptor of the run's lock that was inherited from the process which held it.
        """
        held = lock
        with _border(self.home):
            for pause in (0.0, *LOCK_RETRIES) if lock is None else ():
                time.sleep(pause)
                if (held := self._lock(run_id)) is not None:
                    break
        return None if held is None else RunWriter(self, self.status(run_id, with_progress=False), held)

    def is_held(self, run_id: str) -> bool:
        """Whether some process is writing this run now."""
        with _border(self.home):
            lock = self._lock(run_id, fcntl.LOCK_SH)  # shared: two processes that only test it do not block each other
        if lock is None:
            return True
        os.close(lock)
        return False

    def append(self, after: Status, added: Sequence[Event], plan: str | None = None) -> None:
        """Write events of a run, the status after them, and its new plan if there is one; all or nothing.

        Only a `RunWriter` calls this.
        """
        with _border(self.home), self._transaction():
            for event in added:
                self._insert(after.id, event)
            self._update(after, plan)

    def copy(self, run_id: str, history: Sequence[Event], plan: str | None = None) -> Status:
        """Take over the record of a run that another store writes: its events from any number on, in order.

        `plan` is needed for a run that this store does not have yet, and replaces the plan of one that it has. Events
        which this store has already change nothing. Raises StoreError, also for events that no supervisor writes, and
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
        """Overwrite the newest progress; the history of it is in the sparser `progress` events."""
        with _border(self.home):
            self._db.execute("UPDATE runs SET progress = ? WHERE id = ?", (json.dumps(progress), run_id))

    def copy_progress(self, run_id: str, progress: Json) -> None:
        """Take over progress that another store has, unless another process has taken over newer progress meanwhile."""
        at = progress.get("at")
        with _border(self.home):
            self._db.execute(
                "UPDATE runs SET progress = ? WHERE id = ? AND coalesce(json_extract(progress, '$.at'), 0) <= ?",
                (json.dumps(progress), run_id, at if isinstance(at, int | float) else 0.0),
            )

    def write_note(self, run_id: str, text: str) -> None:
        """Replace the note on a run; an empty text removes it. Raises StoreError."""
        path = self.run_dir(run_id) / NOTE
        with _border(self.home):
            if not text:
                path.unlink(missing_ok=True)
                return
            new = path.with_name(f"{NOTE}.new")
            new.touch(mode=0o600)
            # An argument may be bytes that are no text of the caller's locale: those are kept.
            new.write_text(f"{text}\n", encoding="utf-8", errors="surrogateescape")
            new.replace(path)

    def delete(self, run_id: str) -> None:
        """Remove a run's row, events and folder. The caller has made sure that no process writes it.

        Raises StoreError. A deletion that is killed is finished by a later command; see `trash.py`.
        """
        self._trash.put(self.run_dir(run_id))
        try:
            self._forget(run_id)
        except StoreFull:  # what is deleted may be what fills the disk
            self._trash.drain(run_id)
            self._forget(run_id)
        remove(self.run_dir(run_id))
        self.empty_trash()

    def empty_trash(self) -> None:
        """Finish deletions that were killed: removes their files."""
        self._trash.empty()

    def _forget(self, run_id: str) -> None:
        if self._one("SELECT 1 FROM runs WHERE id = ?", run_id) is None:
            return
        with _border(self.home), self._transaction():
            self._db.execute("DELETE FROM events WHERE run_id = ?", (run_id,))
            self._db.execute("DELETE FROM runs WHERE id = ?", (run_id,))

    def host_elsewhere(self, status: Status) -> str | None:
        """The name of the machine that supervises a run, if it is not this one; else None."""
        if status.supervision.machine is None or self.machine.keeps(status.supervision.machine):
            return None
        return status.supervision.machine.host or "another machine"

    # -- reading ------------------------------------------------------------------------------------------------------

    def find(self, prefix: str | None = None) -> str:
        """The id that `prefix` stands for, as `naming.choose`; the newest run's without one. Raises NoSuchRun."""
        if prefix is None:
            row = self._one("SELECT id FROM runs ORDER BY created_at DESC, id LIMIT 1")
            if row is None:
                raise NoSuchRun("there is no run yet", "start one: windlass run train.py")
            return str(row[0])
        if not prefix:  # from a script whose variable is not set: it must not mean the newest run
            raise NoSuchRun("the run id is empty", "windlass ps --all lists all ids")
        prefix = prefix.encode(errors="replace").decode()  # an argument may be bytes that are not UTF-8
        begin = "SELECT id, created_at FROM runs WHERE id >= ? AND id < ?"
        newest_first = sorted(self._all(begin, prefix, prefix + "\U0010ffff"), key=lambda row: (-row[1], row[0]))
        found = naming.choose(prefix, [str(row[0]) for row in newest_first])
        if found is None:
            raise NoSuchRun(f"no run has the id '{prefix}', nor a job of this name", "windlass ps --all lists all ids")
        return found

    def status(self, run_id: str, *, with_progress: bool = True) -> Status:
        """The status of a run, with its newest progress. Raises NoSuchRun, UnsupportedVersion."""
        status, progress = self._of_run(run_id, "status", "progress")
        return self._at_home(_load(status, progress if with_progress else None))

    def statuses(self, *, last: int | None = None, unfinished: bool = False) -> list[Status]:
        """Statuses, newest first: all of them, the `last` ones, or only those that have not ended."""
        where = f"WHERE version = {RECORD_VERSION}" + (" AND ended_at IS NULL" if unfinished else "")
        limit = -1 if last is None else last
        rows = self._all(f"SELECT status, progress FROM runs {where} ORDER BY created_at DESC, id LIMIT ?", limit)
        return [self._at_home(_load(*row)) for row in rows]

    def unreadable(self) -> list[UnreadableRun]:
        """The runs that `statuses` leaves out, newest first: another version of Windlass has recorded them."""
        rows = self._all("SELECT id, version FROM runs WHERE version != ? ORDER BY created_at DESC, id", RECORD_VERSION)
        return [UnreadableRun(*row) for row in rows]

    def _at_home(self, status: Status) -> Status:
        """The status with its note, and the place of its outputs on this machine, if they were brought here."""
        # Not by Path: a list may have ten thousand runs, of which hardly one has a note.
        path = f"{self.home}/runs/{status.id}/{NOTE}"
        note = ""
        with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
            note = file.read().rstrip("\n")
        if note != status.about.note:  # a supervisor has written the one that was there when it started
            status = status.with_note(note)
        if status.files.collected is None or not (self.run_dir(status.id) / OUTPUT_DIGEST).exists():
            return status
        return replace(status, output_dir=str(self.run_dir(status.id) / OUTPUT))

    def count(self) -> int:
        """How many runs there are that this version reads."""
        row = self._one("SELECT count(*) FROM runs WHERE version = ?", RECORD_VERSION)
        return int(row[0]) if row else 0

    def plan(self, run_id: str) -> Plan:
        """The plan of a run, as it was when the run began or was resumed.

        Raises NoSuchRun, StoreError, UnsupportedVersion.
        """
        [plan] = self._of_run(run_id, "plan")
        return _read_plan(plan)

    def engine_of(self, run_id: str) -> str:
        """The kind of engine of a run, also if its plan cannot be read. Raises NoSuchRun, UnsupportedVersion."""
        [plan] = self._of_run(run_id, "plan")
        return str(json.loads(plan)["engine"])

    def _of_run(self, run_id: str, *columns: str) -> list[Any]:
        """Columns of the row of a run. Raises NoSuchRun, UnsupportedVersion."""
        row = self._one(f"SELECT version, {', '.join(columns)} FROM runs WHERE id = ?", run_id)
        if row is None:
            raise NoSuchRun(f"no run has the id '{run_id}'", "windlass ps --all lists all ids")
        _require_readable(UnreadableRun(run_id, row[0]))
        return list(row[1:])

    def events(self, run_id: str, after: int = 0, since: float = 0.0) -> list[Event]:
        """The events of a run with a number above `after`, not older than `since` (Unix seconds), in order.

        Raises UnsupportedVersion.
        """
        if (row := self._one("SELECT version FROM runs WHERE id = ?", run_id)) is not None:
            _require_readable(UnreadableRun(run_id, row[0]))
        rows = self._all(
            "SELECT seq, time, kind, data FROM events WHERE run_id = ? AND seq > ? AND time >= ? ORDER BY seq",
            run_id,
            after,
            since,
        )
        return [Event(seq, when, kind, json.loads(data)) for seq, when, kind, data in rows]

    # -- the file -----------------------------------------------------------------------------------------------------

    def _lock(self, run_id: str, kind: int = fcntl.LOCK_EX) -> int | None:
        """A descriptor that holds the run's lock, or None where another process holds it."""
        path = self.run_dir(run_id) / "lock"
        # A folder removed by hand must not make the record unreadable.
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
            self._db.execute("COMMIT")  # may fail as well, and must not leave the transaction open
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
        # SQLite refuses two processes that change the journal mode of a new file at once, without waiting.
        with locked(self.home / "record.lock"):
            self._db.execute(f"PRAGMA journal_mode = {'DELETE' if self._on_network else 'WAL'}")
            with self._transaction():
                if self._version() == SCHEMA_VERSION:  # another process was first
                    return
                for statement in filter(str.strip, SCHEMA.split(";")):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _leave_wal(self) -> None:
        """A WAL needs memory that other machines do not share. One that is in use is converted later."""
        if self._db.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
            with contextlib.suppress(sqlite3.OperationalError):
                self._db.execute("PRAGMA journal_mode = DELETE")

    def _version(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])


class RunWriter:
    """The only writer of a run. The lock ends with its process, so a killed writer blocks no other."""

    def __init__(self, store: Store, status: Status, lock: int, clock: Clock | None = None) -> None:
        self.store = store
        self.status = status
        self.lock = lock
        """Descriptor of the held lock; a child process that inherits it holds the run."""
        self._clock = clock or Clock()
        self._late: list[Event] = []
        """Events that are not written yet because the disk is full."""
        self._urgent = False
        """Whether one of them must not wait for space."""
        self._early = 0
        """How often the reserve was used for events that do not end the attempt, since there was last space."""

    def append(self, entry: Entry, *, at: float | None = None, plan: str | None = None) -> None:
        """Write one more event, seen at `at` (Unix seconds; now). Raises StoreError or StoreFull.

        `plan` replaces the run's plan, as JSON text, in the same transaction.
        """
        self._write_late()
        event = self._next(entry, at)
        after = advance(self.status, event)
        self.store.append(after, [event], plan)
        self.status = after

    def note(self, entry: Entry, *, at: float | None = None) -> None:
        """As `append`, but a full disk only delays the write: `status` has the event already. Raises StoreError.

        The end of a run, and of an attempt, is written into the space that the reserve of the home releases. Progress
        is not recorded while other events wait, so that the reserve is enough for them.
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
        """As `Store.set_progress`; not written while the disk is full. Raises StoreError."""
        if self.store.reserve.has_space():
            try:
                self.store.set_progress(self.status.id, progress)
            except StoreFull:
                self.store.reserve.record_full()

    def catch_up(self) -> None:
        """Write the events that a full disk has delayed, urgent ones even without space. Raises as `append`."""
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
        """All events of the run, including those that a full disk has delayed."""
        return [*self.store.events(self.status.id), *self._late]

    def close(self) -> None:
        """Release the lock."""
        os.close(self.lock)


@dataclass(frozen=True, slots=True)
class UnreadableRun:
    """A run that another version of Windlass has recorded."""

    id: str
    version: int
    """The version of its record."""

    @property
    def message(self) -> str:
        """Why it is not read."""
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
    """Hold a lock, which ends with this process; yields whether it could be had. Raises OSError."""
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
    """A status as JSON; its parts are lists of their values, in the order of their fields."""
    return json.dumps(dict(zip(_FIELDS, _VALUES[Status](status), strict=True)), default=_part, separators=(",", ":"))


def _part(part: Any) -> Any:
    return part.to_json() if isinstance(part, Value) else _VALUES[type(part)](part)


def _load(text: str, progress: str | None = None) -> Status:
    """A status as `_dump` wrote it."""
    data = json.loads(text)
    times = Times(*data["times"])
    data |= {
        "phase": Phase(data["phase"]),
        "times": replace(times, phases={Phase(phase): seconds for phase, seconds in times.phases.items()}),
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
    """The later progress: the stored one, which is written often, or that of the record."""
    is_older = progress.get("at", math.inf) < recorded.get("at", -math.inf)
    return progress if progress and not is_older else recorded


def _attempt(values: list[Any]) -> Attempt:
    found = dict(zip(_ATTEMPT_FIELDS, values, strict=True))
    return Attempt(**{**found, "phase": Phase(found["phase"]), "members": tuple(found["members"])})


_FIELDS: Final = tuple(field.name for field in fields(Status))
_ATTEMPT_FIELDS: Final = tuple(field.name for field in fields(Attempt))
_VALUES: Final = {
    kind: attrgetter(*(field.name for field in fields(kind)))
    for kind in (Status, Times, Supervision, Files, About, Attempt, RankState, Dropped)
}


@contextlib.contextmanager
def _border(home: Path) -> Iterator[None]:
    """Turns errors of SQLite and the file system into StoreError."""
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
    from windlass.plan.plan import Plan  # a list of runs needs none

    return Plan.from_json(json.loads(text))


@contextlib.contextmanager
def _readable(run_id: str) -> Iterator[None]:
    """Turns errors of events that make no status into StoreError."""
    try:
        yield
    except (ValueError, ArithmeticError) as error:
        raise StoreError(f"the record of {run_id} cannot be read ({error})") from error


def _is_full(error: sqlite3.DatabaseError, home: Path) -> bool:
    """Whether SQLite failed because the disk is full: for a quota, and for its WAL index, it reports any I/O error."""
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
