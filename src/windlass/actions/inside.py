"""Reaches into runs: `execute` runs a command beside the ranks, `copy` brings files out of a run or into it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from windlass.actions import runs
from windlass.errors import EngineError, UsageError
from windlass.plan.plan import Plan
from windlass.runs.record import Status
from windlass.runs.store import Store


@dataclass(frozen=True, slots=True)
class Copied:
    """What was copied."""

    id: str
    path: str
    """Where it is now, there or here."""
    files: int
    bytes: int
    left_out: tuple[str, ...] = ()
    """What was not copied, each with the reason: links that lead out, devices."""


def execute(
    run: str, command: Sequence[str], store: Store, *, rank: int | None = None, node: int | None = None,
    stdin: IO[bytes] | None, stdout: IO[bytes], stderr: IO[bytes],
) -> int:  # fmt: skip
    """Run a command where a rank runs, in its environment and working folder; gives its exit code.

    With `node` instead of `rank`, in what all ranks of that node have alike; with neither, as rank 0. Raises NoSuchRun,
    UsageError, EngineError.
    """
    status, plan = _find(run, store)
    if status.phase.is_terminal:
        raise UsageError(f"{status.id} has ended as {status.phase}: nothing of it runs", f"windlass cp {status.id}:"
                         "output . brings its results")  # fmt: skip
    where = _node(status, plan, rank, node)
    if not status.attempts:
        raise EngineError(f"{status.id} has not started: it is {status.phase}", f"windlass status {status.id}")
    rank = rank if rank is not None or node is not None else 0
    if plan.engine == "kubernetes":
        from windlass.engines.kubernetes import inside as pods

        return pods.execute(plan, status, rank, where, command, stdin, stdout, stderr)
    _require_local(plan)
    if (host := store.host_elsewhere(status)) is not None:
        raise UsageError(f"{status.id} runs on {host}, and this is another machine", f"call this on {host}")
    from windlass.engines.local import inside

    return inside.execute(store.run_dir(status.id), plan, status, rank, where, command, stdin, stdout, stderr)


def copy(
    source: str, destination: str, store: Store, cwd: Path, *, node: int | None = None,
    told: Callable[[int], None] = lambda _bytes: None,
) -> Copied:  # fmt: skip
    """Copy a file or folder from `RUN:path` to a local path, or the other way round; `told` gets the bytes so far.

    A relative path is one of the run's results (`output/…`, `checkpoints/…`); an absolute one is of a pod. Raises
    NoSuchRun, UsageError, EngineError.
    """
    there, here = _split(source, cwd), _split(destination, cwd)
    if (there is None) == (here is None):
        raise UsageError(f"one of {source} and {destination} must be of a run", "windlass cp RUN:output/model.pt .")
    run, path = there or here or ("", "")
    status, plan = _find(run, store)
    where = _node(status, plan, None, node)
    local = cwd / Path(destination if there else source).expanduser()
    if here is not None and not local.exists():
        raise UsageError(f"{local} is not there", "name a file or folder of this machine")
    try:
        if plan.engine == "kubernetes":
            from windlass.engines.kubernetes import inside as pods
            from windlass.engines.kubernetes.layout import RESULTS

            full = path if path.startswith("/") else str(PurePosixPath(RESULTS, path))
            found = (
                vars(pods.fetch(plan, status, where, full, local, told))
                if there is not None
                else pods.put(plan, status, where, local, full, told)
            )
        else:
            _require_local(plan)
            from windlass.engines.local import inside

            folder = store.run_dir(status.id)
            found = (
                vars(inside.fetch(folder, plan, path, local, told))
                if there is not None
                else inside.put(folder, plan, local, path, told)
            )
    except OSError as error:
        raise EngineError(f"{error.filename or local}: {error.strerror or error}", "is there room, and the right to "
                          "write?") from error  # fmt: skip
    return _copied(status.id, found)


def _copied(run_id: str, found: Any) -> Copied:
    return Copied(run_id, str(found["path"]), int(found["files"]), int(found["bytes"]), tuple(found["left_out"]))


def _find(run: str, store: Store) -> tuple[Status, Plan]:
    status = runs.status(run, store)
    return status, Plan.from_json(store.plan(status.id))


def _split(text: str, cwd: Path) -> tuple[str, str] | None:
    """`digits-7:output` as its run and path; None for a path of this machine. Raises UsageError."""
    run, colon, path = text.partition(":")
    if not colon or not run or "/" in run or (cwd / text).exists():
        return None
    if ".." in path.split("/") or "\0" in path:
        raise UsageError(f"{text}: a path of a run may not lead upwards", "name it without ..")
    return run, path if path.startswith("/") else str(PurePosixPath(path or "."))


def _node(status: Status, plan: Plan, rank: int | None, node: int | None) -> int:
    """The node that is meant. Raises UsageError for one that there is not."""
    if rank is not None and node is not None:
        raise UsageError("--rank and --node name two places", "give one of them")
    if rank is not None:
        found = next((one.node for one in status.ranks if one.rank == rank), None)
        if found is None:
            had = f"ranks 0–{len(status.ranks) - 1}" if status.ranks else "no rank yet"
            raise UsageError(f"{status.id} has no rank {rank}: it has {had}", f"windlass status {status.id}")
        return found
    members = (status.attempts[-1].members if status.attempts else ()) or tuple(range(plan.num_nodes))
    if node is not None and node not in members:
        raise UsageError(f"node {node} does not take part in {status.id}", f"windlass status {status.id}")
    return members[0] if node is None else node


def _require_local(plan: Plan) -> None:
    if plan.engine != "local":
        raise UsageError(f"runs of the engine '{plan.engine}' have no inside", "this works for local and kubernetes")
