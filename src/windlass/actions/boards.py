"""Starts TensorBoard and notebooks on runs, folders, object stores and claims, and opens them for a browser."""

from __future__ import annotations

import contextlib
import importlib.resources
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from windlass.actions import all_services, event_file_copies, runs, services
from windlass.actions.jobs import code_folder
from windlass.actions.targets import find_target
from windlass.engines import engine_class
from windlass.engines.interpreter import find_python
from windlass.engines.kubernetes.objects import layout
from windlass.errors import EngineError, NoSuchRun, UsageError, WindlassError
from windlass.services.environment import find_jupyter, image_setup
from windlass.services.service import Service, ServiceKind, ServicePhase, ServiceRequest, is_service
from windlass.stores.opening import SCHEMES

if TYPE_CHECKING:
    from windlass.engines.base import Engine
    from windlass.plan.exposure import Exposure
    from windlass.runs.context import Context
    from windlass.runs.store import Store
    from windlass.services.forward import Forward

PROGRAM: Final = "jupyter.py"
PAGE: Final = "windlass.ipynb"
START: Final = 'exec "$0" "$WINDLASS_SERVICE_DIR/jupyter.py" "$@"'
"""Shell script that starts the program, which is a file of the service."""
CLAIM: Final = "claim:"
CLAIM_FOLDER: Final = "/claim"
"""Path at which pods mount a claim."""
COPIES: Final = "logs"
"""Name of the folder, inside the folder of a service, with links to event files and copies of them."""
FOLLOW: Final = (
    "import runpy, sys; sys.path.insert(0, {!r}); runpy.run_module({!r}, run_name='__main__', alter_sys=True)"
)
"""Program that copies new event files while TensorBoard runs. It adds Windlass to `sys.path`, because the PYTHONPATH of
ranks has only the parts of Windlass that scripts import."""
PACKAGE_ROOT: Final = Path(__file__).parents[2]
ENDED: Final = (ServicePhase.ENDED, ServicePhase.FAILED)
POLL_SECONDS: Final = 0.2
START_SECONDS: Final = 60.0
"""Seconds that a program may take from its start until it answers."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a TensorBoard or a notebook: target, limits, and fields of its job."""

    on: str | None = None
    """Target; None for this machine, or for the cluster of a run whose results are in a claim."""
    seconds: float | None = None
    """Seconds after which the service ends; None if it never does."""
    idle_seconds: float | None = None
    installs: bool = False
    """Whether a pod installs packages that its image lacks."""
    fields: Mapping[str, Any] | None = None
    """Fields of the job, such as `image` and `resources`."""
    exposure: Exposure | None = None
    """Public load balancer in front of a service in a cluster; None without one."""


def start_tensorboard(
    sources: Sequence[str], options: Options, store: Store, context: Context, on_line: Callable[[str], None]
) -> Service:
    """Starts TensorBoard on runs, folders, addresses of object stores, or one claim. Default: the newest run.

    Returns before TensorBoard listens. Raises NoSuchRun, UsageError and the errors of `services.start_service`.
    """
    found = [_resolved(one, store, context) for one in sources or (store.find(),)]
    claims = [one for one in found if one.startswith(CLAIM)]
    if claims:
        if len(found) > 1:
            raise UsageError("a claim is shown alone", "name one source")
        return _in_cluster(ServiceKind.TENSORBOARD, claims[0], None, options, store, context)
    logdir = found[0] if len(found) == 1 and _is_folder(found[0]) else COPIES
    follow = None
    if logdir == COPIES:
        follow = [sys.executable, "-c", FOLLOW.format(str(PACKAGE_ROOT), event_file_copies.__name__), COPIES, *found]
    python = str(find_python(None, context.cwd, context.environ))
    asked = {"logdir": logdir, "root": None, "follow": follow}
    return _here(ServiceKind.TENSORBOARD, python, asked, {}, options, store, context, on_line)


def start_notebook(
    source: str | None, options: Options, store: Store, context: Context, on_line: Callable[[str], None]
) -> Service:
    """Starts a notebook on a run, a folder or a claim. Default: the newest run. Returns before the notebook listens.

    If the results of the run are only in a claim, the notebook starts in that cluster. Raises as `start_tensorboard`.
    """
    found = _resolved(source or store.find(), store, context)
    if "://" in found:
        raise UsageError(f"a notebook opens runs, folders and claims, not {found}", "copy it first: windlass data copy")
    if found.startswith(CLAIM):
        return _in_cluster(ServiceKind.NOTEBOOK, found, None, options, store, context)
    python = str(find_python(None, context.cwd, context.environ))
    asked: dict[str, Any] = {"logdir": found, "root": found, "follow": None}
    files = {}
    if not _is_folder(found):
        engine = runs.engine_for(found, store)
        results = engine.results(found)
        if results.kind == "claim" and not results.copied:
            return _in_cluster(
                ServiceKind.NOTEBOOK, f"{CLAIM}{results.claim}", (engine, found), options, store, context
            )
        output = results.copied or results.path
        if not Path(output).is_dir():
            raise UsageError(f"the results of {found} are not on this machine", f"windlass artifacts {found}")
        plan = store.plan(found)
        python = plan.nodes.worker_python if plan.runs_here else python
        files = {
            PAGE: prepared_page(
                found, [engine.checkpoint_dir(found), output], str(code_folder(plan)), plan.nodes.script
            )
        }
        asked |= {"logdir": output, "root": "output"}
    return _here(ServiceKind.NOTEBOOK, python, asked, files, options, store, context, on_line)


def _resolved(source: str, store: Store, context: Context) -> str:
    """Returns a claim or an address unchanged, the path of a folder, or a run id. Raises NoSuchRun, UsageError."""
    if source.startswith(CLAIM):
        return source
    if "://" in source:
        if source.partition("://")[0] not in SCHEMES:
            raise UsageError(f"{source} is in no known kind of store", f"known are {', '.join(SCHEMES)}")
        return source
    folder = (context.cwd / source).expanduser()
    return str(folder.resolve()) if folder.is_dir() else store.find(source)


def _is_folder(resolved: str) -> bool:
    return resolved.startswith("/")


def _here(
    kind: ServiceKind, python: str, asked: Mapping[str, Any], files: Mapping[str, bytes], options: Options,
    store: Store, context: Context, on_line: Callable[[str], None],
) -> Service:  # fmt: skip
    """Starts a service on this machine; `options` may name a local target."""
    if options.exposure is not None:
        raise UsageError("--expose needs a cluster", "this machine has no load balancer: use ssh -L for its ports")
    on = options.on or "local"
    target = find_target(on, context)
    if engine_class(target.kind).is_remote:
        raise UsageError(
            f"{on} is not this machine, and reads no folders of it", "leave out --on; or name a claim: claim:NAME"
        )
    found = find_jupyter(kind, python, context.home, on_line)
    asked = {**asked, "idle": options.idle_seconds or 0, "kernel": found.kernel}
    return _started(kind, found.python, asked, files, {}, options, on, store, context)


def _in_cluster(
    kind: ServiceKind, claim: str, of: tuple[Engine, str] | None, options: Options, store: Store, context: Context
) -> Service:
    """Starts a service in a pod that mounts a claim. `of` is the run whose results are shown; None for the
    whole claim.
    """
    engine, run_id = of if of is not None else (None, "")
    plan = store.plan(run_id) if run_id else None
    on = options.on or (plan.target if plan is not None else None)
    if on is None:
        raise UsageError(f"{claim} is in a cluster", "name the target: --on TARGET")
    target = find_target(on, context)
    volume: dict[str, Any] = {"claim": claim.removeprefix(CLAIM), "path": CLAIM_FOLDER}
    is_notebook = kind is ServiceKind.NOTEBOOK
    fields: dict[str, Any] = {"volumes": [{**volume, "read_only": not is_notebook or plan is not None}]}
    python, files, folder = getattr(target, "python", None) or "python3", {}, CLAIM_FOLDER
    if plan is not None and engine is not None:
        folder = f"{CLAIM_FOLDER}/{Path(engine.results(run_id).path).parent}"
        code = code_folder(plan)
        fields |= {"image": plan.job.get("image")} | ({"code": str(code)} if code.is_dir() else {})
        script = Path(plan.nodes.script).name
        files = {PAGE: prepared_page(run_id, [f"{folder}/checkpoints", f"{folder}/output"], layout.CODE, script)}
    # Without requests and limits, a notebook could take all memory of its node.
    fields |= {
        "resources": {"cpus": 1, "memory": "2GiB"},
        "setup": image_setup(kind, python, installs=options.installs),
    }
    root = None if not is_notebook else CLAIM_FOLDER if plan is None else "output"
    asked = {"logdir": folder, "root": root, "follow": None, "idle": options.idle_seconds or 0, "kernel": None}
    if options.exposure is None:
        return _started(kind, python, asked, files, fields, options, on, store, context)
    if options.seconds is None:
        raise UsageError("--expose needs an end of the service", "leave out --keep: a load balancer bills")
    started = _started(kind, python, {**asked, "ip": "0.0.0.0"}, files, fields, options, on, store, context)
    expose(started, options.exposure, options.seconds, store, context)
    return started


def expose(started: Service, exposure: Exposure, seconds: float, store: Store, context: Context) -> None:
    """Puts a public load balancer in front of a service for this many seconds; if that fails, the service is closed.

    Raises UsageError, EngineError.
    """
    try:
        services.engine_of(started, store, context)[0].expose(started.run_id, exposure, seconds)
    except WindlassError:  # the user does not know its name yet, and it would bill until its end
        services.close_service(started, store, context)
        raise


def _started(
    kind: ServiceKind, python: str, asked: Mapping[str, Any], files: Mapping[str, bytes], fields: Mapping[str, Any],
    options: Options, on: str, store: Store, context: Context,
) -> Service:  # fmt: skip
    program = importlib.resources.files("windlass.services.program")
    command = ["sh", "-c", START, python, json.dumps(asked)]
    own = {name: one for name, one in (options.fields or {}).items() if name != "resources"}
    resources = {**fields.get("resources", {}), **(options.fields or {}).get("resources", {})}
    request = ServiceRequest(
        kind,
        kind.value,
        Path(str(program)),
        {"command": command, **fields, **own, "resources": resources},
        options.seconds,
        options.idle_seconds,
        {PROGRAM: program.joinpath(PROGRAM).read_bytes(), **files},
    )
    engine, run_id = services.start_service(request, on, store, context)
    return services.service(engine, run_id, context.now())


def prepared_page(run_id: str, places: Sequence[str], code: str, script: str) -> bytes:
    """Returns the prepared notebook of a run, as the content of an .ipynb file. `places` are folders with checkpoints
    and models, `code` is the folder of the script.
    """
    text = importlib.resources.files("windlass.services.program").joinpath("page.txt").read_text()
    values = f"RUN = {run_id!r}\nPLACES = {list(places)!r}\nCODE = {code!r}\nSCRIPT = {Path(script).name!r}"
    cells: list[dict[str, Any]] = []
    for part in (f"\n{values}", *text.split("# %%")[1:]):
        title, _, body = part.partition("\n")
        cell = {"id": f"cell-{len(cells)}", "metadata": {}, "source": body.strip()}
        if "markdown" in title:
            lines = (line.removeprefix("# ") for line in body.strip().splitlines())
            cells.append({**cell, "cell_type": "markdown", "source": "\n".join(lines)})
        else:
            cells.append({**cell, "cell_type": "code", "outputs": [], "execution_count": None})
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    page = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(page, indent=1).encode()


# -- reaching a service -----------------------------------------------------------------------------------------------


def running(name: str, kind: ServiceKind, store: Store, context: Context) -> Service | None:
    """Returns the running service with this name; None if `name` is a folder, another run, or unknown.

    Targets are asked only for names that begin like those of services of this kind. Raises UsageError for a service
    that has ended or is of another kind, EngineError.
    """
    if (context.cwd / name).is_dir():
        return None
    try:
        engine, run_id = runs.find(name, store)
        if not is_service(engine.status(run_id)):
            return None
        found = services.service(engine, run_id, context.now())
    except NoSuchRun:
        if not name.startswith(f"{kind}-"):
            return None
        view = all_services.find(name, None, context)
        if view.kind != kind:
            raise UsageError(f"{name} is a {view.kind}", f"windlass {kind} starts one") from None
        engine, run_id = runs.find(view.run, store, view.target, context)
        found = services.service(engine, run_id, context.now())
    if found.kind is not kind:
        raise UsageError(f"{name} is a {found.kind}", f"windlass {found.kind} {name}")
    if found.phase in ENDED:
        raise UsageError(f"{name} has ended", f"start another: windlass {kind}")
    return found


@contextlib.contextmanager
def forwarded(found: Service, store: Store, context: Context, ports: Sequence[int] = (0,)) -> Iterator[Forward]:
    """Waits until a service listens, and yields a forward to it. Raises EngineError if the service has ended,
    UsageError if no port is free.
    """
    from windlass.engines.pinned_http import ServerAccess, send
    from windlass.services.forward import Access, Forward

    engine, run_id = services.engine_of(found, store, context)
    while found.port is None:
        if found.phase in ENDED:
            raise EngineError(f"{run_id} did not start: {found.cause or 'it has ended'}", f"windlass logs {run_id}")
        time.sleep(POLL_SECONDS)
        found = services.service(engine, run_id, context.now())
    port, files = found.port, engine.service_files(run_id)
    certificate, token = files["tls.crt"], files["token"].decode()
    access = Access(certificate, f"token {token}", f"windlass {found.kind} {found.name}")
    give_up = time.monotonic() + START_SECONDS
    with engine.ports(run_id) as open_port:
        while True:
            try:
                send(open_port(0, port), ServerAccess(certificate, token), "GET", "/api/status", timeout=START_SECONDS)
                break
            except EngineError:
                if time.monotonic() >= give_up or engine.status(run_id).phase.is_terminal:
                    raise
                time.sleep(POLL_SECONDS)
        with Forward(lambda: open_port(0, port), access, ports=ports) as forward:
            yield forward
