"""Program of a supervisor's pod: acquires the run's Lease, restores the record, and supervises the run to its end."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from windlass.engines.kubernetes.access import background
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.control import ConnectionControl
from windlass.engines.kubernetes.access.in_cluster import CONTEXT, write_kubeconfig
from windlass.engines.kubernetes.access.lease import Lease, holder_of
from windlass.engines.kubernetes.access.order_server import OrderServer
from windlass.engines.kubernetes.objects import layout, pod_assignment
from windlass.engines.kubernetes.objects.package import AGAIN
from windlass.engines.kubernetes.objects.supervisor_manifests import MOUNTED, PLAN_FILE
from windlass.engines.kubernetes.reading import supervisor_status
from windlass.engines.kubernetes.running import markers, shutdown
from windlass.engines.kubernetes.running.backend import STARTED
from windlass.engines.kubernetes.supervisor import outputs
from windlass.engines.kubernetes.supervisor.backend import InClusterBackend
from windlass.engines.kubernetes.supervisor.metrics import MetricsMirror, metrics_file
from windlass.engines.kubernetes.supervisor.mirror import Mirror, MirroredStore
from windlass.engines.kubernetes.supervisor.record import ClusterRecord
from windlass.errors import WindlassError
from windlass.plan.plan import Plan
from windlass.plan.steps import AttemptStep, ClusterStep
from windlass.runs import crash
from windlass.runs.clock import Clock
from windlass.runs.events import NodeStarted, SupervisorRestarted, of_newest_attempt
from windlass.runs.metrics import FILE as METRICS_FILE
from windlass.runs.store import RunWriter
from windlass.supervise import notify
from windlass.supervise.process import handle_signals
from windlass.supervise.recorder import Recorder
from windlass.supervise.supervisor import Supervisor
from windlass.worker import order_protocol

HOLD_PAUSE_SECONDS: Final = 1.0
"""Seconds between two tries to acquire the Lease, which an earlier supervisor may still hold."""
LISTEN_SECONDS: Final = 20
"""Duration of one watch for stop requests in seconds; after each watch, the supervisor checks whether the run was
removed."""


def main(environ: Mapping[str, str] | None = None, mounted: Path = Path(MOUNTED)) -> int:
    """Supervises the run that `environ` names; returns 0 once the run has ended, or `AGAIN` to be restarted."""
    environ = os.environ if environ is None else environ
    run_id, namespace, home = environ["WINDLASS_RUN"], environ["WINDLASS_NAMESPACE"], Path(environ["WINDLASS_HOME"])
    kubeconfig = str(write_kubeconfig(home, environ))
    plan = _placed(json.loads(gzip.decompress((mounted / PLAN_FILE).read_bytes())), kubeconfig)
    with contextlib.closing(Client(CONTEXT, namespace, kubeconfig)) as client:
        try:
            code = _supervise(client, run_id, home, plan)
            if code == 0:
                outputs.end_at_sigterm()
                outputs.keep_until_fetched(client, run_id, home / "runs" / run_id, Clock())
                shutdown.end_supervisor_job(client, run_id)
            return code
        except WindlassError as error:  # for example, another supervisor holds the Lease, or the API server is down
            print(f"supervisor ended: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        except Exception as error:
            crash.mark(home / "runs" / run_id, error)
            raise
    return AGAIN


def _supervise(client: Client, run_id: str, home: Path, plan: Plan) -> int:
    holder = holder_of(home)
    lease = Lease(client, run_id, holder, has_ended=lambda host: supervisor_status.has_ended_on(client, run_id, host))
    while not lease.ensure():
        time.sleep(HOLD_PAUSE_SECONDS)
    record = ClusterRecord(client, run_id, holder)
    mirror = Mirror(record, client.health)
    metrics = MetricsMirror(client, run_id, holder, home / "runs" / run_id / METRICS_FILE)
    with (
        contextlib.closing(mirror),
        contextlib.closing(metrics),
        contextlib.closing(_order_server(client.health)) as orders,
        MirroredStore(home, mirror) as store,
        _restored(store, record, plan) as writer,
    ):
        mirror.put(writer.status, [])
        run_dir = store.run_dir(run_id)
        backend = InClusterBackend(plan, run_dir, mirror, metrics, ConnectionControl(orders))
        webhook = notify.webhook_of(plan.policy, os.environ)
        if writer.status.phase.is_terminal:  # a previous supervisor has recorded the end of the run
            metrics.flush()
            outputs.note_loss(Recorder(writer), run_dir, client)
            backend.clean_up(Recorder(writer))
            notify.notify_once(writer, webhook, Clock())
            mirror.flush(HOLD_PAUSE_SECONDS)
            return 0
        _restore_folder(client, writer, plan, run_dir)
        _note_restart(writer, run_dir)
        metrics.begin()
        supervisor = Supervisor(writer, plan, run_dir, backend, metrics=metrics_file(run_dir))
        handle_signals(supervisor)
        with _listening(client, run_id, run_dir, supervisor.clock):
            supervisor.run()
        mirror.flush(HOLD_PAUSE_SECONDS)
        if supervisor.detached:
            if supervisor.terminated:
                backend.lease.release()  # the next supervisor need not wait until the Lease expires
            return AGAIN
        notify.notify_once(writer, webhook, Clock())
        mirror.flush(HOLD_PAUSE_SECONDS)
        backend.watch_node_deletion(store)
        mirror.flush(HOLD_PAUSE_SECONDS)
        return 0


def _order_server(health: background.Health) -> OrderServer:
    """Creates the server to which the run's pods connect, on all addresses of this pod."""
    key = order_protocol.read_key(f"{layout.KEY}/{layout.KEY_FILE}")
    address = ("::" if socket.has_dualstack_ipv6() else "0.0.0.0", layout.ORDERS_PORT)
    return OrderServer(key, address, crashed=health.crashed)


@contextlib.contextmanager
def _restored(store: MirroredStore, record: ClusterRecord, plan: Plan) -> Iterator[RunWriter]:
    """Yields the writer of a run whose local record is restored from the cluster. Local events that the cluster lacks
    are written there.
    """
    head, events = record.read()
    status = store.copy(plan.run_id, events, plan.to_text())
    progress = max(store.status(plan.run_id).progress.to_json(), head.summary.get("progress", {}), key=_reported_at)
    if _reported_at(progress):  # the next write to the cluster would drop the progress otherwise
        store.set_progress(plan.run_id, progress)
    # A supervisor that was restarted in this pod may have local events that it had not written to the cluster yet.
    if lacking := store.events(plan.run_id, events[-1].seq if events else 0):
        store.mirror.put(status, lacking)
    writer = store.writer(plan.run_id)
    assert writer is not None  # no other process uses this home folder
    with contextlib.closing(writer):
        yield writer


def _reported_at(progress: Mapping[str, Any]) -> float:
    """Returns when the ranks reported this progress, in Unix seconds; 0 for no progress."""
    at = progress.get("at")
    return float(at) if isinstance(at, int | float) else 0.0


def _restore_folder(client: Client, writer: RunWriter, plan: Plan, run_dir: Path) -> None:
    """Restores the marker files of started attempts, which a previous supervisor wrote on another node."""
    events = writer.events()
    pod_assignment.restore_assignments(run_dir, events)
    if not writer.status.attempts:
        return
    number = writer.status.attempts[-1].number
    has_run = any(event.kind == NodeStarted.kind for event in of_newest_attempt(events))
    if has_run or _is_made(client, plan, number):
        folder = run_dir / f"attempt-{number}"
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / STARTED).touch()


def _is_made(client: Client, plan: Plan, number: int) -> bool:
    """Returns whether the owner object of an attempt exists, which is created last when an attempt starts."""
    made, name = plan.only(AttemptStep).manifest, layout.attempt_name(plan.run_id, number)
    return client.get_if_exists(made["apiVersion"], made["kind"], name) is not None


def _note_restart(writer: RunWriter, run_dir: Path) -> None:
    """Records the restart of the supervisor, unless this is the run's first supervisor."""
    if not writer.status.attempts:
        return
    crashed = crash.read(run_dir)
    data: dict[str, Any] = {} if crashed is None else {"crash": crashed.summary, "crashed_at": crashed.at}
    observed_until = max(event.time for event in writer.events() if event.kind != SupervisorRestarted.kind)
    writer.note(SupervisorRestarted(**data, observed_until=observed_until))
    crash.move_away(run_dir, writer.status.last_seq)


@contextlib.contextmanager
def _listening(client: Client, run_id: str, run_dir: Path, clock: Clock) -> Iterator[None]:
    """Reads stop requests from the cluster in the background, even while the run has no pods."""
    stop_requests, closed = markers.StopRequestRelay(client, run_id, run_dir), threading.Event()
    selector = markers.stop_selector(run_id)

    def turn() -> bool:
        found = client.find("v1", "ConfigMap", selector)
        stop_requests.relay()
        clock.wake()
        for _ in client.watch("v1", "ConfigMap", selector, found["metadata"]["resourceVersion"], LISTEN_SECONDS):
            stop_requests.relay()
            clock.wake()
        return False

    background.start("stop requests", turn, closed, client.health)
    try:
        yield
    finally:
        closed.set()


def _placed(data: dict[str, Any], kubeconfig: str) -> Plan:
    """Returns the plan with the cluster address and kubeconfig of this pod."""
    plan = Plan.from_json(data)
    inside = plan.only(ClusterStep).replace(context=CONTEXT, kubeconfig=kubeconfig)
    return replace(plan, steps=tuple(inside if isinstance(step, ClusterStep) else step for step in plan.steps))
