"""The process that keeps one run: how it is started, says who it is, and hears signals."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Final

from windlass.engines.keeping import crash
from windlass.engines.keeping.ground import GroundOf
from windlass.engines.keeping.supervisor import Supervisor
from windlass.errors import WindlassError
from windlass.plan.plan import Plan
from windlass.runs.store import Store
from windlass.runs.wish import Wish
from windlass.worker import process

PID_FILE_BYTES: Final = 96


def main(argv: list[str], ground_of: GroundOf) -> int:
    """`HOME RUN_ID LOCK_FD`: keep one run; the lock is inherited, so there is no moment without a keeper.

    An exception that is no error of its surroundings is a crash, and leaves a marker.
    """
    home, run_id, lock = Path(argv[0]), argv[1], int(argv[2])
    os.set_inheritable(lock, False)
    try:
        _keep(home, run_id, lock, ground_of)
    except WindlassError as error:  # a disk, a login, a record: the next supervisor may fare better
        with contextlib.suppress(OSError):  # the log may lie on the full disk
            print(f"supervisor ended: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except Exception as error:
        crash.mark(home / "runs" / run_id, error)
        raise
    return 0


def _keep(home: Path, run_id: str, lock: int, ground_of: GroundOf) -> None:
    with Store(home) as store:
        run_dir = store.run_dir(run_id)
        writer = store.writer(run_id, lock)
        assert writer is not None
        plan = Plan.from_json(store.plan(run_id))
        keeper = Supervisor(writer, plan, run_dir, ground_of(plan, run_dir))
        _hear_signals(keeper)
        _say_who(run_dir)  # not before it hears: the first thing that follows may be a signal
        keeper.run()
        if keeper.detached:
            return  # the run is open, and goes on
        writer.close()  # whoever resumes or removes the run need not wait for what follows
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        keeper.ground.see_off(store)
        store.empty_trash()  # no command waits for this process


def keeper_pid(run_dir: Path) -> int | None:
    """The process that keeps a run; None where it is dead, even if its pid is another's by now."""
    try:
        pid, start_ticks, boot = (run_dir / "supervisor.pid").read_text().split()
        return int(pid) if process.is_same(int(pid), int(start_ticks), boot) else None
    except (OSError, ValueError):
        return None


def _say_who(run_dir: Path) -> None:
    me = process.stat(os.getpid())
    identity = f"{os.getpid()} {me.start_ticks if me else 0} {process.boot_id()}"
    with contextlib.suppress(OSError):  # on a full disk it is woken by nobody, and looks every half second
        file = os.open(run_dir / "supervisor.pid", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:  # in place and of one length: what a supervisor before this one wrote has its space already
            os.write(file, identity.ljust(PID_FILE_BYTES).encode())
        finally:
            os.close(file)


def _hear_signals(keeper: Supervisor) -> None:
    """SIGINT wakes the keeper to read a wish; without one it is a wish itself. At SIGTERM the machine goes down."""

    def on_interrupt(_number: int, _frame: object) -> None:
        keeper.wish = Wish()

    def on_term(_number: int, _frame: object) -> None:
        keeper.terminated = True

    signal.signal(signal.SIGINT, on_interrupt)
    signal.signal(signal.SIGTERM, on_term)
    signal.set_wakeup_fd(keeper.wake_end, warn_on_full_buffer=False)
