"""Errors of the public API behave like those of the standard library."""

from __future__ import annotations

import pickle

import pytest

from windlass.engines.kubernetes.access.errors import Refused
from windlass.errors import JobFileError, PlanError, Problem, RunFailed, WindlassError

PROBLEM = Problem("job.yaml:4", "node", "not a field", "did you mean nodes?")


@pytest.mark.parametrize(
    "error",
    [
        RunFailed("digits-7f3k2 failed: rank 0: ValueError", "windlass logs digits-7f3k2"),
        JobFileError([PROBLEM]),
        PlanError([PROBLEM]),
        Refused("the API server refused it", "see its log", status=409, reason="Conflict"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_reaches_the_parent_of_a_process_as_it_was_raised(error: WindlassError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert (str(back), repr(back), vars(back)) == (str(error), repr(error), vars(error))
