"""Errors of a store can be pickled, and are errors of a file system."""

from __future__ import annotations

import pickle

import pytest

from windlass.stores import errors
from windlass.stores.errors import Denied, Missing, StoreError

KINDS = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, StoreError)]


@pytest.mark.parametrize("kind", KINDS)
def test_error_survives_pickling(kind: type[StoreError]) -> None:
    found = pickle.loads(pickle.dumps(kind("the store answered 503", "s3://bucket/key", "wait")))
    assert type(found) is kind
    assert (found.errno, found.strerror, found.filename, found.hint) == (
        kind.number,
        "the store answered 503",
        "s3://bucket/key",
        "wait",
    )
    assert str(found) == "s3://bucket/key: the store answered 503; wait"


def test_missing_object_is_file_not_found_error() -> None:
    assert isinstance(Missing("404", "s3://bucket/key"), FileNotFoundError)
    assert isinstance(Denied("403", "s3://bucket/key"), PermissionError)
