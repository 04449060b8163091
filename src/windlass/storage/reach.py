"""Asks a store, before a run, whether what it is to hold at the end can be written there."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

from windlass.errors import MissingExtra, UsageError, WindlassError
from windlass.storage.address import Address
from windlass.storage.opening import open_place
from windlass.storage.place import Fatal

SECONDS: Final = 5.0


def refusal(text: str, home: Path) -> WindlassError | None:
    """Why no copy to the address of a store will succeed: it names no bucket that exists, its keys are
    refused, or the library that reaches it is not installed.

    None also where the store does not answer by now, within `SECONDS`: it may once the run has ended. `home` is the
    folder of this user's records.
    """
    found: list[WindlassError] = []

    def ask() -> None:
        try:
            open_place(Address.parse(text, Path("/")), home).check()
        except WindlassError as error:
            found.append(error)

    asked = threading.Thread(target=ask, daemon=True)
    asked.start()
    asked.join(SECONDS)
    return next((error for error in found if isinstance(error, (Fatal, UsageError, MissingExtra))), None)
