"""Opens a record in a folder that cannot be written: on a read-only file system, an archive, or of another user."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any, Final

from windlass.errors import StoreError
from windlass.runs.private import foreign

JOURNALS: Final = ("-wal", "-journal")
"""Files beside a record: a WAL that is not merged into it yet, or the journal of a change that was broken off."""
NEEDS_FILES: Final = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)


def is_read_only(record: Path) -> bool:
    """Whether there is a record, in a folder in which this process can write nothing.

    Raises OSError, and StoreError for the closed folder of another user.
    """
    home = record.parent
    try:
        record.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:
        if (owner := home.stat().st_uid) != os.geteuid():
            raise foreign(home, home, owner) from None
        raise
    return not os.access(home, os.W_OK)


def connect(record: Path, **options: Any) -> sqlite3.Connection:
    """Open a record to be read, with what is in its WAL. Raises StoreError, OSError, sqlite3.DatabaseError."""
    os.close(os.open(record, os.O_RDONLY | os.O_CLOEXEC))  # its error has a reason, which SQLite's lacks
    address = record.absolute().as_uri()
    database: sqlite3.Connection = sqlite3.connect(f"{address}?mode=ro", uri=True, **options)
    try:
        database.execute("PRAGMA user_version")
    except sqlite3.DatabaseError as error:
        database.close()
        if error.sqlite_errorcode & 0xFF not in NEEDS_FILES:
            raise
        for journal in (record.with_name(record.name + suffix) for suffix in JOURNALS):
            if journal.exists() and journal.stat().st_size:
                raise StoreError(
                    f"{record.parent} cannot be written, and without that the changes in {journal.name} cannot be read",
                    f"cp -r {record.parent} FOLDER, and set WINDLASS_HOME to the copy",
                ) from error
        # With a WAL, SQLite makes files beside the record even to read, unless nothing can change: a process that
        # writes it now would have made them.
        database = sqlite3.connect(f"{address}?immutable=1", uri=True, **options)
    return database
