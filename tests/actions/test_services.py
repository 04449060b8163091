"""Services are runs with a mark, a time limit, and credentials that exist only while they are active."""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.helpers.until import until

import windlass.services.program
from windlass.actions import all_services, boards, runs, services
from windlass.cli.statustext import summary_lines
from windlass.errors import EngineError, JobFileError, UsageError
from windlass.plan.exposure import Exposure
from windlass.runs.context import Context
from windlass.runs.phase import Phase
from windlass.runs.store import Store
from windlass.services.service import Service, ServiceKind, ServicePhase, ServiceRequest, _phase
from windlass.spec.job import Job
from windlass.spec.labels import SERVICE_LABEL
from windlass.supervise.process import supervisor_pid
from windlass.views.run import recorded_run

LISTENS = """
import os, pathlib, signal
folder = pathlib.Path(os.environ["WINDLASS_SERVICE_DIR"])
print(sorted(path.name for path in folder.iterdir()), flush=True)
(folder / "new").write_text("8888")
(folder / "new").rename(folder / "port")
signal.pause()
"""
REQUEST = ServiceRequest(
    ServiceKind.NOTEBOOK,
    "notebook",
    Path(windlass.services.program.__file__).parent,
    {"command": [sys.executable, "-c", LISTENS]},
    seconds=3600.0,
    idle_seconds=600.0,
    files={"page.ipynb": b"{}"},
)


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    # one slot, which another run holds: services do not wait for it
    (tmp_path / "targets.yaml").write_text("local: {kind: local, slots: 1, price_per_hour: 2, currency: EUR}\n")
    environ = {**os.environ, "WINDLASS_HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": str(tmp_path)}
    context = Context(environ, tmp_path)
    yield context
    with context.store() as store:
        for status in store.statuses(unfinished=True):
            engine = runs.engine_for(status.id, store)
            engine.stop(status.id, now=True)
            engine.wait(status.id, 100)


@pytest.fixture
def store(context: Context) -> Iterator[Store]:
    with context.store() as store:
        yield store


def started(store: Store, context: Context) -> Service:
    """Starts a service and returns it once it listens."""
    engine, run_id = services.start_service(REQUEST, "local", store, context)
    until(lambda: services.local_port(store, run_id) is not None)
    return services.service(engine, run_id, context.now())


@pytest.mark.slow
def test_service_takes_no_slot_and_is_listed_until_it_is_closed(store: Store, context: Context) -> None:
    busy = windlass.run({"name": "busy", "command": ["sh", "-c", "echo up; sleep 1000"]}, context=context)
    until(lambda: busy.status.phase is Phase.TRAINING)
    found = started(store, context)
    assert (found.kind, found.phase, found.port) == (ServiceKind.NOTEBOOK, ServicePhase.UP, 8888)
    assert (found.price_per_hour, found.currency) == (2.0, "EUR")
    assert (found.idle_seconds, found.ends_by) == (600.0, "supervisor")
    assert found.ends_at == pytest.approx(found.created_at + 3600.0)
    assert services.list_services(store, context).services == (found,)
    assert services.close_service(found, store, context).phase is Phase.STOPPED
    assert services.list_services(store, context).services == ()
    with pytest.raises(UsageError, match="no service"):
        all_services.find(found.name, None, context)


def test_credentials_are_in_a_private_folder_and_in_no_record(store: Store, context: Context) -> None:
    found = started(store, context)
    folder = context.home / "services" / found.run_id
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir() if path.name != "port"}
    assert modes == dict.fromkeys(("page.ipynb", "tls.crt", "tls.key", "token"), 0o600)
    secrets = [(folder / "token").read_bytes(), (folder / "tls.key").read_bytes().splitlines()[1]]
    services.close_service(found, store, context)
    assert not folder.exists()
    view = recorded_run(store.status(found.run_id), store, context.now())
    ended = summary_lines(view, context.now(), lambda text, *_style, **_more: text)
    assert "resume" not in " ".join(ended)
    kept = [path.read_bytes() for path in context.home.rglob("*") if path.is_file()]
    assert len(kept) > 3
    assert not [data for data in kept for secret in secrets if secret in data]


def test_credentials_of_a_killed_service_are_removed_by_the_next_command(store: Store, context: Context) -> None:
    found = started(store, context)
    folder = context.home / "services" / found.run_id
    pids = [supervisor_pid(store.run_dir(found.run_id)), *(rank.pid for rank in store.status(found.run_id).ranks)]
    for pid in pids:
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    until(lambda: services.list_services(store, context).services == ())
    assert not folder.exists()


def test_only_services_may_have_the_mark(context: Context) -> None:
    with pytest.raises(JobFileError, match="whose prefix is not for users"):
        Job(name="mine", command=["true"], labels={"windlass.dev/service": "notebook"})
    plan = services.plan_service(REQUEST, "local", context)
    assert plan.job["labels"] == {
        "windlass.dev/service": "notebook",
        "windlass.dev/service-seconds": "3600",
        "windlass.dev/service-idle-seconds": "600",
    }
    assert not any(text in plan.to_text() for text in ("PRIVATE KEY", plan.service_files["token"].decode()))


def test_service_is_neither_resumed_nor_started_again(store: Store, context: Context) -> None:
    found = started(store, context)
    services.close_service(found, store, context)
    engine = runs.engine_for(found.run_id, store)
    with pytest.raises(UsageError, match="is a service"):
        runs.resume(found.run_id, engine, context)
    with pytest.raises(UsageError, match="is a service") as refused:
        runs.rerun_plan(engine, found.run_id, None, {}, (), context)
    assert refused.value.hint == "windlass notebook starts another"
    mark = {SERVICE_LABEL: "deployment"}
    with pytest.raises(UsageError) as refused:
        runs._refuse_service(SimpleNamespace(id="digits", about=SimpleNamespace(labels=mark)))  # type: ignore[arg-type]
    assert refused.value.hint == "windlass deploy starts another"


def test_target_that_does_not_answer_is_reported(store: Store, context: Context, tmp_path: Path) -> None:
    (tmp_path / "targets.yaml").write_text("far: {kind: kubernetes, context: nowhere}\n")
    listed = services.list_services(store, context)
    assert (listed.services, [name for name, _ in listed.unanswered]) == ((), ["far"])
    with pytest.raises(EngineError, match="target far does not answer"):
        boards.running("notebook-7f3k2", ServiceKind.NOTEBOOK, store, context)


def test_service_that_cannot_be_exposed_is_closed(store: Store, context: Context) -> None:
    found = started(store, context)
    with pytest.raises(UsageError, match="expose"):
        boards.expose(found, Exposure(("203.0.113.7/32",)), 60.0, store, context)
    assert services.list_services(store, context).services == ()


def test_lost_service_has_failed_and_is_not_waited_for() -> None:
    assert _phase(Phase.LOST, is_listening=False) is ServicePhase.FAILED
