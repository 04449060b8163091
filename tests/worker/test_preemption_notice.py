"""Preemption notices are reported once, and a broken or missing metadata service disturbs no rank."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.ports import quiet_port
from tests.worker.metadata import INTERRUPTION, REBALANCE, Service, metadata_service

import windlass.worker.preemption_notice as notice_module
from windlass.engines.local.facts import find_metadata
from windlass.worker.preemption_notice import Metadata, notices

SCRIPT = Path(notice_module.__file__)
TERMINATE = {"action": "terminate", "time": "2026-09-18T08:22:00Z"}


@pytest.fixture
def service() -> Iterator[Service]:
    with metadata_service() as made:
        yield made


@contextmanager
def watcher(service: Service, **more: Any) -> Iterator[subprocess.Popen[str]]:
    spec = {"endpoint": service.endpoint, "poll_seconds": 0.05, "known": [], **more}
    command = [sys.executable, "-I", "-S", str(SCRIPT), json.dumps(spec)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as popen:
        try:
            yield popen
        finally:
            popen.kill()


def next_line(popen: subprocess.Popen[str]) -> dict[str, str]:
    assert popen.stdout is not None
    found: dict[str, str] = json.loads(popen.stdout.readline())
    return found


def test_machine_without_notices_reports_nothing(service: Service) -> None:
    assert list(notices(Metadata(service.endpoint))) == []
    assert service.asked == [("PUT /latest/api/token", 200), (f"GET {INTERRUPTION}", 404), (f"GET {REBALANCE}", 404)]


def test_interruptions_and_rebalance_recommendations_are_read(service: Service) -> None:
    service.say(INTERRUPTION, action="hibernate", time="2026-09-18T08:22:00Z")
    service.say(REBALANCE, noticeTime="2026-09-18T08:10:00Z")
    assert list(notices(Metadata(service.endpoint))) == [
        {"source": "imds", "action": "stop", "time": "2026-09-18T08:22:00Z"},
        {"source": "imds", "action": "rebalance", "time": "2026-09-18T08:10:00Z"},
    ]


def test_expired_token_is_fetched_again(service: Service) -> None:
    metadata = Metadata(service.endpoint)
    service.say(INTERRUPTION, **TERMINATE)
    assert len(list(notices(metadata))) == 1
    service.tokens.clear()
    assert [notice["action"] for notice in notices(metadata)] == ["terminate"]
    assert [status for _, status in service.asked].count(401) == 1
    assert sum(asked.startswith("PUT") for asked, _ in service.asked) == 2


@pytest.mark.parametrize("document", [[], "x", {}, {"action": "noop", "time": "t"}, {"time": "t"}])
def test_invalid_notice_is_ignored(service: Service, document: Any) -> None:
    service.documents = {INTERRUPTION: document, REBALANCE: document}
    assert list(notices(Metadata(service.endpoint))) == []


def test_missing_metadata_service_reports_nothing() -> None:
    assert list(notices(Metadata(f"http://127.0.0.1:{quiet_port()}"))) == []


def test_unresponsive_metadata_service_does_not_block() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        assert list(notices(Metadata(f"http://127.0.0.1:{deaf.getsockname()[1]}", 0.1))) == []


def test_watcher_reports_each_notice_once(service: Service) -> None:
    service.say(REBALANCE, noticeTime="2026-09-18T08:10:00Z")
    with watcher(service) as popen:
        assert next_line(popen)["action"] == "rebalance"
        service.say(INTERRUPTION, **TERMINATE)
        assert next_line(popen) == {"source": "imds", **TERMINATE}
        service.say(REBALANCE, noticeTime="2026-09-18T08:20:00Z")
        assert next_line(popen)["time"] == "2026-09-18T08:20:00Z"


def test_known_notice_is_not_reported_again(service: Service) -> None:
    service.say(INTERRUPTION, **TERMINATE)
    with watcher(service, known=[["terminate", TERMINATE["time"]]]) as popen:
        service.say(REBALANCE, noticeTime="2026-09-18T08:10:00Z")
        assert next_line(popen)["action"] == "rebalance"


def test_watcher_ignores_signals_of_a_machine_shutdown(service: Service) -> None:
    service.say(REBALANCE, noticeTime="1")
    with watcher(service) as popen:
        next_line(popen)
        popen.send_signal(signal.SIGTERM)
        service.say(INTERRUPTION, **TERMINATE)
        assert next_line(popen)["action"] == "terminate"


@pytest.mark.parametrize(
    ("environ", "vendor", "expected"),
    [
        ({}, "QEMU", None),
        ({}, "Amazon EC2", "http://169.254.169.254"),
        ({"AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE": "IPv6"}, "Amazon EC2", "http://[fd00:ec2::254]"),
        ({"AWS_EC2_METADATA_DISABLED": "true"}, "Amazon EC2", None),
        ({"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1338/"}, "QEMU", "http://127.0.0.1:1338"),
        ({"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://x", "AWS_EC2_METADATA_DISABLED": "TRUE"}, "Amazon EC2", None),
    ],
)
def test_metadata_service_is_found_on_ec2_or_by_its_variable(
    environ: dict[str, str], vendor: str, expected: str | None, tmp_path: Path
) -> None:
    (tmp_path / "sys_vendor").write_text(vendor + "\n")
    assert find_metadata(environ, tmp_path) == expected
