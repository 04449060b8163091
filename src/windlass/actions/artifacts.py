"""Lists the results of a run, their locations, and the commands that copy them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from windlass.actions import checkpoints
from windlass.errors import EngineError
from windlass.plan.steps import UploadStep
from windlass.train.checkpoint.storage import is_address
from windlass.views.artifacts import Artifact, ArtifactList, OutputFile
from windlass.views.code_files import changed_files
from windlass.worker import file_list

if TYPE_CHECKING:
    from windlass.engines.base import Engine
    from windlass.engines.values import ResultsLocation
    from windlass.plan.plan import Plan
    from windlass.runs.record import Status

Listing = Mapping[str, Any]
NAMED = 3
FOLDER = "FOLDER"
"""Placeholder in commands for a folder that the user chooses."""


def list_artifacts(engine: Engine, run_id: str, *, reach: bool = False) -> ArtifactList:
    """Lists the results of a run. Raises NoSuchRun, UsageError, EngineError.

    Results in a claim, in pods or in an object store are read only with `reach`, because a pod may have to be started.
    """
    plan = engine.plan_of(run_id)
    if plan is None:
        raise engine.unsupported("artifacts")
    status, place = engine.status(run_id), engine.results(run_id)
    outputs, saved = _read(engine, status, place, reach=reach)
    found = (
        _outputs(status, place, outputs),
        *_checkpoints(engine, status, place, saved, reach=reach),
        *_uploaded(status, plan),
        *_in_the_code(status, plan),
    )
    return ArtifactList(run_id, status.phase, found, _named(outputs) if reach else None)


def _read(
    engine: Engine, status: Status, place: ResultsLocation, *, reach: bool
) -> tuple[Listing | None, Listing | None]:
    """Lists the output files, and the checkpoints in a cluster; None for a list that is not read."""
    outputs = saved = None
    if place.kind in ("claim", "pods") and reach and not _is_gone(status, place):
        outputs, saved = engine.list_results(status.id)
    if (folder := place.copied or (place.path if place.kind == "folder" else "")) != "":
        try:
            outputs = file_list.list_files(folder)
        except FileNotFoundError:
            outputs = file_list.EMPTY
        except OSError as error:
            raise EngineError(
                f"{folder} cannot be read ({error.strerror or error})", "check its permissions"
            ) from error
    return outputs, saved


def _is_gone(status: Status, place: ResultsLocation) -> bool:
    """Whether the results were deleted with their pods."""
    return place.kind == "pods" and status.phase.is_terminal


def _named(listing: Listing | None) -> tuple[OutputFile, ...]:
    return () if listing is None else tuple(OutputFile(str(name), int(size)) for name, size in listing["named"])


def _outputs(status: Status, place: ResultsLocation, listing: Listing | None) -> Artifact:
    files, num_bytes = (None, None) if listing is None else (int(listing["files"]), int(listing["bytes"]))
    if place.copied:
        copy = shlex.join(["cp", "-r", place.copied, "."])
        return Artifact("outputs", "folder", place.copied, files=files, bytes=num_bytes, copy=copy)
    copy = "" if files == 0 or _is_gone(status, place) else f"windlass cp {status.id}:output ."
    return Artifact(
        "outputs",
        place.kind,
        place.path,
        place.claim,
        files,
        num_bytes,
        copy=copy,
        note=place.elsewhere or _risk(status, place),
    )


def _risk(status: Status, place: ResultsLocation) -> str:
    """Describes when results that are only in pods are lost; for other places, returns the engine's note."""
    if place.kind != "pods":
        return place.note
    return "deleted with the pods" if _is_gone(status, place) else "deleted with the pods when the run ends"


def _checkpoints(
    engine: Engine, status: Status, place: ResultsLocation, listing: Listing | None, *, reach: bool
) -> Iterator[Artifact]:
    """Yields the checkpoint folder as an artifact, if any checkpoint is known."""
    folder, copy = engine.checkpoint_dir(status.id), f"windlass cp {status.id}:checkpoints ."
    kind = "folder" if place.kind == "store" else place.kind
    claim, note = place.claim, "" if place.note else _risk(status, place)
    if is_address(folder):
        kind, claim, note = "store", "", ""
        copy = shlex.join(["windlass", "data", "copy", folder, FOLDER])
    elif _is_gone(status, place):
        copy = ""
    if kind == "folder" or (kind == "store" and reach):
        seen = checkpoints.find_checkpoints(engine, status.id)
    elif listing:
        seen = checkpoints.listed(status, folder, listing)
    else:
        if (newest := status.checkpoint) is not None and newest.step is not None:
            yield Artifact(
                "checkpoints", kind, folder, claim, bytes=newest.bytes, newest_step=newest.step, copy=copy, note=note
            )
        return
    steps = tuple(one.step for one in seen.complete)
    if steps or seen.others:
        num_bytes = sum(one.bytes for one in seen.complete)
        yield Artifact("checkpoints", kind, folder, claim, bytes=num_bytes, steps=steps, others=seen.others, copy=copy,
                       newest_step=steps[0] if steps else None, note=note)  # fmt: skip


def _in_the_code(status: Status, plan: Plan) -> Iterator[Artifact]:
    """Yields the new and changed files of a code folder on this machine as one artifact."""
    found = changed_files(status.files.code_files, plan)
    if found is not None and found.left and found.is_kept:
        largest = ", ".join(one.path for one in found.largest[:NAMED])
        yield Artifact(
            "code",
            "folder",
            found.folder,
            files=found.left,
            bytes=found.left_bytes,
            note=f"not with the run, another run may overwrite them: {largest}",
        )


def _uploaded(status: Status, plan: Plan) -> Iterator[Artifact]:
    """Yields the outputs uploaded to an object store."""
    if status.files.outputs is not None:
        one = status.files.outputs
        copy = shlex.join(["windlass", "data", "copy", one.destination, FOLDER])
        yield Artifact(
            "uploaded", "store", one.destination, files=one.files, bytes=one.bytes, digest=one.digest, copy=copy
        )
        return
    for step in plan.every(UploadStep):
        note = "not uploaded" if status.phase.is_terminal else "uploaded when the run ends"
        yield Artifact("uploaded", "store", step.destination, note=note)
