"""Forwards a port of this machine to a port of a rank, as long as the run is active."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Final

from windlass.actions import runs
from windlass.actions.exec_copy import node_of
from windlass.errors import EngineError, UsageError, WindlassError
from windlass.runs import context as process
from windlass.runs.store import Store
from windlass.services.browser_access import address_of
from windlass.services.forward import Forward
from windlass.views.ports import ForwardedPort

POLL_SECONDS: Final = 2.0
"""Seconds between two reads of the run's status: the rank may move to another node, and the run may end."""


def forward_port(
    run: str,
    port: int,
    store: Store,
    *,
    on: str | None = None,
    rank: int = 0,
    host: str,
    local_ports: Sequence[int],
    on_ready: Callable[[ForwardedPort], None],
    on_failure: Callable[[WindlassError], None],
) -> None:
    """Listens on `host` and the first of `local_ports` that is free, and passes every connection on to `port` of a
    rank, until the run ends.

    After a restart, new connections reach the rank's new process. `on_ready` is called with the forwarded port, and
    `on_failure`, in another thread, with the error of a connection that failed. Raises NoSuchRun, UsageError for a run
    that has ended, EngineError for a run that has not started or that ends meanwhile.
    """
    engine, run_id = runs.find(run, store, on, process.here())
    status = engine.status(run_id)
    if status.phase.is_terminal:
        raise UsageError(f"{run_id} has ended as {status.phase}: nothing listens", f"windlass rerun {run_id}")
    if not status.attempts and engine.plan_of(run_id) is not None:
        raise EngineError(f"{run_id} has not started: it is {status.phase}", f"windlass status {run_id}")
    node = node_of(engine, status, rank or None, None)
    with (
        engine.ports(run_id) as open_port,
        Forward(lambda: open_port(node, port), host=host, ports=local_ports, on_failure=on_failure) as forward,
    ):
        on_ready(ForwardedPort(run_id, rank, port, address_of(host, forward.port, "").removeprefix("http://")))
        while status.phase not in engine.final_phases:
            time.sleep(POLL_SECONDS)
            with contextlib.suppress(EngineError):  # a cluster that does not answer now
                status = engine.status(run_id)
                with contextlib.suppress(UsageError):  # between two attempts, it may have no such rank
                    node = node_of(engine, status, rank or None, None)
    raise EngineError(f"{run_id} has ended as {status.phase}: nothing listens any more", f"windlass status {run_id}")
