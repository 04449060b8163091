"""A page over a store of its own, without a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.web.page import Page, page_over
from tests.web.records import small_record


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    """A read-only page over one failed run."""
    with page_over(tmp_path, small_record(tmp_path), may_act=False) as made:
        yield made


@pytest.fixture
def acting(tmp_path: Path) -> Iterator[Page]:
    """A page that offers actions, over one failed run."""
    with page_over(tmp_path, small_record(tmp_path), may_act=True) as made:
        yield made
