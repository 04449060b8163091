"""Keeps the records: one SQLite file a user for events and statuses, one folder a run for its logs and results."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from windlass.errors import NoSuchRun, StoreError, StoreFull, StoreTooNew
from windlass.runs.filesystem import is_on_network
from windlass.runs.machine import Machine, machine_of, this_machine
from windlass.runs.private import prepare
from windlass.runs.record import Attempt, Dropped, Event, Json, Phase, RankState, Status, advance, created
from windlass.runs.trash import Trash, remove
from windlass.worker.reserve import FULL_ERRORS, Reserve

MIGRATIONS: Final = (
    """
    CREATE TABLE runs (
        id TEXT PRIMARY KEY,
        created_at REAL NOT NULL,
        ended_at REAL,
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
    """,
)
"""Each entry takes the file from version N to N + 1; entries are appended and never edited."""

VERSION: Final = len(MIGRATIONS)
BUSY_SECONDS: Final = 30.0
RESERVE_BYTES: Final = 512 << 10
"""Kept back in the home for the ends of its runs; enough for the pages that SQLite writes for some of them."""
URGENT: Final = frozenset({"stop", "cause", "lost-node", "attempt-end", "end"})
"""Events that the reserve is released for: without them a run that has ended would be shown as live."""
PROBE_BYTES: Final = 64 << 10
MAX_EARLY: Final = 8
"""How often the reserve is used while an attempt goes on, for exit codes and dropped log lines, until there is room."""
LOOKER_SECONDS: Final = (0.005,) * 10
"""Pauses of one who wants a run's lock: `is_held` takes it for some microseconds, which is not to hold the run."""


def default_home(environ: Json) -> Path:
    """Where the records of this user live: `$WINDLASS_HOME`, else `$XDG_DATA_HOME/windlass`, else `~/.local/share`."""
    if home := environ.get("WINDLASS_HOME"):
        return Path(home).expanduser().absolute()
    data = environ.get("XDG_DATA_HOME") or Path(environ.get("HOME") or "~").expanduser() / ".local" / "share"
    return Path(data) / "windlass"


class Store:
    """The records of one user. Any number may read; a run is written by whoever holds its lock."""

    def __init__(self, home: Path, machine: Machine | None = None, *, on_network: bool | None = None) -> None:
        """Open the record in `home`, made if it is not there. Raises StoreError, StoreTooNew or StoreFull.

        `machine` is the one that this process runs on, `on_network` whether other machines may use the file system;
        what is not given is found out.
        """
        self.home = home
        self.machine = this_machine(os.environ) if machine is None else machine
        self.reserve = Reserve(str(home / "reserve"), RESERVE_BYTES, is_shared=True)
        self._trash = Trash(home)
        with _border(home):
            prepare(home)
            self._on_network = is_on_network(home) if on_network is None else on_network
            try:
                self._db = self._opened()
            except sqlite3.DatabaseError as error:
                # Even to read, SQLite needs room for the index of its WAL.
                if not (_is_full(error, home) and self.reserve.release()):
                    raise
                self._db = self._opened()
        for run_id in self._trash.ids():  # a deletion was killed after its first step
            with contextlib.suppress(StoreError):
                self._forget(run_id)

    def _opened(self) -> sqlite3.Connection:
        self._db = sqlite3.connect(self.home / "record.db", timeout=BUSY_SECONDS, isolation_level=None)
        try:
            self._migrate()
        except BaseException:
            self._db.close()  # and with it go the files that SQLite keeps beside an open record
            raise
        return self._db

    def close(self) -> None:
        """Close the file; the object is of no use afterwards."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def run_dir(self, run_id: str) -> Path:
        """The folder of a run: logs, attempts, control files and, unless the job says otherwise, its outputs."""
        return self.home / "runs" / run_id

    # -- writing ------------------------------------------------------------------------------------------------------

    def create(
        self, run_id: str, *, name: str, target: str, output_dir: str, plan: str, time: float,
        restarts: int | None = None,
    ) -> RunWriter:  # fmt: skip
        """Begin the record of a run and hold its lock. Raises StoreError.

        `plan` is the plan as JSON text, `restarts` how many of them it allows.
        """
        run_dir = self.run_dir(run_id)
        if not (self.reserve.has_room() or self.reserve.make(margin_bytes=0)):
            raise _full(self.home)  # its end could not be written
        with _border(self.home):
            run_dir.mkdir(mode=0o700, parents=True)
            known: dict[str, Any] = {} if restarts is None else {"restarts": restarts}
            known["machine"] = self.machine.to_json()
            data = {"id": run_id, "name": name, "target": target, "output_dir": output_dir, **known}
            first = Event(1, time, "created", data)
            status = created(first)
            lock = None
            try:
                lock = self._lock(run_id)
                if lock is None:
                    raise StoreError(f"the new run {run_id} is locked by another process")
                with self._transaction():
                    self._db.execute(
                        "INSERT INTO runs (id, created_at, phase, status, plan) VALUES (?, ?, ?, ?, ?)",
                        (run_id, time, status.phase.value, _dump(status), plan),
                    )
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
            for pause in (0.0, *LOOKER_SECONDS) if lock is None else ():
                time.sleep(pause)
                if (held := self._lock(run_id)) is not None:
                    break
        return None if held is None else RunWriter(self, self.status(run_id, with_progress=False), held)

    def is_held(self, run_id: str) -> bool:
        """Whether some process is writing this run now."""
        with _border(self.home):
            lock = self._lock(run_id, fcntl.LOCK_SH)  # shared: two that only look do not see each other
        if lock is None:
            return True
        os.close(lock)
        return False

    def append(self, status: Status, kind: str, data: Json, time: float, plan: str | None = None) -> Status:
        """Write one more event of a run and its new status, and its new plan if there is one; all or nothing.

        Only a `RunWriter` calls this.
        """
        event = Event(status.last_seq + 1, time, kind, data)
        after = advance(status, event)
        self.append_all(after, [event], plan)
        return after

    def append_all(self, after: Status, events: Sequence[Event], plan: str | None = None) -> None:
        """Write events of a run and the status after them; all or nothing. Only a `RunWriter` calls this."""
        with _border(self.home), self._transaction():
            for event in events:
                self._insert(after.id, event)
            self._db.execute(
                "UPDATE runs SET phase = ?, ended_at = ?, status = ? WHERE id = ?",
                (after.phase.value, after.ended_at, _dump(after), after.id),
            )
            if plan is not None:
                self._db.execute("UPDATE runs SET plan = ? WHERE id = ?", (plan, after.id))

    def set_progress(self, run_id: str, progress: Json) -> None:
        """Overwrite the newest progress; the history of it is in the sparser `progress` events."""
        with _border(self.home):
            self._db.execute("UPDATE runs SET progress = ? WHERE id = ?", (json.dumps(progress), run_id))

    def delete(self, run_id: str) -> None:
        """Remove a run's row, events and folder. The caller has made sure that no process writes it.

        Raises StoreError. Once it has begun, it is finished later where it is killed; see `trash.py`.
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
        """Finish deletions that were killed. Takes as long as removing their files does."""
        self._trash.empty()

    def _forget(self, run_id: str) -> None:
        if self._one("SELECT 1 FROM runs WHERE id = ?", run_id) is None:
            return
        with _border(self.home), self._transaction():
            self._db.execute("DELETE FROM events WHERE run_id = ?", (run_id,))
            self._db.execute("DELETE FROM runs WHERE id = ?", (run_id,))

    def host_elsewhere(self, status: Status) -> str | None:
        """The name of the machine that keeps a run, where that is another one than this; else None."""
        if status.machine is None or self.machine.keeps(status.machine):
            return None
        return status.machine.host or "another machine"

    # -- reading ------------------------------------------------------------------------------------------------------

    def find(self, prefix: str | None = None) -> str:
        """The id that `prefix` stands for; the newest run's without one. Raises NoSuchRun."""
        if prefix is None:
            row = self._one("SELECT id FROM runs ORDER BY created_at DESC, id LIMIT 1")
            if row is None:
                raise NoSuchRun("there is no run yet", "start one: windlass run train.py")
            return str(row[0])
        if not prefix:  # from a script whose variable is not set: it must not mean whichever run is there
            raise NoSuchRun("the id that was given is empty", "windlass ps --all lists them")
        prefix = prefix.encode(errors="replace").decode()  # an argument may be bytes that are no text; no id is
        if self._one("SELECT 1 FROM runs WHERE id = ?", prefix):
            return prefix
        above = prefix + "\U0010ffff"
        ids = [row[0] for row in self._all("SELECT id FROM runs WHERE id > ? AND id < ? LIMIT 5", prefix, above)]
        if not ids:
            raise NoSuchRun(f"no run has the id '{prefix}'", "windlass ps --all lists them")
        if len(ids) > 1:
            raise NoSuchRun(f"several runs begin with '{prefix}': {', '.join(ids)}", "give more letters of the id")
        return str(ids[0])

    def status(self, run_id: str, *, with_progress: bool = True) -> Status:
        """The status of a run, with its newest progress. Raises NoSuchRun."""
        row = self._one("SELECT status, progress FROM runs WHERE id = ?", run_id)
        if row is None:
            raise NoSuchRun(f"no run has the id '{run_id}'", "windlass ps --all lists them")
        return _load(row[0], row[1] if with_progress else None)

    def statuses(self, *, last: int | None = None, unfinished: bool = False) -> list[Status]:
        """Statuses, newest first: all of them, the `last` ones, or only those that have not ended."""
        where = "WHERE ended_at IS NULL" if unfinished else ""
        limit = -1 if last is None else last
        rows = self._all(f"SELECT status, progress FROM runs {where} ORDER BY created_at DESC, id LIMIT ?", limit)
        return [_load(*row) for row in rows]

    def count(self) -> int:
        """How many runs there are."""
        row = self._one("SELECT count(*) FROM runs")
        return int(row[0]) if row else 0

    def plan(self, run_id: str) -> Any:
        """The plan of a run, as it was when the run began or was resumed (parsed JSON). Raises NoSuchRun."""
        row = self._one("SELECT plan FROM runs WHERE id = ?", run_id)
        if row is None:
            raise NoSuchRun(f"no run has the id '{run_id}'")
        return json.loads(row[0])

    def events(self, run_id: str, after: int = 0) -> list[Event]:
        """The events of a run with a number above `after`, in order."""
        rows = self._all("SELECT seq, time, kind, data FROM events WHERE run_id = ? AND seq > ? ORDER BY seq",
                         run_id, after)  # fmt: skip
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

    def _migrate(self) -> None:
        version = self._version()
        if version == VERSION:
            if self._on_network:
                self._leave_wal()
            return
        if version > VERSION:
            raise StoreTooNew(
                f"the record in {self.home} is of version {version}; this Windlass knows up to {VERSION}",
                "upgrade Windlass, or set WINDLASS_HOME to another folder; nothing was changed",
            )
        # Two that change the mode of a new file at once are refused at once, however patient they are.
        with _locked(self.home / "record.lock"):
            self._db.execute(f"PRAGMA journal_mode = {'DELETE' if self._on_network else 'WAL'}")
            with self._transaction():
                for number in range(self._version(), VERSION):
                    for statement in MIGRATIONS[number].split(";"):
                        if statement.strip():
                            self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {VERSION}")

    def _leave_wal(self) -> None:
        """Other machines do not see what the users of a WAL share. One that is in use is kept until it is not."""
        if self._db.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
            with contextlib.suppress(sqlite3.OperationalError):
                self._db.execute("PRAGMA journal_mode = DELETE")

    def _version(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])


class RunWriter:
    """The one process that writes a run. The lock goes with the process, so a killed writer blocks nobody."""

    def __init__(self, store: Store, status: Status, lock: int, clock: Callable[[], float] = time.time) -> None:
        self.store = store
        self.status = status
        self.lock = lock
        """Descriptor of the held lock; a child process that inherits it keeps the run."""
        self._clock = clock
        self._late: list[Event] = []
        """Events that a full disk has kept out of the record."""
        self._urgent = False
        """Whether one of them is not to wait until there is room."""
        self._early = 0
        """How often the reserve was used for events that an attempt goes on after, since there was last room."""

    def append(
        self, kind: str, data: Json | None = None, *, at: float | None = None, plan: str | None = None
    ) -> Status:
        """Write one more event, seen at `at` (Unix seconds; now). Raises StoreError or StoreFull.

        `plan` replaces the run's plan, as JSON text, in the same transaction.
        """
        self._write_late()
        self.status = self.store.append(self.status, kind, data or {}, self._clock() if at is None else at, plan)
        return self.status

    def note(self, kind: str, data: Json | None = None, *, at: float | None = None) -> Status:
        """As `append`, but a full disk only delays the writing: `status` goes on. Raises StoreError.

        The end of a run, and of an attempt, is written into the space that the reserve of the home gives back. Progress
        is left out of the history while anything waits: the reserve is to be enough for all that does.
        """
        if kind == "progress" and self._late:
            return self.status
        event = Event(self.status.last_seq + 1, self._clock() if at is None else at, kind, data or {})
        self._late.append(event)
        self.status = advance(self.status, event)
        with contextlib.suppress(StoreFull):
            self._urgent |= self._is_urgent(event)
            self.catch_up()
        return self.status

    def set_progress(self, progress: Json) -> None:
        """As `Store.set_progress`; left out while the disk is full. Raises StoreError."""
        if self.store.reserve.has_room():
            try:
                self.store.set_progress(self.status.id, progress)
            except StoreFull:
                self.store.reserve.met_full()

    def catch_up(self) -> None:
        """Write what a full disk has delayed: once there is room, what is urgent also before. Raises as `append`."""
        if not self._late:
            return
        reserve = self.store.reserve
        if reserve.has_room():
            self._early = 0
        elif not self._urgent:
            raise _full(self.store.home)
        try:
            self._write_late()
        except StoreFull:
            reserve.met_full()
            if not (self._urgent and reserve.release()):
                raise
            self._write_late()

    def _write_late(self) -> None:
        if self._late:
            self.store.append_all(self.status, self._late)
            self._late, self._urgent = [], False

    def _is_urgent(self, event: Event) -> bool:
        if event.kind in URGENT:
            return True
        if "dropped" in event.data or (event.kind == "rank" and "exit_code" in event.data):
            self._early += 1
            return self._early <= MAX_EARLY
        return False

    def events(self) -> list[Event]:
        """All events of the run, with those that a full disk has delayed."""
        return [*self.store.events(self.status.id), *self._late]

    def close(self) -> None:
        """Give the run back."""
        os.close(self.lock)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Wait for a lock that ends with this process."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _dump(status: Status) -> str:
    return json.dumps(
        {
            **{name: getattr(status, name) for name in _PLAIN},
            "attempts": [[getattr(a, name) for name in _OF_ATTEMPT] for a in status.attempts],
            "phases": dict(status.phases),
            "ranks": [[r.rank, r.node, r.pid, r.exit_code] for r in status.ranks],
            "progress": dict(status.progress),
            "cause": status.cause,
            "checkpoint": status.checkpoint,
            "machine": status.machine.to_json() if status.machine is not None else None,
            "dropped": [[d.attempt, d.rank, d.num_bytes, d.num_lines, d.why] for d in status.dropped],
        },
        separators=(",", ":"),
    )


def _load(text: str, progress: str | None = None) -> Status:
    data = json.loads(text)
    newest = {**data["progress"], **json.loads(progress)} if progress else data["progress"]
    plain = {name: data[name] for name in _PLAIN if name in data}  # a record may be older than some of them
    plain["phase"] = Phase(plain["phase"])
    return Status(
        **plain,
        attempts=tuple(_attempt(*values) for values in data["attempts"]),
        phases={Phase(phase): seconds for phase, seconds in data["phases"].items()},
        ranks=tuple(RankState(*state) for state in data["ranks"]),
        progress=newest,
        cause=data["cause"],
        checkpoint=data.get("checkpoint"),
        machine=machine_of(data.get("machine")),
        dropped=tuple(Dropped(*values) for values in data.get("dropped", ())),
    )


def _attempt(number: int, world_size: int, phase: str, *rest: Any) -> Attempt:
    """An attempt as `_dump` wrote it, or an older version of it, which knew less."""
    found = Attempt(number, world_size, Phase(phase), *rest)
    return replace(found, members=tuple(found.members))


_PLAIN: Final = ("id", "name", "target", "phase", "created_at", "phase_since", "output_dir", "exit_code", "ended_at",
                 "stop_requested", "last_seq", "restarts_left", "resume_from",
                 "limited_from", "waits_for", "condition", "checkpoint_missing")  # fmt: skip
_OF_ATTEMPT: Final = tuple(field.name for field in fields(Attempt))
"""New fields come last, so that an older record has a beginning of them."""


@contextlib.contextmanager
def _border(home: Path) -> Iterator[None]:
    """Turns what SQLite and the file system say into our errors."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        text = str(error)
        if _is_full(error, home):
            raise _full(home) from error
        if "readonly" in text or "unable to open" in text:
            raise StoreError(f"the record in {home} cannot be written ({text})", _RIGHTS) from error
        if "locked" in text:
            raise StoreError(f"the record in {home} stayed locked for {BUSY_SECONDS:g} s", "call again") from error
        raise StoreError(f"the record in {home} cannot be read ({text})", "windlass doctor looks closer") from error
    except OSError as error:
        if error.errno in FULL_ERRORS:
            raise _full(home) from error
        raise StoreError(f"the record in {home} cannot be used ({error.strerror or error})", _RIGHTS) from error


def _is_full(error: sqlite3.DatabaseError, home: Path) -> bool:
    """Whether SQLite failed for want of space: for a quota, and for its WAL index, it reports any I/O error."""
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
    return StoreFull(f"no space left for the record in {home}", "free some space and call again")


_RIGHTS: Final = "check who owns the folder, or set WINDLASS_HOME to one that you may write"
