"""Deploys models, sends requests to them, and removes them, on any target."""

from __future__ import annotations

import base64
import json
import mimetypes
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from windlass.actions import runs
from windlass.actions.jobs import code_folder
from windlass.actions.targets import find_target
from windlass.engines import target_class
from windlass.engines.base import Engine
from windlass.engines.deployments import NAME_PATTERN, DeploymentRequest
from windlass.errors import UsageError
from windlass.services.known import FOLDER, MODEL, STAGING, KnownDeployment, creating, forget, read_known, remember
from windlass.services.model_folder import CODE, handler_in, stage_model
from windlass.views.services import ClosedService, Invocation

if TYPE_CHECKING:
    from windlass.engines.deployments import Deployment, DeploymentPlan, Deployments, OnProgress
    from windlass.runs.context import Context
    from windlass.runs.store import Store

LABELS: Final = "labels.json"
"""File of a model with the names of its classes: a list, or an object that maps indexes to names."""
SCORES: Final = ("predictions", "probabilities", "outputs", "scores")
"""Keys of JSON answers under which servers put the predictions of a model."""
CONTENT_TYPES: Final[Mapping[str, str]] = {
    ".csv": "text/csv", ".json": "application/json", ".jsonl": "application/jsonlines", ".npy": "application/x-npy",
    ".npz": "application/x-npz", ".txt": "text/plain",
}  # fmt: skip
IMAGE: Final = "application/x-image"
FORGET: Final = "use the login and the target settings of its deployment; if it is gone: windlass close --forget {}"
"""Advice about a deployment that was made at another place; takes the name of the deployment."""


@dataclass(frozen=True, slots=True)
class ModelCode:
    """The user's choice of functions that serve a model; all fields are empty to use those of the model or the run."""

    path: Path | None = None
    """File or folder with the functions."""
    function: str = ""
    """Function that makes the module of a state dict, as `FILE:NAME`."""


@dataclass(frozen=True, slots=True)
class _Model:
    """Location of a model's files and code."""

    files: Path | None
    """File or folder on this machine; None if the target reads `source`, or if the results must be copied first."""
    source: str
    """Address that the target reads: of a claim or an object store; empty for none."""
    run_id: str
    name: str
    code: Path | None
    image: str = ""
    python: str = ""


# -- deploy -----------------------------------------------------------------------------------------------------------


@contextmanager
def planned(
    model: str, on: str, asked: DeploymentRequest, context: Context, *, code: ModelCode | None = None
) -> Iterator[tuple[Deployments, DeploymentPlan, KnownDeployment]]:
    """Yields the deployments of the target `on`, the plan of a new deployment, and its record; creates nothing.

    `model` is a file, a folder, or a run. Its files are gathered in a folder, which replaces `asked.model` and is
    removed at the end of the block. `source`, `run_id` and `python` of `asked` are set; `name` and `image` only if they
    are empty. Raises NoSuchRun, UsageError, EngineError, OSError.
    """
    with context.store() as store:
        deployments = deployments_of(on, store, context)
        found = _find_model(model, on, deployments, store, context)
        name = _valid_name(asked.name or found.name)
        if asked.name not in ("", name):
            raise UsageError(
                f"'{asked.name}' is no name for a deployment: letters are small, and hyphens separate words",
                f"--name {name}",
            )
        staged = _new_staging(context.home / FOLDER) / MODEL
        try:
            code = code or ModelCode()
            function = _function(code.function, context)
            if code.path is not None and not code.path.exists():
                raise UsageError(f"--code {code.path} does not exist", "name a file or folder")
            _stage(
                found,
                function[0] if function else code.path or found.code,
                staged,
                store,
                is_function=bool(function),
            )
            request = replace(
                asked,
                name=name,
                model=staged,
                source=found.source,
                run_id=found.run_id,
                image=asked.image or (found.image if deployments.serves_in_run_images else ""),
                python=found.python,
                server_options=(*asked.server_options, *(("--function", function[1]) if function else ())),
            )
            plan = deployments.plan(request)
            known = KnownDeployment(
                name, on, context.now(), request.ends_at, found.run_id, _labels_in(staged), deployments.place()
            )
            yield deployments, plan, known
        finally:
            shutil.rmtree(staged.parent, ignore_errors=True)


def deploy(
    deployments: Deployments, plan: DeploymentPlan, known: KnownDeployment, context: Context, on_progress: OnProgress
) -> Deployment:
    """Creates a planned deployment and waits until it is ready. Failures are handled as in `Deployments.deploy`.

    Raises UsageError, EngineError.
    """
    before = read_known(context.home, known.target, known.name)
    if before is not None and (other := elsewhere(before, known.place)):
        raise UsageError(f"{known.name} was {other}", FORGET.format(known.name))
    try:
        # The record is written first: if this process is killed, `windlass services` still asks the target.
        with creating(context.home, known):
            try:
                found = deployments.deploy(plan, on_progress, _credentials(deployments, plan, context))
            except UsageError:
                if before is not None:  # the request was refused, and the earlier deployment may be up
                    remember(context.home, before)
                raise
            # A repeated command continues a deployment, which keeps its end.
            at, ends_at = found.created_at, found.ends_at
            remember(context.home, replace(known, created_at=at or known.created_at, ends_at=ends_at or known.ends_at))
            return found
    except UsageError:
        if before is None:  # the request was refused, and nothing was created
            forget(context.home, known.target, known.name)
        raise


def elsewhere(known: KnownDeployment, place: str) -> str:
    """Returns that a deployment was made at another place than the target's `place` of now, as the end of a sentence;
    empty if it was made there. Another login, cluster or region under the same name does not have the deployment.
    """
    if known.place == place:
        return ""
    return f"deployed to {known.place or 'an unknown place'}, and {known.target} is now {place}"


def _credentials(deployments: Deployments, plan: DeploymentPlan, context: Context) -> Mapping[str, bytes] | None:
    """Returns a certificate, its key and a token for servers in a cluster; None for other targets."""
    if not deployments.needs_credentials:
        return None
    from windlass.services.certificates import new_credentials

    asked = plan.request
    return new_credentials(asked.name, context.now(), asked.ends_at).files()


def deployments_of(on: str, store: Store, context: Context) -> Deployments:
    """Returns the deployments of the target named `on`. Raises UsageError for targets without any, EngineError."""
    target = find_target(on, context)
    engine = target_class(target.kind, f"target {on}")
    if engine.runs_services and not engine.is_remote:
        from windlass.actions.local_deployments import LocalDeployments

        return LocalDeployments(on, store, context)
    return engine.connect(store, target, context).deployments()


def has_deployments(on: str, context: Context) -> bool:
    """Whether models can be deployed to targets of this kind. Raises UsageError for an unknown target."""
    engine = target_class(find_target(on, context).kind, f"target {on}")
    return engine.runs_services or engine.deployments is not Engine.deployments


def _function(text: str, context: Context) -> tuple[Path, str] | None:
    """Returns the path of the file in `FILE:NAME`, and `FILE:NAME` with the bare file name. Raises UsageError."""
    if not text:
        return None
    file, _, name = text.rpartition(":")
    path = context.cwd / os.path.expanduser(file)
    if not file or not path.is_file():
        raise UsageError(f"--function {text}: {file or name} is not a file", "write it as train.py:make_network")
    return path, f"{path.name}:{name}"


def _find_model(model: str, on: str, deployments: Deployments, store: Store, context: Context) -> _Model:
    """Finds the files of a model for a target. `model` is an existing path on this machine, or else a run."""
    if not model:
        raise UsageError("the name of the model is empty", "name a file, a folder or a run; `.` is this folder")
    path = Path(context.cwd / os.path.expanduser(model))
    if path.exists():
        return _Model(path, "", "", path.stem if path.is_file() else path.resolve().name, None)
    if "/" in model:
        raise UsageError(f"there is no model {model}", "name a file, a folder or a run")
    engine, run_id = runs.find(model, store, None, context)
    plan, place = engine.plan_of(run_id), engine.results(run_id)
    folder = None if plan is None else code_folder(plan)
    has_code = folder is not None and handler_in(folder) is not None
    found = _Model(
        None,
        "",
        run_id,
        engine.status(run_id).name,
        folder / str(handler_in(folder)) if folder is not None and has_code else None,
        "" if plan is None else str(plan.job.get("image", "")),
        "" if plan is None or engine.is_remote else plan.nodes.worker_python,
    )
    if place.copied or place.kind == "folder":
        return replace(found, files=Path(place.copied or place.path))
    if place.elsewhere:
        raise UsageError(f"the results of {run_id} cannot be read: {place.elsewhere}")
    is_same_target = engine.status(run_id).target == on
    if place.kind == "claim" and is_same_target:
        return replace(found, source=f"claim:{place.claim}/{place.path}")
    if place.kind == "store" and deployments.reads_stores:
        return replace(found, source=place.path)
    return found


def _stage(found: _Model, code: Path | None, staged: Path, store: Store, *, is_function: bool) -> None:
    """Gathers files and functions of a model in `staged`. Results of a run that are elsewhere are copied first."""
    files = found.files
    if files is None and not found.source:
        from windlass.actions.exec_copy import copied

        files = staged.parent / "results"
        copied((found.run_id, "output"), None, files, store, into_folder=False)
    stage_model(files, code, staged, needs_handler=not is_function)


def _new_staging(folder: Path) -> Path:
    """Returns a new folder for the files of a model; removes those of processes that were killed."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in folder.glob(f"{STAGING}*"):
        if not Path("/proc", path.name.split("-")[1]).exists():
            shutil.rmtree(path, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{STAGING}{os.getpid()}-", dir=folder))


def _valid_name(name: str) -> str:
    """Converts a name to lower-case letters, digits and hyphens. Raises UsageError if the result is not valid."""
    found = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if not re.fullmatch(NAME_PATTERN, found):
        raise UsageError(
            f"'{name}' is no name for a deployment: at most 40 letters, digits and hyphens, first a letter",
            "name it: --name digits",
        )
    return found


def _labels_in(folder: Path) -> tuple[str, ...]:
    """Returns the names of a model's classes; empty if the model has none."""
    for path in (folder / LABELS, folder / CODE / LABELS):
        if path.is_file():
            return labels_of(path)
    return ()


def labels_of(path: Path) -> tuple[str, ...]:
    """Reads the names of classes from a file. Raises UsageError for any other content."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            found = [found[str(number)] for number in range(len(found))]
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise ValueError("not a list of names")
        return tuple(found)
    except (ValueError, KeyError, RecursionError) as error:
        raise UsageError(f"{path} has no names of classes", 'write a list, or {"0": "cat", "1": "dog"}') from error


# -- undeploy ---------------------------------------------------------------------------------------------------------


def undeploy(name: str, on: str, context: Context, on_progress: OnProgress) -> ClosedService:
    """Removes a deployment and waits until all of its objects are gone. Raises UsageError, and EngineError with the
    objects that are left.
    """
    removed: tuple[str, ...] = ()
    with context.store() as store:
        deployments = deployments_of(on, store, context)
        known = read_known(context.home, on, name)
        other = "" if known is None else elsewhere(known, deployments.place())
        try:
            removed = deployments.undeploy(name, on_progress)
        except UsageError as error:
            if other:
                raise UsageError(f"{name} was {other}", FORGET.format(name)) from error
            # A known deployment may have ended by itself; other errors, such as that of its namespace, are raised.
            if known is None or name in {one.name for one in deployments.list()}:
                raise
    if not other:
        forget(context.home, on, name)
    return ClosedService(name, on, removed)


# -- invoke -----------------------------------------------------------------------------------------------------------


def invoke(
    name: str, body: bytes, content_type: str, on: str, context: Context, *, accept: str, timeout: float
) -> Invocation:
    """Sends one request to a deployed model. Returns its answer with the names of the predicted classes, if this
    machine knows them. Raises UsageError, EngineError.
    """
    for option, value in (("--content-type", content_type), ("--accept", accept)):
        if not re.fullmatch(r"[ -~]+", value):
            raise UsageError(f"{option} {value!r} is not a media type", "write it as application/json")
    known = read_known(context.home, on, name)
    with context.store() as store:
        deployments = deployments_of(on, store, context)
        answer = deployments.invoke(name, body, content_type, accept, timeout)
        is_same = known is not None and not elsewhere(known, deployments.place())
    data = _decoded(answer.body, answer.content_type)
    labels = class_names(data, known.labels) if known is not None and is_same and answer.status < 400 else ()
    return Invocation(name, answer.status, answer.content_type, data, labels)


def content_type_of(path: str) -> str:
    """Returns the content type of a request body by the name of its file. Raises UsageError for an unknown one."""
    suffix = Path(path).suffix.lower()
    if found := CONTENT_TYPES.get(suffix):
        return found
    guessed, _encoding = mimetypes.guess_type(path)
    if guessed is not None and guessed.startswith("image/"):
        return IMAGE
    raise UsageError(f"the content type of {path} is unknown", "name it: --content-type application/json")


def _decoded(body: bytes, content_type: str) -> Any:
    """Returns JSON data, a text, or base64 of other bytes."""
    try:
        return json.loads(body) if "json" in content_type else body.decode()
    except (ValueError, RecursionError):
        return base64.b64encode(body).decode()


def class_names(answer: Any, labels: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of the predicted classes, one for each sample; empty if the answer has no predicted classes.

    An answer is a class index, a list of indexes, the scores of one sample (one number for each class), or a list of
    such scores; or a JSON object that has one of these under a key of `SCORES`.
    """
    if isinstance(answer, dict):
        answer = next((answer[key] for key in SCORES if key in answer), None)
    if not labels or answer is None:
        return ()
    samples = [answer] if _is_sample(answer, labels) else answer
    if not isinstance(samples, list) or not all(_is_sample(one, labels) for one in samples):
        return ()
    return tuple(labels[one if isinstance(one, int) else one.index(max(one))] for one in samples)


def _is_sample(found: Any, labels: Sequence[str]) -> bool:
    """Whether this is a class index, or has one score for each class."""
    if isinstance(found, bool):
        return False
    if isinstance(found, int):
        return 0 <= found < len(labels)
    if (
        not isinstance(found, list)
        or len(found) != len(labels)
        or not all(isinstance(one, int | float) for one in found)
    ):
        return False
    return any(isinstance(one, float) for one in found)
