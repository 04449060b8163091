"""The webhook of a job is called, with a real server on loopback."""

from __future__ import annotations

import contextlib
import http.server
import itertools
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.clock import FakeClock

from windlass.plan.plan import NO_PLAN
from windlass.runs.events import Created, RootCause, RunEnded, RunResumed
from windlass.runs.phase import Phase
from windlass.runs.record import Status, fold
from windlass.runs.store import Store
from windlass.supervise.notify import PAUSES, Webhook, notify_end, notify_once, send, webhook_of

SECRET = "/services/T0/B0/very-secret"


@dataclass
class Hook:
    """Webhook with scripted responses."""

    answers: list[int]
    address: str = ""
    got: list[Mapping[str, Any]] = field(default_factory=list)


@contextlib.contextmanager
def hooked(*answers: int) -> Iterator[Hook]:
    hook = Hook(list(answers))

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            hook.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(hook.answers.pop(0) if hook.answers else 200)
            self.send_header("Location", f"{hook.address}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        hook.address = f"http://127.0.0.1:{server.server_port}{SECRET}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hook
        finally:
            server.shutdown()
            thread.join()


def ended(phase: Phase = Phase.FAILED) -> Status:
    return fold(
        [
            Created("digits-7", "digits", "lab", "/o", user="ann", labels={"team": "vision"}).event(1, 100.0),
            *([RootCause("RuntimeError: boom", rank=1).event(2, 110.0)] if phase is Phase.FAILED else []),
            RunEnded(phase, 0 if phase is Phase.SUCCEEDED else 1).event(3, 160.0),
        ]
    )


def test_end_is_sent_once_with_sentence_and_run() -> None:
    with hooked() as hook:
        told = send(Webhook("slack-url", hook.address), ended(), FakeClock())
    [got] = hook.got
    assert told.error == ""
    assert got["text"] == got["content"] == "digits-7 failed after 60 s on lab: RuntimeError: boom"
    run = got["run"]
    assert (run["id"], run["phase"], run["labels"], run["exit_code"]) == ("digits-7", "failed", {"team": "vision"}, 1)


def test_a_success_has_no_cause() -> None:
    with hooked() as hook:
        send(Webhook("slack-url", hook.address), ended(Phase.SUCCEEDED), FakeClock())
    assert hook.got[0]["text"] == "digits-7 succeeded after 60 s on lab"


def test_a_busy_server_is_asked_again_and_one_that_refuses_is_not() -> None:
    clock = FakeClock()
    with hooked(503, 429) as hook:
        assert send(Webhook("slack-url", hook.address), ended(), clock).error == ""
    assert (len(hook.got), clock.waits) == (3, [0.0, *PAUSES])
    with hooked(404) as hook:
        assert send(Webhook("slack-url", hook.address), ended(), FakeClock()).error == "it answered 404"
    assert len(hook.got) == 1


@pytest.mark.parametrize("code", [301, 307, 308])
def test_a_redirect_is_not_followed(code: int) -> None:
    with hooked(code) as hook:
        assert send(Webhook("slack-url", hook.address), ended(), FakeClock()).error == f"it answered {code}"
    assert len(hook.got) == 1


def test_no_error_has_the_address() -> None:
    with hooked() as hook:
        address = hook.address
    for given, expected in (
        (address, "it could not be reached (Connection refused)"),
        ("", "SLACK_URL is not set where the run is supervised"),
        ("file:///etc/passwd", "SLACK_URL holds no address that begins with https:// or http://"),
        (f"http://[{SECRET}", "it could not be reached"),
    ):
        told = send(Webhook("slack-url", given), ended(), FakeClock())
        assert expected in told.error
        assert SECRET not in json.dumps(told.to_json())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Creates a store with an ended run."""
    with Store(tmp_path) as store:
        with contextlib.closing(
            store.create("digits-7", name="digits", target="lab", output_dir="/o", plan="{}", time=100.0)
        ) as writer:
            writer.append(RunEnded(Phase.FAILED, 1))
        yield store


def kinds(store: Store) -> list[str]:
    return [event.kind for event in store.events("digits-7")]


def test_supervisor_sends_each_end_once_also_for_predecessor(store: Store) -> None:
    writer = store.writer("digits-7")
    assert writer is not None
    with contextlib.closing(writer), hooked() as hook:
        webhook = Webhook("slack-url", hook.address)
        for _ in range(2):
            notify_once(writer, webhook, FakeClock())
        notify_once(writer, None, FakeClock())
        assert (len(hook.got), kinds(store)) == (1, ["created", "end", "notified"])
        writer.append(RunResumed())
        writer.append(RunEnded(Phase.FAILED, 1))
        notify_once(writer, webhook, FakeClock())
        assert len(hook.got) == 2


def test_run_is_not_locked_while_webhook_is_called(store: Store) -> None:
    """Otherwise resuming or removing the run would wait for all tries of an unresponsive webhook."""
    held: list[bool] = []
    clock = FakeClock()
    for seconds in itertools.accumulate((0.0, *PAUSES)):
        clock.at(seconds, lambda: held.append(store.is_held("digits-7")))
    with hooked(503, 503, 503) as hook:
        notify_end(store, "digits-7", Webhook("slack-url", hook.address), clock)
    assert held == [False] * 3
    assert kinds(store) == ["created", "end", "notified"]
    assert not store.is_held("digits-7")


def test_a_run_that_is_removed_meanwhile_stays_removed(store: Store) -> None:
    clock = FakeClock()
    clock.at(0.0, lambda: store.delete("digits-7"))
    notify_end(store, "digits-7", Webhook("slack-url", "http://127.0.0.1:1/"), clock)
    assert not store.run_dir("digits-7").exists()


@pytest.mark.parametrize("is_held", [True, False])
def test_a_run_that_is_resumed_meanwhile_has_its_next_writer(store: Store, is_held: bool) -> None:
    with contextlib.ExitStack() as stack, hooked() as hook:

        def resume() -> None:
            writer = store.writer("digits-7")
            assert writer is not None
            writer.append(RunResumed("asked"))
            if is_held:
                stack.enter_context(contextlib.closing(writer))
            else:
                writer.close()

        clock = FakeClock()
        clock.at(0.0, resume)
        notify_end(store, "digits-7", Webhook("slack-url", hook.address), clock)
        assert len(hook.got) == 1
        assert kinds(store) == ["created", "end", "resume"]


def test_the_variable_is_named_like_the_secret() -> None:
    assert webhook_of(NO_PLAN.policy, {}) is None
    assert webhook_of(NO_PLAN.policy.replace(notify="slack-url"), {"SLACK_URL": "https://x"}) == Webhook(
        "slack-url", "https://x"
    )
    assert webhook_of(NO_PLAN.policy.replace(notify="team.hook"), {}) == Webhook("team.hook", "")
