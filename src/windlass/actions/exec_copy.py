"""Runs commands in the environment of a rank or in a pod with a claim, and copies files from and to either."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Final

from windlass.actions import runs
from windlass.engines.base import ClaimFiles, Engine
from windlass.errors import EngineError, UsageError
from windlass.runs import context as process
from windlass.runs.record import Status
from windlass.runs.store import Store

if TYPE_CHECKING:
    from windlass.views.artifacts import CopiedFiles
    from windlass.worker.tarpipe import Received

CLAIM: Final = "claim:"
CODE: Final = "code"
"""Path prefix for the code at the start of a run."""
WRITABLE: Final = ("", "output", "checkpoints", CODE)
"""First components of paths that can be written to. An absolute path, whose first component is empty, is a path of the
pod. `code` is refused later with a better message."""
NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
"""Valid names of PersistentVolumeClaims."""


def execute(
    run: str | None,
    command: Sequence[str],
    store: Store,
    *,
    on: str | None = None,
    rank: int | None = None,
    node: int | None = None,
    stdin: IO[bytes] | None,
    stdout: IO[bytes],
    stderr: IO[bytes],
) -> int:
    """Runs a command in the environment and working folder of a rank; returns its exit code.

    With `node` instead of `rank`, the command gets the environment shared by all ranks of that node; without either,
    the environment of rank 0. `run` may also name a claim, as `claim:NAME`: then a pod that mounts the claim runs the
    command. Raises NoSuchRun, UsageError, EngineError.
    """
    if not command:
        raise UsageError("the command is empty", "write for example nvidia-smi")
    if run is not None and (claim := _claim(run)) is not None:
        _refuse_node(run, rank, node)
        with _claim_files(claim[0], on, store) as files:
            return files.execute(command, stdin, stdout, stderr)
    engine, run_id = runs.find(run, store, on, process.here())
    status = engine.status(run_id)
    if status.phase.is_terminal:
        raise UsageError(
            f"{status.id} has ended as {status.phase}: it has no process",
            f"windlass cp {status.id}:output . copies its results",
        )
    where = node_of(engine, status, rank, node)
    if not status.attempts and engine.plan_of(status.id) is not None:
        raise EngineError(f"{status.id} has not started: it is {status.phase}", f"windlass status {status.id}")
    rank = rank if rank is not None or node is not None else 0
    return engine.exec(status.id, where, rank, command, stdin, stdout, stderr)


def copy(
    source: str,
    destination: str,
    store: Store,
    cwd: Path,
    *,
    on: str | None = None,
    node: int | None = None,
    on_progress: Callable[[int], None] = lambda _bytes: None,
) -> CopiedFiles:
    """Copies a file or folder from `RUN:path` to a local path, or vice versa; `on_progress` receives the bytes copied
    so far.

    A relative path of a run is a result (`output/…`, `checkpoints/…`) or the code at its start (`code/…`); an absolute
    path is a path of the pod. `claim:NAME/path` stands for a claim of the target `on`. A destination that ends with a
    slash is a folder, which is created. Raises NoSuchRun, UsageError, EngineError.
    """
    there, here = _split(source, cwd), _split(destination, cwd)
    if (there is None) == (here is None):
        missing = "of a run" if there is None else "a path of this machine"
        raise UsageError(f"one of {source} and {destination} must be {missing}", "windlass cp RUN:output/model.pt .")
    local = cwd / os.path.expanduser(destination if there else source)
    is_folder = there is not None and destination.endswith("/")
    return copied(there, here, local, store, on=on, node=node, into_folder=is_folder, on_progress=on_progress)


def copied(
    there: tuple[str, str] | None,
    here: tuple[str, str] | None,
    local: Path,
    store: Store,
    *,
    on: str | None = None,
    node: int | None = None,
    into_folder: bool = False,
    on_progress: Callable[[int], None] = lambda _bytes: None,
) -> CopiedFiles:
    """Copies from `there` to `local`, or from `local` to `here`.

    `there` and `here` are each a pair of a run or claim, and a path. With `into_folder`, `local` is a folder, which is
    created. Raises the errors of `copy`.
    """
    from windlass.views.artifacts import CopiedFiles
    from windlass.worker.tarpipe import SPECIAL, is_special

    is_missing = here is not None and not local.exists()
    what = f"is {SPECIAL}" if is_special(str(local)) else "does not exist" if is_missing else ""
    if what:
        raise UsageError(f"{local} {what}", "name a file or folder of this machine")
    try:
        with _made(local) if into_folder else contextlib.nullcontext():
            of, found = _copied(there, here, local, store, on, node, on_progress)
    except OSError as error:
        what = f"{error.filename or local}: {error.strerror}" if error.strerror else str(error)
        hint = "is there room, and the right to read and write?"
        if isinstance(error, FileNotFoundError):
            hint = "make it first: of a destination that ends in a slash, its last folder is made"
        raise EngineError(what, hint) from error
    return CopiedFiles(of, found.path, found.files, found.bytes, tuple(found.left_out))


@contextlib.contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Creates a folder for the duration of a copy, and removes it again if it is new and still empty. Raises
    OSError.
    """
    if folder.is_dir():
        yield
        return
    folder.mkdir()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # rmdir fails if the folder is not empty
            folder.rmdir()


def _copied(
    there: tuple[str, str] | None,
    here: tuple[str, str] | None,
    local: Path,
    store: Store,
    on: str | None,
    node: int | None,
    on_progress: Callable[[int], None],
) -> tuple[str, Received]:
    """Copies from `there` or to `here`, each a pair of a run or claim, and a path.

    Returns the name of the run or claim, and the copied files.
    """
    of, path = there or here or ("", "")
    if there is not None:
        path = path.rstrip("/") or path  # for a source, `data/` means `data`
    if of.startswith(CLAIM):
        _refuse_node(of, None, node)
        with _claim_files(of.removeprefix(CLAIM), on, store) as files:
            return of, files.fetch(path, local, on_progress) if there is not None else files.put(
                local, path, on_progress
            )
    engine, run_id = runs.find(of, store, on, process.here())
    path = path if path.startswith("/") else _relative(path)
    if ".." in path.split("/") or "\0" in path:
        raise UsageError(f"{run_id}:{path}: a path of a run may not lead upwards", "name it without ..")
    if here is not None and path.partition("/")[0] not in WRITABLE:
        raise UsageError(f"{run_id}:{path} is none of its results", f"write for example {run_id}:output/{local.name}")
    if path.partition("/")[0] == "checkpoints" and "://" in (folder := engine.checkpoint_dir(run_id)):
        raise UsageError(f"the checkpoints of {run_id} are in {folder}", f"windlass data copy {folder} FOLDER")
    if path.partition("/")[0] == CODE:
        return run_id, _code(engine, run_id, path, local, is_read=there is not None)
    where = node_of(engine, engine.status(run_id), None, node)
    if there is not None:
        return run_id, engine.fetch(run_id, where, path, local, on_progress)
    return run_id, engine.put(run_id, where, local, path, on_progress)


def _code(engine: Engine, run_id: str, path: str, local: Path, *, is_read: bool) -> Received:
    """Copies code of the run, as it was at the start, to this machine. Raises UsageError, EngineError, OSError."""
    import tarfile

    from windlass.code.snapshot import extract_snapshot
    from windlass.worker.tarpipe import Received

    if not is_read:
        raise UsageError(
            f"{run_id}:{path} is what the run began with, and is not written",
            f"change the folder of the job, and: windlass rerun {run_id}",
        )
    place = local / PurePosixPath(path).name if local.is_dir() else local
    found = Received(str(place))
    try:
        found.files, found.bytes = extract_snapshot(engine.store.run_dir(run_id), path.partition("/")[2] or ".", place)
    except (tarfile.TarError, EOFError) as error:
        raise EngineError(f"the code of {run_id} cannot be read ({error})") from error
    return found


@contextlib.contextmanager
def _claim_files(claim: str, on: str | None, store: Store) -> Iterator[ClaimFiles]:
    """Opens the files of a claim of a target. Raises UsageError, EngineError."""
    from windlass.actions.targets import find_target
    from windlass.engines import target_class

    if on is None:
        raise UsageError(f"{CLAIM}{claim} is in a cluster, and no target is named", "add --on TARGET")
    context = process.here()
    target = find_target(on, context)
    engine = target_class(target.kind, f"target {target.name}").connect(store, target, context)
    with engine.claim_files(claim) as files:
        yield files


def _claim(text: str) -> tuple[str, str] | None:
    """Splits `claim:results/data` into the claim's name and the path in the claim; None for other texts. Raises
    UsageError.
    """
    if not text.startswith(CLAIM):
        return None
    name, _, path = text.removeprefix(CLAIM).partition("/")
    if not NAME.fullmatch(name):
        raise UsageError(f"{text} names no claim", "write claim:NAME/PATH; see: kubectl get pvc")
    if ".." in path.split("/") or "\0" in path:
        raise UsageError(f"{text}: a path of a claim may not lead upwards", "name it without ..")
    return name, _relative(path)


def _refuse_node(claim: str, rank: int | None, node: int | None) -> None:
    if rank is not None or node is not None:
        raise UsageError(f"{claim} has neither ranks nor nodes", "leave out --rank and --node")


def _split(text: str, cwd: Path) -> tuple[str, str] | None:
    """Splits `digits-7:output` into run and path; None for a local path. Raises UsageError."""
    if (claim := _claim(text)) is not None:
        return f"{CLAIM}{claim[0]}", claim[1]
    run, colon, path = text.partition(":")
    if not colon or not run or "/" in run or (cwd / text).exists():
        return None
    return run, path


def _relative(path: str) -> str:
    """Normalizes a path but keeps a trailing slash, which marks a destination as a folder."""
    plain = str(PurePosixPath(path or "."))
    return f"{plain}/" if path.endswith("/") else plain


def node_of(engine: Engine, status: Status, rank: int | None, node: int | None) -> int:
    """Returns the node of `rank`, or `node`, or the first node. Raises UsageError for an unknown rank or node."""
    if rank is not None and node is not None:
        raise UsageError("--rank and --node exclude each other", "give one of them")
    if rank is not None:
        found = next((one.node for one in status.ranks if one.rank == rank), None)
        if found is None:
            had = f"ranks 0–{len(status.ranks) - 1}" if status.ranks else "no rank yet"
            raise UsageError(f"{status.id} has no rank {rank}: it has {had}", f"windlass status {status.id}")
        return found
    plan = engine.plan_of(status.id)
    planned = range(1 if plan is None else plan.num_nodes)  # without a local record, the number of nodes is unknown
    members = (status.attempts[-1].members if status.attempts else ()) or tuple(planned)
    if node is not None and node not in members:
        raise UsageError(f"node {node} is not a node of {status.id}", f"windlass status {status.id}")
    return members[0] if node is None else node
