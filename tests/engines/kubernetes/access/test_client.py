"""The client converts responses of the API server, and broken connections, to results and errors."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.engines.kubernetes.api import chunked, client_of, not_found, reply, serving
from tests.helpers.clock import FakeClock

from windlass.engines.kubernetes.access import exec_stream
from windlass.engines.kubernetes.access.absence import ABSENT_SECONDS, Absence
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused, Unreachable
from windlass.engines.kubernetes.access.kubeconfig import kubectl
from windlass.errors import EngineError, MissingExtra

HTML = b"<html><body><h1>404 Not Found</h1><hr>nginx</body></html>"
UNSERVED = {
    "kind": "Status",
    "reason": "NotFound",
    "details": {},
    "code": 404,
    "message": "the server could not find the requested resource",
}


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
def test_only_404_of_the_api_server_itself_means_missing_object(tmp_path: Path, answer: bytes, is_absent: bool) -> None:
    with serving(lambda *_: answer) as api:
        client = client_of(api, tmp_path)
        with pytest.raises(Refused) as refused:
            client.get("batch/v1", "Job", "r-1")
        assert refused.value.is_absent("r-1", "Job") is is_absent
        with contextlib.nullcontext() if is_absent else pytest.raises(Refused):
            assert client.get_if_exists("batch/v1", "Job", "r-1") is None


@pytest.mark.parametrize(
    ("kubeconfig", "command"),
    [
        ("/data/a b/kubeconfig", "kubectl --kubeconfig '/data/a b/kubeconfig' --context a"),
        ("~/.kube/config", "kubectl --context a"),
        ("/a:/b", "kubectl --context a"),
    ],
)
def test_hint_contains_a_kubeconfig_that_is_not_the_default(kubeconfig: str, command: str) -> None:
    assert kubectl("a", os.path.expanduser(kubeconfig)) == command


def test_hint_for_unreachable_server_is_a_complete_command(tmp_path: Path) -> None:
    with serving(lambda *_: b"") as api:
        client = client_of(api, tmp_path)
    with pytest.raises(Unreachable) as refused:
        client.get("batch/v1", "Job", "r-1")
    assert f"kubectl --kubeconfig {tmp_path}" in (refused.value.hint or "")


def test_quota_conflict_is_not_taken_for_existing_object(tmp_path: Path) -> None:
    """A ResourceQuota was changed by another client at the same moment, so that the API server has created nothing."""
    words = 'Operation cannot be fulfilled on resourcequotas "team": the object has been modified'
    answer = reply({"reason": "Conflict", "message": words, "details": {"name": "team", "kind": "resourcequotas"}}, 409)
    made = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "r-1"}}
    with serving(lambda *_: answer) as api, pytest.raises(Refused, match="cannot be fulfilled on resourcequotas"):
        client_of(api, tmp_path).create_if_absent(made)
    exists = reply({"reason": "AlreadyExists", "details": {"name": "r-1", "kind": "services"}}, 409)
    with serving(lambda *_: exists) as api:
        assert client_of(api, tmp_path).create_if_absent(made) is None


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ('jobs.batch is forbidden: User "ana" cannot create resource "jobs" in API group "batch"', "ask for the right"),
        ('roles "r" is forbidden: user "ada" (groups=["dev"]) is attempting to grant RBAC', "ask for the right"),
        ("jobs is forbidden", "ask for the right"),
        ('admission webhook "policy.io" denied the request: no team label', "change the job"),
        ("ValidatingAdmissionPolicy 'teams' with binding 'all' denied request: no team label", "change the job"),
        ('jobs.batch "r-1" is forbidden: exceeded quota: q, requested: c=1, used: c=1, limited: c=1', "change the job"),
    ],
)
def test_admission_refusal_is_not_reported_as_missing_right(tmp_path: Path, words: str, hint: str) -> None:
    answer = reply({"reason": "Forbidden", "message": words}, 403)
    with serving(lambda *_: answer) as api, pytest.raises(Refused) as refused:
        client_of(api, tmp_path).get("batch/v1", "Job", "r-1")
    assert refused.value.hint.startswith(hint)


def test_object_is_removed_after_two_absences_some_seconds_apart() -> None:
    clock = FakeClock()
    absence = Absence(clock.monotonic)
    assert not absence.is_confirmed(is_absent=True)
    clock.now += ABSENT_SECONDS / 2
    assert not absence.is_confirmed(is_absent=True)
    assert not absence.is_confirmed(is_absent=False)
    clock.now += ABSENT_SECONDS
    assert not absence.is_confirmed(is_absent=True)
    clock.now += ABSENT_SECONDS
    assert absence.is_confirmed(is_absent=True)


LIST = {"metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": "p"}}]}
BAD_ANSWERS = {
    "a body that is cut": reply(LIST, cut=7),
    "chunks that are cut": chunked(b'{"metadata": {', is_whole=False),
    "the page of a proxy": reply(HTML),
    "JSON that is cut, of no known length": b'HTTP/1.0 200 OK\r\n\r\n{"metadata": {"res',
    "no answer": b"",
    "JSON of something else": reply({"ok": True}),
    "a list": reply([1, 2]),
    "nothing": reply(b""),
    "JSON that is too deep": reply(b'{"a":' * 5000),
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "a compression that is none": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd",
}
POD = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "node"}]}}
CALLS: dict[str, Callable[[Client], Any]] = {
    "get": lambda client: client.get("v1", "Pod", "p"),
    "find": lambda client: client.find("v1", "Pod"),
    "watch": lambda client: list(client.watch("v1", "Pod", "", "1", 1)),
    "exec": lambda client: exec_stream.call(client, POD, ["true"], 1.0),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("answer", BAD_ANSWERS)
def test_invalid_response_means_unreachable_server(tmp_path: Path, answer: str, call: str) -> None:
    if call == "watch" and answer in ("no answer", "nothing"):
        answer = "the page of a proxy"  # A watch may also end without any change.
    with serving(lambda *_: BAD_ANSWERS[answer]) as api, pytest.raises(EngineError) as broken:
        CALLS[call](client_of(api, tmp_path))
    assert isinstance(broken.value, Unreachable) or (call == "exec" and isinstance(broken.value, Refused))


@pytest.mark.parametrize(("method", "times"), [("GET", 2), ("PATCH", 1), ("DELETE", 1), ("POST", 1)])
def test_only_reads_are_retried_after_a_broken_connection(tmp_path: Path, method: Any, times: int) -> None:
    with serving(lambda *_: b"") as api:
        with pytest.raises(Unreachable):
            client_of(api, tmp_path).call(method, "/api/v1/things")
        assert len(api.asked) == times


def test_request_is_retried_after_retry_after_of_a_busy_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that has just started responds like this: `storage is (re)initializing`."""
    busy = {"message": "storage is (re)initializing", "reason": "TooManyRequests", "details": {"retryAfterSeconds": 1}}
    pauses: list[float] = []
    monkeypatch.setattr("windlass.engines.kubernetes.access.client.time.sleep", pauses.append)
    with serving(lambda *_: reply(busy, 429) if len(api.asked) < 3 else reply(POD)) as api:
        assert client_of(api, tmp_path).get("v1", "Pod", "p") == POD
    assert pauses == [1.0, 1.0]


@pytest.mark.parametrize("details", [{}, {"retryAfterSeconds": 3600}, {"retryAfterSeconds": "1"}])
def test_busy_server_without_short_retry_after_counts_as_refusal(tmp_path: Path, details: dict[str, Any]) -> None:
    with serving(lambda *_: reply({"message": "busy", "details": details}, 429)) as api:
        with pytest.raises(Refused, match="busy"):
            client_of(api, tmp_path).get("v1", "Pod", "p")
        assert len(api.asked) == 1


def test_missing_exec_package_is_reported_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "websocket", None)
    with serving(lambda *_: b"") as api, pytest.raises(MissingExtra) as missing:
        exec_stream.call(client_of(api, tmp_path), POD, ["true"], 1.0)
    assert missing.value.hint == "pip install websocket-client"


def test_list_without_its_table_means_unreachable_server(tmp_path: Path) -> None:
    page = {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": []}
    with serving(lambda *_: reply(page)) as api, pytest.raises(Unreachable, match="not with the table"):
        list(client_of(api, tmp_path).pages("v1", "Pod", "a=b"))
