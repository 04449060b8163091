"""Releases the state lock of a killed Terraform process if its holder is provably gone."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from typing import Final

from windlass.clusters.terraform import process
from windlass.clusters.terraform.driver import Terraform
from windlass.clusters.terraform.errors import LockInfo, StateLocked

CLOCK_SECONDS: Final = 2.0
"""Tolerance in seconds between Terraform's clock and Windlass's; both are on this machine."""
FLAG: Final = "--break-lock"


def release(terraform: Terraform, error: StateLocked, *, is_forced: bool) -> LockInfo:
    """Releases the lock that a command found held, and returns it.

    Raises StateLocked, with the reason as its hint, if the holder may be alive and `is_forced` is false.
    """
    lock = error.lock
    if not is_forced and (reason := why_kept(terraform, lock)):
        hint = f"{reason}; if the holder no longer runs: windlass cluster up, or down, with {FLAG}"
        raise StateLocked(lock, hint, diagnostics=error.diagnostics, log=error.log)
    terraform.force_unlock(lock.id)
    return lock


def why_kept(terraform: Terraform, lock: LockInfo) -> str:
    """Returns why the holder of a lock may be alive; empty if it is provably gone.

    The proof has four parts: Windlass started a Terraform process on this machine and did not see it end; the lock was
    taken after that start; no process holds Terraform's flock; no other Terraform process on this machine uses that
    state.
    """
    folder = terraform.folder.path
    here = os.uname().nodename
    if lock.host != here:
        return f"it is held from {lock.host or 'an unknown machine'}, and this is {here}"
    unseen = [one for one in _unseen(terraform) if one.machine_id == terraform.machine_id]
    if not unseen:
        return "it was not taken by a Terraform that Windlass started on this machine"
    taken = _unix(lock.created)
    if taken is None or not any(one.started_at - CLOCK_SECONDS <= taken for one in unseen):
        return "it is older than any Terraform process whose end Windlass did not observe"
    if process.is_held(folder):
        return "a Terraform that Windlass started still runs"
    try:
        others = process.others_at_work(folder)
    except OSError:
        return "this system does not show which processes run"
    return f"terraform runs with pid {', '.join(map(str, others))}" if others else ""


def _unseen(terraform: Terraform) -> list[process.RunningCommand]:
    """Returns Terraform processes whose end no Windlass process observed."""
    last = process.record_of(terraform.folder.path)
    return [*process.killed_in(terraform.folder.path), *([last] if last else [])]


def _unix(created: str) -> float | None:
    """Parses `2026-11-25 01:12:27.628984248 +0000 UTC` into Unix seconds; None for other formats."""
    found = re.match(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(\.\d+)? \+0000 UTC", created)
    if not found:
        return None
    whole = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    return whole.timestamp() + float(found[2] or 0)
