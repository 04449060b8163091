"""Supervisor process of one run: its command line, pid file, signals and crash marker."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from windlass.errors import WindlassError
from windlass.plan.plan import Plan
from windlass.runs import crash
from windlass.runs.clock import Clock
from windlass.runs.stop_request import StopRequest
from windlass.runs.store import Store
from windlass.worker import process

if TYPE_CHECKING:
    from windlass.supervise.backend import MakeBackend
    from windlass.supervise.supervisor import Supervisor

PID_FILE: Final = "supervisor.pid"
PID_FILE_BYTES: Final = 96


def main(argv: list[str], make_backend: MakeBackend) -> int:
    """Runs `HOME RUN_ID LOCK_FD`: supervises one run. Returns the exit code.

    The process inherits the lock, so that no other supervisor can start meanwhile. An exception other than a
    WindlassError is a crash, and leaves a marker.
    """
    home, run_id, lock = Path(argv[0]), argv[1], int(argv[2])
    os.set_inheritable(lock, False)
    try:
        _supervise(home, run_id, lock, make_backend)
    except WindlassError as error:  # the next supervisor may not meet the error, such as one of a disk or a login
        with contextlib.suppress(OSError):  # the log may be on the full disk
            print(f"supervisor ended: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except Exception as error:
        crash.mark(home / "runs" / run_id, error)
        raise
    return 0


def _supervise(home: Path, run_id: str, lock: int, make_backend: MakeBackend) -> None:
    # The module is imported late because commands import this file only for `supervisor_pid`.
    from windlass.supervise.supervisor import Supervisor

    with Store(home) as store:
        run_dir = store.run_dir(run_id)
        writer = store.writer(run_id, lock)
        assert writer is not None
        plan = store.plan(run_id)
        supervisor = Supervisor(writer, plan, run_dir, make_backend(plan, run_dir))
        handle_signals(supervisor)
        _write_pid(run_dir)  # the pid is written last, because a command may then send a signal at once
        if writer.status.phase.is_terminal:  # the run has ended, but its clean-up is incomplete
            supervisor.backend.clean_up(supervisor.record)
            return
        supervisor.run()
        if supervisor.detached:
            return  # the next supervisor continues the run
        writer.close()  # from now on, commands can resume or remove the run
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        notify_end(store, plan)
        supervisor.backend.watch_node_deletion(store)
        store.empty_trash()  # this step may be slow, but no command waits for this process


def notify_end(store: Store, plan: Plan) -> None:
    """Notifies the webhook of the job, if any, of the end of its run. Raises StoreError."""
    if plan.policy.notify:
        from windlass.supervise import notify  # imported late, because the module loads as much code as a supervisor

        if (webhook := notify.webhook_of(plan.policy, os.environ)) is not None:
            notify.notify_end(store, plan.run_id, webhook, Clock())


def supervisor_pid(run_dir: Path) -> int | None:
    """Returns the pid of a run's supervisor; None if it has ended, even if its pid was reused."""
    try:
        pid, start_ticks, boot = (run_dir / PID_FILE).read_text().split()
        return int(pid) if process.is_same(int(pid), int(start_ticks), boot) else None
    except (OSError, ValueError):
        return None


def _write_pid(run_dir: Path) -> None:
    me = process.stat(os.getpid())
    identity = f"{os.getpid()} {me.start_ticks if me else 0} {process.boot_id()}"
    # On a full disk, no command can wake the supervisor, which then polls every half second.
    with contextlib.suppress(OSError):
        file = os.open(run_dir / PID_FILE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:  # the padded text has a constant length, which needs no new space on a full disk
            os.write(file, identity.ljust(PID_FILE_BYTES).encode())
        finally:
            os.close(file)


def handle_signals(supervisor: Supervisor) -> None:
    """Installs signal handlers. SIGINT means that a stop was requested; SIGTERM means that the machine shuts down."""

    def on_interrupt(_number: int, _frame: object) -> None:
        supervisor.stop_request = StopRequest()

    def on_term(_number: int, _frame: object) -> None:
        supervisor.terminated = True

    signal.signal(signal.SIGINT, on_interrupt)
    signal.signal(signal.SIGTERM, on_term)
    signal.set_wakeup_fd(supervisor.clock.fileno(), warn_on_full_buffer=False)
    # A parent process may have blocked signals, and a child inherits its mask.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
