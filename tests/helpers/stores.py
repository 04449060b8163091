"""Stores of records whose home counts as a folder of a network file system."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.runs.store import Store


def store_on(home: Path, *, is_network: bool) -> Store:
    """The store of a home that other machines can use, or that only this one can."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("windlass.runs.store.is_on_network", lambda _home: is_network)
        return Store(home)
