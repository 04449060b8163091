"""Checks, before a run, that its outputs can be written to their store at the end."""

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
    """Returns why no copy to the address can succeed: the bucket does not exist, the credentials are refused, or the
    library for the store is not installed.

    None if it may succeed, also if the store does not answer within `SECONDS`, because it may do so when the run ends.
    `home` is the folder of this user's records.
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
