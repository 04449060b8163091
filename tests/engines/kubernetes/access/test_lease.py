"""A machine with a wrong clock uses the cluster's clock to decide about runs in that cluster."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from email.utils import formatdate
from pathlib import Path

import pytest
from tests.engines.kubernetes.objectserver import ObjectServer, _Handler

from windlass.engines.kubernetes.access import lease
from windlass.engines.kubernetes.access.client import Client, _ahead
from windlass.engines.kubernetes.access.lease import Lease, held_elsewhere
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.reading import supervisor_status
from windlass.engines.kubernetes.reading.discovery import discovery
from windlass.runs.phase import Phase

RUN = "digits-7f3k2"
HOUR = 3600.0


@pytest.fixture(params=[HOUR, -HOUR], ids=["behind", "ahead"])
def now(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """Returns the cluster's time, which the machine's clock is behind or ahead of."""
    shift = float(request.param)
    monkeypatch.setattr(_Handler, "date_time_string", lambda _: formatdate(time.time() + shift, usegmt=True))
    return time.time() + shift


@pytest.fixture
def server(server: ObjectServer, now: float) -> ObjectServer:
    server.owner_config_map(RUN, created=datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    return server


def test_newly_submitted_run_is_not_lost_despite_wrong_clock(client: Client) -> None:
    [seen] = discovery.look(client).runs(time.time())
    assert seen.phase is Phase.QUEUED


def test_recently_renewed_lease_is_held_despite_wrong_clock(
    client: Client, server: ObjectServer, tmp_path: Path, now: float
) -> None:
    server.put(
        "Lease",
        RUN,
        {layout.RUN_LABEL: RUN},
        api="coordination.k8s.io/v1",
        spec={"holderIdentity": "pod-a_0_1-0", "renewTime": datetime.fromtimestamp(now, UTC).isoformat()},
    )
    assert held_elsewhere(client, RUN, tmp_path, time.time())
    assert not supervisor_status.absence(client, RUN, time.time())


def test_supervisor_with_wrong_clock_renews_its_lease_by_cluster_time(client: Client) -> None:
    """With its own clock, `status` would report the supervisor as unresponsive."""
    assert Lease(client, RUN, "pod-a_0_1-0").ensure()
    assert supervisor_status.quiet_since(client, RUN, time.time()) is None
    assert lease.renewed_at(client, RUN) == pytest.approx(time.time() + client.ahead, abs=20.0)


def test_clock_difference_within_date_resolution_is_ignored() -> None:
    date = "Sun, 22 Nov 2026 10:00:00 GMT"
    at = datetime(2026, 11, 22, 10, tzinfo=UTC).timestamp()
    assert _ahead(date, at + 1.4) == 0.0
    assert _ahead(date, at - HOUR) == HOUR
    assert _ahead("", at) == _ahead("nonsense", at) == 0.0
