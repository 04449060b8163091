"""Reads facts of this machine that may explain how a run on it ended, for `why`."""

from __future__ import annotations

from pathlib import Path

from windlass.diagnose.nccl_dumps import read_watchdogs
from windlass.diagnose.observations import Environment, MachineFacts, Observations
from windlass.runs.phase import Phase
from windlass.runs.record import Status
from windlass.runs.store import Store


def machine_facts(store: Store, status: Status) -> MachineFacts:
    """Reads facts of this machine that may explain how a run ended, from files only."""
    began = status.attempts[-1].started_at if status.attempts else 0.0
    written = [path for path in store.run_dir(status.id).glob("nccl-trace-rank-*") if path.stat().st_mtime >= began]
    seen = Observations(status, store.plan(status.id))
    return MachineFacts(
        _booted_at() if status.phase is Phase.LOST else None,
        not store.reserve.has_space(),
        environment(seen.python, seen.code_dir),
        read_watchdogs(written),
    )


def environment(python: str, code_dir: str) -> Environment:
    """Returns the tool that manages the packages of an interpreter, and the prefix of the interpreter's environment."""
    if not python:
        return Environment()
    prefix = Path(python).parent.parent
    if (prefix / "conda-meta").is_dir():
        return Environment("conda", str(prefix))
    try:
        config = (prefix / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Environment("system", str(prefix))
    folder = Path(code_dir or prefix)
    for lock, kind in (("uv.lock", "uv-project"), ("poetry.lock", "poetry")):
        project = next((one for one in (folder, *folder.parents) if (one / lock).is_file()), None)
        if project is not None and (kind == "poetry" or prefix == project / ".venv"):
            return Environment(kind, str(prefix))
    # Environments created by uv need uv to install packages, because they lack pip.
    made_by_uv = any(line.partition("=")[0].strip() == "uv" for line in config.splitlines())
    return Environment("uv" if made_by_uv else "venv", str(prefix))


def _booted_at() -> float | None:
    try:
        for line in Path("/proc/stat").read_text().splitlines():
            if line.startswith("btime "):
                return float(line.split()[1])
    except (OSError, ValueError):
        pass
    return None
