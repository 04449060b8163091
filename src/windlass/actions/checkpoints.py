"""Lists, verifies, prunes and exports the checkpoints of a run; detects a run with the only copy of a checkpoint."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from windlass.engines.base import Engine
from windlass.engines.interpreter import find_python
from windlass.engines.resuming import RESUMABLE
from windlass.errors import UsageError, WindlassError
from windlass.runs.record import Status
from windlass.train.checkpoint import files, retention
from windlass.train.checkpoint.chunks import export_safetensors
from windlass.train.checkpoint.faults import BadCheckpoint, Fault, NoSuchPart, Problem, worst
from windlass.train.checkpoint.files import Found
from windlass.train.checkpoint.storage import is_address, is_plain_name
from windlass.views.checkpoints import ExportedCheckpoint

if TYPE_CHECKING:
    from windlass.plan.plan import Plan

DEFAULT_KEEP: Final = 3
"""Number of checkpoints to keep, equal to the default in the job file."""
TENSORS: Final = ".safetensors"
TORCH: Final = (".pt", ".pth")
PYTHON_SECONDS: Final = 600.0
ROOT: Final = Path(__file__).parents[2]
"""Folder that contains the windlass package."""


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Content of a run's checkpoint folder."""

    status: Status
    folder: str
    """Path of the folder, or an address such as `s3://bucket/checkpoints/digits-7`."""
    found: tuple[Found, ...]
    """Checkpoints with their faults, newest first."""
    others: int
    """Number of other entries in the folder."""
    in_cluster: bool = False
    """Whether the folder is in a cluster, so that this machine has only a listing of the folder."""

    @property
    def complete(self) -> list[Found]:
        """Checkpoints whose save was finished; their files are not verified."""
        return [one for one in self.found if one.complete]

    def one(self, name: str) -> Found:
        """Returns the checkpoint with this name or step, or with a unique prefix or suffix of its name. Raises
        UsageError.
        """
        exact = [one for one in self.found if one.name == name] or [
            one
            for one in self.found
            if str(one.step) == name  # a step is matched before name suffixes, which may consist of digits too
        ]
        near = exact or [one for one in self.found if one.name.startswith(name) or one.name.endswith(name)]
        if len(near) == 1 and name:
            return near[0]
        which = f"{self.status.id} has several checkpoints" if near else f"{self.status.id} has no checkpoint"
        hint = f"windlass checkpoints {self.status.id} lists them"
        if not self.found:  # `windlass checkpoints` does not list checkpoints in the script's own format
            hint = f"name a file or folder in {self.folder}, or give its path"
        raise UsageError(f"{which} called '{name}'", hint)


def find_checkpoints(engine: Engine, run_id: str, *, reach: bool = True) -> Checkpoints:
    """Lists the checkpoints of a run. Raises NoSuchRun, WindlassError.

    For a run on a cluster, a pod lists the folder; without `reach` no pod is used, and the list is empty.
    """
    status, folder = engine.status(run_id), engine.checkpoint_dir(run_id)
    if engine.is_remote and not is_address(folder):
        if not reach:
            return Checkpoints(status, folder, (), 0, in_cluster=True)
        return listed(status, folder, engine.list_checkpoints(run_id))
    try:
        found = tuple(files.list_checkpoints(folder))
        others = 0 if is_address(folder) else sum(not entry.name.startswith(".") for entry in os.scandir(folder))
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not is_address(folder):
            return Checkpoints(status, folder, (), 0)
        hint = "check its name and the credentials" if is_address(folder) else "check its permissions"
        raise WindlassError(f"{folder} cannot be read ({error.strerror or error})", hint) from error
    return Checkpoints(status, folder, found, max(0, others - len(found)))


def listed(status: Status, folder: str, listing: Mapping[str, Any]) -> Checkpoints:
    """Returns the checkpoints in a listing that `worker/checkpoint_list.py` made in a cluster. Raises WindlassError.

    The manifests are checked locally, in a temporary folder with sparse files of the same names and sizes.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="windlass-checkpoints-") as place:
            for name, seen in listing["checkpoints"].items():
                if is_plain_name(name):  # a name from a pod could lead out of the folder
                    _sketch(Path(place, name), seen)
            found = [replace(one, path=f"{folder}/{one.name}") for one in files.list_checkpoints(place)]
        return Checkpoints(status, folder, tuple(found), int(listing["others"]), in_cluster=True)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, OSError) as error:
        raise WindlassError(
            f"the listing of {folder} by a pod of {status.id} cannot be read ({error})", _COPY.format(status.id)
        ) from error


def _sketch(folder: Path, seen: Mapping[str, Any]) -> None:
    """Creates a folder with the manifest of a checkpoint, and with sparse files in the sizes of its other files."""
    folder.mkdir()
    for file, num_bytes in seen["files"].items():
        if is_plain_name(file):
            with open(folder / file, "wb") as made:
                made.truncate(num_bytes)
    if seen["manifest"] is not None:
        (folder / files.MANIFEST).write_bytes(seen["manifest"].encode())
    os.utime(folder, (seen["changed_at"], seen["changed_at"]))


_COPY: Final = "windlass cp {}:checkpoints . copies them to this machine"


def require_here(seen: Checkpoints) -> None:
    """Raises UsageError for checkpoints in a cluster, which can only be listed."""
    if seen.in_cluster:
        raise UsageError(
            f"the checkpoints of {seen.status.id} are in its cluster, in {seen.folder} of its pods",
            _COPY.format(seen.status.id),
        )


def verify(seen: Checkpoints, name: str | None = None) -> dict[str, list[Problem]]:
    """Reads every byte of the finished checkpoints, or of `name`; returns the problems by name, empty for a verified
    checkpoint.

    Raises UsageError.
    """
    require_here(seen)
    wanted = [seen.one(name)] if name is not None else [one for one in seen.found if not is_unfinished(one)]
    return {one.name: files.examine(one) for one in wanted}


def is_unfinished(found: Found) -> bool:
    """Whether the checkpoint's save is in progress or was interrupted; such a checkpoint is not damaged."""
    return not found.complete and found.fault is Fault.UNFINISHED


def newest_verified(seen: Checkpoints) -> tuple[Found | None, dict[str, list[Problem]]]:
    """Returns the newest verified checkpoint, and the problems of newer checkpoints that are not verified."""
    passed_over: dict[str, list[Problem]] = {}
    for one in seen.found:
        if is_unfinished(one) or one.is_set_aside:
            continue
        problems = files.examine(one)
        if not problems:
            return one, passed_over
        passed_over[one.name] = problems
    return None, passed_over


def prune(seen: Checkpoints, keep: int | None, keep_for: float | None, plan: Plan) -> retention.Pruned:
    """Removes checkpoints of the run beyond the newest `keep` verified ones, or older than `keep_for` seconds.

    Without either, the job's `keep` applies. The newest verified checkpoint is always kept. A damaged checkpoint is set
    aside, and removed only if a newer checkpoint is verified. Checkpoints that are unreadable, have an unknown format
    or are of another run are kept. Raises WindlassError.
    """
    require_here(seen)
    if keep is None and keep_for is None:
        keep = (plan.job.get("checkpoint") or {}).get("keep", DEFAULT_KEEP)
    checked: dict[str, list[Problem]] = {}
    num_verified = 0
    for one in seen.complete:  # newest first; the loop stops early, because verification reads every byte
        if num_verified >= (keep or 1):
            break
        if one.run_id == seen.status.id:
            checked[one.name] = files.examine(one)
            num_verified += not checked[one.name]
    if not num_verified:
        return retention.Pruned()
    faults = {name: fault for name, problems in checked.items() if (fault := worst(problems)) is not None}
    try:
        return retention.prune(seen.folder, seen.status.id, keep, keep_for, faults=faults)
    except OSError as error:
        raise WindlassError(f"{seen.folder} cannot be changed ({error.strerror or error})") from error


def export(
    seen: Checkpoints, name: str | None, path: Path, part: str, plan: Plan
) -> tuple[ExportedCheckpoint, dict[str, list[Problem]]]:
    """Writes one part of a checkpoint to a `.safetensors` file, or to a `.pt` file for torch.load.

    Default: the newest verified checkpoint. Also returns the newer checkpoints that are not verified, with their
    problems. Raises UsageError for another file extension, an unknown name or part, or a named checkpoint that is not
    verified; WindlassError if none is verified, or the file cannot be written.
    """
    require_here(seen)
    ending = path.suffix.lower()
    if ending not in (TENSORS, *TORCH):
        raise UsageError(f"{path}: what should it be?", f"give it the ending {TENSORS} or {TORCH[0]}")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent} is not a folder", "make it first")
    found, passed_over = _to_export(seen, name)
    try:
        if ending == TENSORS:
            export_safetensors(found, path, part=part)
        else:
            with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as near:
                tensors = Path(near) / f"part{TENSORS}"
                export_safetensors(found, tensors, part=part)
                _by_torch(tensors, path, plan)
        return ExportedCheckpoint(seen.status.id, found.name, str(path), path.stat().st_size), passed_over
    except NoSuchPart as error:
        raise UsageError(f"{found.name} cannot be exported: {error}", "name one of them: --part NAME") from error
    except BadCheckpoint as error:
        raise WindlassError(f"{found.name} cannot be exported: {error}") from error
    except OSError as error:
        raise WindlassError(f"{path} cannot be written ({error.strerror or error})") from error


def _to_export(seen: Checkpoints, name: str | None) -> tuple[Found, dict[str, list[Problem]]]:
    if name is not None:
        found = seen.one(name)
        _require_verified(found, seen)
        return found, {}
    newest, passed_over = newest_verified(seen)
    if newest is None:
        why = "; ".join(f"{one}: {problems[0]}" for one, problems in passed_over.items())
        raise WindlassError(
            f"{seen.status.id} has no verified checkpoint" + (f" ({why})" if why else ""), f"looked in {seen.folder}"
        )
    return newest, passed_over


STATES: Final = {
    Fault.DAMAGED: "damaged",
    Fault.UNREADABLE: "unreadable",
    Fault.UNKNOWN_FORMAT: "of an unknown format",
    Fault.UNFINISHED: "not finished",
}


def state_words(problems: list[Problem]) -> str:
    """Returns the state of a checkpoint: `damaged`, `unreadable`, …; `verified` if it has no problems."""
    fault = worst(problems)
    return STATES[fault] if fault is not None else "verified"


_RUN: Final = "import runpy, sys; sys.path.append({!r}); runpy.run_module({!r}, run_name='__main__')"


def _by_torch(tensors: Path, path: Path, plan: Plan) -> None:
    """Converts a safetensors file for torch.load, with an interpreter that has torch.

    For a run on this machine, the job's interpreter is used. For other runs, the active interpreter is used, because
    the plan may come from another machine, and programs named in such a plan must not be executed.
    """
    module, env = "windlass.train.checkpoint.export", {**os.environ}
    python: str | None
    if plan.runs_here:
        python, how = plan.nodes.worker_python or None, ["-m", module]
        env |= {name: value for name, value in plan.nodes.common.items() if name == "PYTHONPATH"}
    else:
        python, how = str(find_python(None, Path.cwd(), os.environ)), ["-c", _RUN.format(str(ROOT), module)]
    if python is None:
        raise WindlassError("the plan of this run names no interpreter", f"export to a file ending in {TENSORS}")
    command = [python, *how, str(tensors), str(path)]
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, errors="replace", timeout=PYTHON_SECONDS, check=False
        )
    except FileNotFoundError as error:
        what = f"{path} needs torch, and the interpreter {python} is not on this machine"
        raise WindlassError(what, f"export to a file ending in {TENSORS}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WindlassError(f"{python} could not write {path}: {error}") from error
    if done.returncode:
        words = (done.stderr.strip() or "no error output").splitlines()[-1]
        raise WindlassError(f"{python} could not write {path}: {words}", f"export to a file ending in {TENSORS}")


def to_resume_from(seen: Checkpoints, wanted: str) -> str:
    """Resolves the checkpoint that a user names for a resume, to a name in the checkpoint folder or an absolute path.

    A word without a slash is first looked up in the run's checkpoint folder, then as a local file. A checkpoint of
    `windlass.train.checkpoint` is verified. Files in the script's own format cannot be verified; they are accepted only
    if the run has no checkpoints of `windlass.train.checkpoint`. Raises UsageError for a path that does not exist, is
    not a checkpoint or is not verified, WindlassError if an object store cannot be read.
    """
    if not wanted:
        raise UsageError("no checkpoint is named to continue from", f"windlass checkpoints {seen.status.id} lists them")
    if seen.in_cluster:  # verified later, by the ranks that load the checkpoint
        return wanted if wanted.startswith("/") else seen.one(wanted).name
    ours = any(wanted in (one.name, str(one.step)) for one in seen.found)
    if is_address(wanted):
        return _elsewhere(wanted, seen)
    # os.path is used because pathlib raises for a name that is too long and for an unknown user's home folder.
    beside = f"{seen.folder}/{wanted}"
    if not ours and "/" not in wanted and wanted not in (".", "..") and os.path.exists(beside):  # noqa: PTH110
        return wanted
    path = Path(os.path.abspath(os.path.expanduser(wanted)))  # noqa: PTH100
    if ours or not os.path.exists(path):  # noqa: PTH110
        found = seen.one(wanted)
        _require_verified(found, seen)
        return found.name
    if files.parse_name(path.name) is not None:
        for found in files.list_checkpoints(path.parent):
            if found.name == path.name:
                _require_verified(found, seen)
                return str(path)
    if seen.found:
        hint = f"windlass checkpoints {seen.status.id} lists those of the run"
        raise UsageError(f"{path} is there, but it is no checkpoint", hint)
    return str(path)


def _elsewhere(address: str, seen: Checkpoints) -> str:
    """Resolves a checkpoint by its object store address. Raises UsageError, WindlassError."""
    folder, _, name = address.rstrip("/").rpartition("/")
    try:
        found = next((one for one in files.list_checkpoints(folder) if one.name == name), None)
    except (OSError, ValueError) as error:
        raise WindlassError(f"{folder} cannot be read: {error}") from error
    if found is None:
        raise UsageError(
            f"there is no checkpoint {address}", f"windlass checkpoints {seen.status.id} lists those of it"
        )
    _require_verified(found, seen)
    return found.path


def _require_verified(found: Found, seen: Checkpoints) -> None:
    """Raises UsageError if the checkpoint that the user named is not verified."""
    if problems := files.examine(found):
        why = "; ".join(map(str, problems))
        hint = f"windlass checkpoints {seen.status.id} verify shows which ones are verified"
        raise UsageError(f"{found.name} is {state_words(problems)}: {why}", hint)


# -- only copies ------------------------------------------------------------------------------------------------------


def kept_only_here(engine: Engine, status: Status) -> str:
    """Describes data of an unfinished run that would be lost with its folder; empty if there is none."""
    if engine.is_remote or status.phase not in RESUMABLE:
        return ""
    if status.ending is not None:
        return "its outputs, which are not uploaded"
    folder, run_dir = engine.checkpoint_dir(status.id), engine.store.run_dir(status.id)
    if is_address(folder) or not Path(folder).resolve().is_relative_to(run_dir.resolve()):
        return ""  # removing the run's folder keeps these checkpoints
    seen = find_checkpoints(engine, status.id)
    verified, passed_over = newest_verified(seen)
    if verified is not None:
        return f"the only checkpoint of step {verified.step:,}"
    # An unverified checkpoint may be intact unless it was proved to be damaged.
    unknown = [name for name, problems in passed_over.items() if worst(problems) is not Fault.DAMAGED]
    if unknown:
        return f"{len(unknown)} checkpoint{'s' if len(unknown) > 1 else ''} that cannot be read"
    many = f"{seen.others} {'entry' if seen.others == 1 else 'entries'}"
    return f"{many} in its checkpoint folder" if seen.others else ""
