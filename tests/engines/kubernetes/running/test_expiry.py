"""Ended runs expire in their cluster with their record, and never with results; a resume keeps them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.engines.kubernetes.objectserver import ObjectServer
from tests.engines.kubernetes.planning.test_plan import CLUSTER, FACTS, blockers, planned
from tests.engines.kubernetes.scene import RunScene

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused
from windlass.engines.kubernetes.objects import ttl
from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.engines.kubernetes.reading.preflight.rights import Rights
from windlass.engines.kubernetes.running import expiry
from windlass.engines.kubernetes.running.expiry import sweep
from windlass.plan.plan import Plan
from windlass.plan.steps import AttemptStep, SupervisorStep
from windlass.runs.phase import Phase

RUN = "digits-7f3k2"
WEEK = ttl.WEEK_SECONDS
INSIDE = dataclasses.replace(FACTS, cluster=dataclasses.replace(CLUSTER, rights=Rights(has_account=True)))


@pytest.fixture
def server(server: ObjectServer) -> ObjectServer:
    server.owner_config_map(RUN)
    return server


def supervisor(server: ObjectServer, ttl: int | None = WEEK) -> str:
    """Creates the Job of a supervisor; returns its uid."""
    spec = {} if ttl is None else {"ttlSecondsAfterFinished": ttl}
    made = server.put("Job", f"{RUN}-supervisor", api="batch/v1", spec=spec)
    return str(made["metadata"]["uid"])


def owners(client: Client) -> list[str]:
    owner_config_map = client.get("v1", "ConfigMap", RUN)
    return [owner["uid"] for owner in owner_config_map["metadata"].get("ownerReferences", ())]


def seconds(plan: Plan) -> tuple[int | None, int | None]:
    """Returns the TTLs of the supervisor's Job and of the pods, in seconds."""
    jobs = [one for one in plan.manifests(SupervisorStep) if one["kind"] == "Job"]
    spec = plan.manifests(AttemptStep)[0]["spec"]
    found = [one["spec"].get("ttlSecondsAfterFinished") for one in jobs]
    return (found[0] if found else None), spec.get("runPolicy", spec).get("ttlSecondsAfterFinished")


@pytest.mark.parametrize(
    ("fields", "inside", "machine"),
    [
        ({}, (WEEK, None), (None, WEEK)),
        ({"ttl": "2h"}, (7200, 7200), (None, 7200)),
        ({"ttl": 0}, (3600, 0), (None, 0)),
        ({"ttl": "never"}, (None, None), (None, None)),
        ({"results": {"size": "1GiB"}}, (None, None), (None, None)),
        ({"results": {"size": "1GiB", "keep": True}}, (WEEK, None), (None, WEEK)),
        ({"results": {"size": "1GiB"}, "ttl": "2h"}, (None, 7200), (None, 7200)),
    ],
)
@pytest.mark.parametrize("via", [name for name, way in WORKLOADS.items() if not way.no_ttl])
def test_run_is_kept_for_a_week_unless_results_would_be_deleted_with_it(
    via: str, fields: dict[str, Any], inside: tuple[int | None, int | None], machine: tuple[int | None, int | None]
) -> None:
    assert seconds(planned(INSIDE, kubernetes={"via": via, **fields})) == inside
    assert seconds(planned(kubernetes={"via": via, **fields})) == machine


@pytest.mark.parametrize("via", [name for name, way in WORKLOADS.items() if way.no_ttl])
def test_pods_of_kinds_without_their_own_ttl_are_kept_as_long_as_the_run(via: str) -> None:
    fields: dict[str, Any] = {"launcher": "mpi"} if via == "mpijob" else {}
    assert seconds(planned(INSIDE, kubernetes={"via": via}, **fields)) == (WEEK, None)
    assert seconds(planned(kubernetes={"via": via}, **fields)) == (None, None)
    assert set(blockers(planned(kubernetes={"via": via, "ttl": "1h"}, **fields))) == {"ttl"}
    assert blockers(planned(kubernetes={"via": via, "ttl": "never"}, **fields)) == {}


def test_the_job_of_the_supervisor_owns_the_run_from_its_end_on(server: ObjectServer, client: Client) -> None:
    uid = supervisor(server)
    expiry.begin(client, RUN)
    assert owners(client) == [uid]


def test_owner_config_map_of_a_run_that_never_expires_has_no_owner(server: ObjectServer, client: Client) -> None:
    supervisor(server, ttl=None)
    expiry.begin(client, RUN)
    assert owners(client) == []


def test_a_resume_releases_the_run_from_the_job_that_it_replaces(server: ObjectServer, client: Client) -> None:
    supervisor(server)
    expiry.begin(client, RUN)
    expiry.release(client, RUN)
    assert owners(client) == []
    expiry.begin(client, RUN)
    assert owners(client) == [], "the supervisor that has just ended was late"
    server.remove("Job", f"{RUN}-supervisor")
    uid = supervisor(server)
    expiry.begin(client, RUN)
    assert owners(client) == [uid], "the resumed run has ended"


def before_write(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Calls `act` between the next read of an object and its write."""
    call = Client.call

    def late(self: Client, method: Any, path: str, *more: Any, **options: Any) -> Any:
        if method == "PUT":
            monkeypatch.setattr(Client, "call", call)
            act()
        return call(self, method, path, *more, **options)

    monkeypatch.setattr(Client, "call", late)


def test_a_supervisor_does_not_overwrite_a_release(
    server: ObjectServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resume happens between the supervisor's read of the owner ConfigMap and its write."""
    supervisor(server)
    before_write(monkeypatch, lambda: expiry.release(client, RUN))
    with pytest.raises(Refused) as error:
        expiry.begin(client, RUN)
    assert error.value.status == 409
    assert owners(client) == []


def test_release_is_repeated_after_a_conflict_with_the_ending_supervisor(
    server: ObjectServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor(server)
    before_write(monkeypatch, lambda: expiry.begin(client, RUN))
    expiry.release(client, RUN)
    assert owners(client) == []


def test_a_release_needs_no_job(client: Client) -> None:
    expiry.release(client, RUN)
    assert owners(client) == []


# -- runs that this machine supervised --------------------------------------------------------------------------------


def ended(scene: RunScene, phase: Phase = Phase.SUCCEEDED) -> float:
    scene.end(phase)
    scene.server.owner_config_map("r-1")
    ended_at = scene.store.status("r-1").times.ended_at
    assert ended_at is not None
    scene.dir.mkdir(parents=True, exist_ok=True)
    return ended_at


def swept(scene: RunScene, folder: Path, now: float) -> bool:
    """Returns whether a submission at this time removes the run from the cluster."""
    sweep(scene.store, scene.server.client(folder), "lab", now)
    return "r-1" not in scene.server.names("ConfigMap")


def test_the_next_submission_of_this_machine_removes_its_expired_runs(server: ObjectServer, tmp_path: Path) -> None:
    with closing(RunScene(server, tmp_path)) as scene:
        at = ended(scene)
        assert not swept(scene, tmp_path, at + WEEK - 10)
        assert swept(scene, tmp_path, at + WEEK + 10)
        assert scene.store.status("r-1").phase is Phase.SUCCEEDED
        before = len(server.requests)
        assert swept(scene, tmp_path, at + 2 * WEEK)
        assert len(server.requests) == before, "it is looked at once"


@pytest.mark.parametrize(
    ("phase", "fields"),
    [
        (Phase.LOST, {}),
        (Phase.SUCCEEDED, {"kubernetes": {"ttl": "never"}}),
        (Phase.SUCCEEDED, {"kubernetes": {"results": {"size": "1GiB"}}}),
    ],
)
def test_unexpired_runs_are_not_removed(
    server: ObjectServer, tmp_path: Path, phase: Phase, fields: dict[str, Any]
) -> None:
    with closing(RunScene(server, tmp_path, **fields)) as scene:
        assert not swept(scene, tmp_path, ended(scene, phase) + 3 * WEEK)
