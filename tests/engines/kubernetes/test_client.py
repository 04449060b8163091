"""What the API server's answers, and connections that break, become for the callers of the client."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.engines.kubernetes.api import client_of, not_found, reply, serving

from windlass.engines.kubernetes.client import ABSENT_SECONDS, Absence, Refused

HTML = b"<html><body><h1>404 Not Found</h1><hr>nginx</body></html>"
UNSERVED = {"kind": "Status", "reason": "NotFound", "details": {}, "code": 404,
            "message": "the server could not find the requested resource"}  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "is_absent"),
    [
        (not_found("jobs", "r-1"), True),
        (not_found("namespaces", "team"), False),
        (reply(HTML, 404), False),
        (reply(UNSERVED, 404), False),
        (reply({"reason": "NotFound", "details": "r-1"}, 404), False),
        (reply({"reason": "Forbidden", "details": {"name": "r-1"}}, 403), False),
    ],
)
def test_only_the_api_servers_own_answer_means_that_an_object_is_absent(
    tmp_path: Path, answer: bytes, is_absent: bool
) -> None:
    with serving(lambda *_: answer) as api, pytest.raises(Refused) as refused:
        client_of(api, tmp_path).get("batch/v1", "Job", "r-1")
    assert refused.value.is_absent("r-1") is is_absent


def test_an_object_is_removed_once_it_is_absent_twice_some_seconds_apart() -> None:
    now = [100.0]
    absence = Absence(lambda: now[0])
    assert not absence.is_confirmed(is_absent=True)
    now[0] += ABSENT_SECONDS / 2
    assert not absence.is_confirmed(is_absent=True)
    assert not absence.is_confirmed(is_absent=False)
    now[0] += ABSENT_SECONDS
    assert not absence.is_confirmed(is_absent=True)
    now[0] += ABSENT_SECONDS
    assert absence.is_confirmed(is_absent=True)
