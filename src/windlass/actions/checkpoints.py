"""Lists, verifies, prunes and exports the checkpoints of a run, and finds the only copy to resume from."""

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
"""As the job file has it."""
TENSORS: Final = ".safetensors"
TORCH: Final = (".pt", ".pth")
PYTHON_SECONDS: Final = 600.0
ROOT: Final = Path(__file__).parents[2]
"""The folder of this package."""


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """What is in the checkpoint folder of a run."""

    status: Status
    folder: str
    """Its path, or an address such as `s3://bucket/checkpoints/digits-7`."""
    found: tuple[Found, ...]
    """Newest first, with any fault."""
    others: int
    """How many other entries the script has written there."""
    in_cluster: bool = False
    """Whether the folder is in a cluster, where only its listing can be read from this machine."""

    @property
    def complete(self) -> list[Found]:
        """Those whose save was finished; `verify` reads whether their files are still as they were written."""
        return [one for one in self.found if one.complete]

    def one(self, name: str) -> Found:
        """The checkpoint with this name or step, or with a name that alone begins or ends so. Raises UsageError."""
        exact = [one for one in self.found if one.name == name] or [
            one
            for one in self.found
            if str(one.step) == name  # before the ends: these are digits too, `-a1f3c8`
        ]
        near = exact or [one for one in self.found if one.name.startswith(name) or one.name.endswith(name)]
        if len(near) == 1 and name:
            return near[0]
        which = f"{self.status.id} has several checkpoints" if near else f"{self.status.id} has no checkpoint"
        hint = f"windlass checkpoints {self.status.id} lists them"
        if not self.found:  # it lists none that the script has saved itself
            hint = f"name a file or folder in {self.folder}, or give its path"
        raise UsageError(f"{which} called '{name}'", hint)


def look(engine: Engine, run_id: str, *, reach: bool = True) -> Checkpoints:
    """The checkpoints of a run. Raises NoSuchRun, WindlassError.

    The folder of a run on a cluster is listed by a pod; without `reach` no pod is asked, and nothing is found.
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
    """The checkpoints of a folder in a cluster, listed by `worker/checkpoint_list.py`. Raises WindlassError.

    The manifests are checked here, in a folder whose files have the same names and sizes, and no content.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="windlass-checkpoints-") as place:
            for name, seen in listing["checkpoints"].items():
                if is_plain_name(name):  # a pod is not trusted
                    _sketch(Path(place, name), seen)
            found = [replace(one, path=f"{folder}/{one.name}") for one in files.list_checkpoints(place)]
        return Checkpoints(status, folder, tuple(found), int(listing["others"]), in_cluster=True)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, OSError) as error:
        raise WindlassError(
            f"the listing of {folder} by a pod of {status.id} cannot be read ({error})", _COPY.format(status.id)
        ) from error


def _sketch(folder: Path, seen: Mapping[str, Any]) -> None:
    """A folder with the manifest of a checkpoint, and with sparse files of the sizes of its others."""
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
    """Raise UsageError for checkpoints in a cluster, which can be listed and no more."""
    if seen.in_cluster:
        raise UsageError(
            f"the checkpoints of {seen.status.id} are in its cluster, in {seen.folder} of its pods",
            _COPY.format(seen.status.id),
        )


def verify(seen: Checkpoints, name: str | None = None) -> dict[str, list[Problem]]:
    """Why each checkpoint is not verified, by name, every byte read; nothing where it is. Raises UsageError.

    Without a `name` it is all of them whose save was finished.
    """
    require_here(seen)
    wanted = [seen.one(name)] if name is not None else [one for one in seen.found if not is_unfinished(one)]
    return {one.name: files.examine(one) for one in wanted}


def is_unfinished(found: Found) -> bool:
    """Whether its save is under way, or was cut off. No damage."""
    return not found.complete and found.fault is Fault.UNFINISHED


def newest_verified(seen: Checkpoints) -> tuple[Found | None, dict[str, list[Problem]]]:
    """The newest checkpoint that is verified, and the newer ones that are not, each with its reasons."""
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
    """Remove what the run has saved beyond the newest `keep` verified ones, or more than `keep_for` seconds ago.

    Without either, as many are kept as the job says. The newest verified one stays whatever is asked. A damaged one is
    set aside, and removed only when a newer one is verified; what cannot be read, has an unknown format or was saved by
    another run stays. Raises WindlassError.
    """
    require_here(seen)
    if keep is None and keep_for is None:
        keep = (plan.job.get("checkpoint") or {}).get("keep", DEFAULT_KEEP)
    checked: dict[str, list[Problem]] = {}
    num_verified = 0
    for one in seen.complete:  # no further than needed: to verify is to read every byte
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
    """Write one part of a checkpoint, by default of the newest verified one: `.safetensors`, or `.pt` for torch.load.

    Also gives the newer checkpoints that are not verified, and why. Raises UsageError for another ending, a name or a
    part that is not there, or the name of a checkpoint that is not verified; WindlassError where none is verified, or
    the file cannot be written.
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
    """`damaged`, `unreadable`, … ; `verified` without any problem."""
    fault = worst(problems)
    return STATES[fault] if fault is not None else "verified"


_RUN: Final = "import runpy, sys; sys.path.append({!r}); runpy.run_module({!r}, run_name='__main__')"


def _by_torch(tensors: Path, path: Path, plan: Plan) -> None:
    """Turn a safetensors file into one for torch.load, by an interpreter that has torch.

    That is the job's where it runs on this machine, else the one that is active: the plan of a run in a cluster may be
    of another machine, and nothing that it names is executed here.
    """
    module, env = "windlass.train.checkpoint.export", {**os.environ}
    python: str | None
    if plan.engine == "local":
        python, how = plan.nodes.worker_python, ["-m", module]
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
    """The checkpoint that a user names for a resume: a name in the folder of checkpoints, or an absolute path.

    A word without a slash means a checkpoint of the run before it means a file beside the caller. One of
    `windlass.train.checkpoint` is verified; what else a script has saved it alone can judge, but a run that has ours
    takes no other. Raises UsageError for what is not there, is none or is not verified, WindlassError where a store
    cannot be read.
    """
    if not wanted:
        raise UsageError("no checkpoint is named to go on from", f"windlass checkpoints {seen.status.id} lists them")
    if seen.in_cluster:  # the ranks verify what they load
        return wanted if wanted.startswith("/") else seen.one(wanted).name
    ours = any(wanted in (one.name, str(one.step)) for one in seen.found)
    if is_address(wanted):
        return _elsewhere(wanted, seen)
    # Path's own raise for a name that is too long, or for the home of an unknown user.
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
    """A checkpoint by its address. Raises UsageError, WindlassError."""
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
    """Raise UsageError for a checkpoint that the user has named and that is not verified."""
    if problems := files.examine(found):
        why = "; ".join(map(str, problems))
        hint = f"windlass checkpoints {seen.status.id} verify shows which ones are verified"
        raise UsageError(f"{found.name} is {state_words(problems)}: {why}", hint)


# -- what must not be lost --------------------------------------------------------------------------------------------


def kept_only_here(engine: Engine, status: Status) -> str:
    """What of an unfinished run would be lost with its folder, in words; empty where there is nothing."""
    if engine.is_remote or status.phase not in RESUMABLE:
        return ""
    if status.ending is not None:
        return "its outputs, which are not uploaded"
    folder, run_dir = engine.checkpoint_dir(status.id), engine.store.run_dir(status.id)
    if is_address(folder) or not Path(folder).resolve().is_relative_to(run_dir.resolve()):
        return ""  # they are elsewhere and stay
    seen = look(engine, status.id)
    verified, passed_over = newest_verified(seen)
    if verified is not None:
        return f"the only checkpoint of step {verified.step:,}"
    # What is not proved damaged may be intact.
    unknown = [name for name, problems in passed_over.items() if worst(problems) is not Fault.DAMAGED]
    if unknown:
        return f"{len(unknown)} checkpoint{'s' if len(unknown) > 1 else ''} that cannot be read"
    many = f"{seen.others} {'entry' if seen.others == 1 else 'entries'}"
    return f"{many} in its checkpoint folder" if seen.others else ""
