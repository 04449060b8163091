"""Opens a record in a folder that is not writable: a read-only file system, an archive, or another user's folder."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any, Final

from windlass.errors import StoreError
from windlass.runs.private import foreign

JOURNALS: Final = ("-wal", "-journal")
"""Suffixes of files next to a record: a WAL that is not merged yet, or the journal of an interrupted transaction."""
NEEDS_FILES: Final = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)


def is_read_only(record: Path) -> bool:
    """Whether a record exists in a folder that this process cannot write.

    Raises OSError, and StoreError if another user's folder is not readable.
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
    """Opens a record for reading, including the content of its WAL. Raises StoreError, OSError,
    sqlite3.DatabaseError.
    """
    # `os.open` reports why a file cannot be read, which SQLite does not.
    os.close(os.open(record, os.O_RDONLY | os.O_CLOEXEC))
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
        # With a WAL, SQLite creates files next to the record even for reading, unless the record is immutable. A
        # process that writes the record now would have created those files.
        database = sqlite3.connect(f"{address}?immutable=1", uri=True, **options)
    return database
