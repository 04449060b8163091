"""Lists, verifies, prunes and exports the checkpoints of a run, and says which one must not be lost."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from windlass.actions import runs
from windlass.errors import UsageError, WindlassError
from windlass.runs.record import Phase, Status
from windlass.runs.store import Store
from windlass.train.checkpoint import files
from windlass.train.checkpoint.files import Found
from windlass.train.checkpoint.storage import is_plain_name

VARIABLE: Final = "WINDLASS_CHECKPOINT_DIR"
DEFAULT_KEEP: Final = 3
"""As the job file has it."""
TENSORS: Final = ".safetensors"
TORCH: Final = (".pt", ".pth")
UNFINISHED: Final = frozenset({Phase.FAILED, Phase.STOPPED, Phase.LOST})
"""Ends after which a run may be resumed."""
PYTHON_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """What is in the checkpoint folder of a run."""

    status: Status
    folder: Path
    found: tuple[Found, ...]
    """Newest first, also those that never became whole."""
    others: int
    """How many entries the script has put there by itself."""
    in_cluster: bool = False
    """Whether the folder is one of pods, which commands on this machine do not reach into."""

    @property
    def whole(self) -> list[Found]:
        """Those that were finished; whether their bytes are still right is for `verify` to say."""
        return [one for one in self.found if one.complete]

    def one(self, name: str) -> Found:
        """The checkpoint with this name, a unique beginning or end of it, or its step. Raises UsageError."""
        exact = [one for one in self.found if one.name == name]
        near = exact or [
            one for one in self.found if one.name.startswith(name) or one.name.endswith(name) or str(one.step) == name
        ]
        if len(near) == 1 and name:
            return near[0]
        said = f"{self.status.id} has several checkpoints" if near else f"{self.status.id} has no checkpoint"
        raise UsageError(f"{said} called '{name}'", f"windlass checkpoints {self.status.id} lists them")


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    name: str
    path: str
    bytes: int
    refused: Mapping[str, list[str]]
    """Newer checkpoints that were damaged, and how."""


def look(run: str | None, store: Store, *, reach: bool = True) -> Checkpoints:
    """What is there of the run that `run` stands for, the newest without one. Raises NoSuchRun, WindlassError.

    Of a run on a cluster, a pod lists the folder; without `reach` none is asked, and nothing is found.
    """
    status = runs.status(run, store)
    plan = store.plan(status.id)
    folder = folder_of(plan, store.run_dir(status.id))
    if plan["engine"] == "kubernetes":
        return _in_cluster(status, plan, folder) if reach else Checkpoints(status, folder, (), 0, in_cluster=True)
    try:
        found = tuple(files.list_checkpoints(folder))
        others = len({entry.name for entry in os.scandir(folder) if not entry.name.startswith(".")})
    except FileNotFoundError:
        return Checkpoints(status, folder, (), 0)
    except OSError as error:
        raise WindlassError(f"{folder} cannot be read ({error.strerror or error})", "check who may read it") from error
    return Checkpoints(status, folder, found, others - len(found))


def _in_cluster(status: Status, plan: Mapping[str, Any], folder: Path) -> Checkpoints:
    from windlass.engines.kubernetes.inside import listing
    from windlass.plan.plan import Plan

    return listed(status, folder, listing(Plan.from_json(plan), status, str(folder)))


def listed(status: Status, folder: Path, listing: Mapping[str, Any]) -> Checkpoints:
    """The checkpoints of a folder in a cluster, from what `worker/checkpointlist.py` gives of it. Raises WindlassError.

    The manifests are checked here, in a folder whose files have the same names and sizes, and no content.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="windlass-checkpoints-") as place:
            for name, seen in listing["checkpoints"].items():
                if is_plain_name(name):  # what a pod sends is not trusted
                    _sketch(Path(place, name), seen)
            found = [replace(one, path=str(folder / one.name)) for one in files.list_checkpoints(place)]
        return Checkpoints(status, folder, tuple(found), int(listing["others"]), in_cluster=True)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, OSError) as error:
        raise WindlassError(f"what a pod of {status.id} lists of {folder} cannot be read ({error})",
                            _COPY.format(status.id)) from error  # fmt: skip


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
        raise UsageError(f"the checkpoints of {seen.status.id} are in its cluster, in {seen.folder} of its pods",
                         _COPY.format(seen.status.id))  # fmt: skip


def folder_of(plan: Mapping[str, Any], run_dir: Path) -> Path:
    """Where the ranks of a recorded plan keep their checkpoints: as they are told, else in the run's own folder."""
    for step in plan.get("steps", ()):
        request = step.get("request", {})
        for rank in (request, *request.get("ranks", ())):
            if folder := rank.get("env", {}).get(VARIABLE):
                return Path(folder)
    return run_dir / "checkpoints"


def verify(seen: Checkpoints, name: str | None = None) -> dict[str, list[str]]:
    """What is wrong with each checkpoint, by name, every byte read; of one that is good, nothing. Raises UsageError.

    Without a `name` it is all of them that were begun and finished.
    """
    require_here(seen)
    wanted = [seen.one(name)] if name is not None else [one for one in seen.found if not never_whole(one)]
    return {one.name: files.verify(one) for one in wanted}


def never_whole(found: Found) -> bool:
    """Whether it was begun and not finished: it is being written, or whoever wrote it was killed. No damage."""
    return not found.complete and not (Path(found.path) / files.MANIFEST).exists()


def newest_good(seen: Checkpoints) -> tuple[Found | None, dict[str, list[str]]]:
    """The newest checkpoint that verifies, and the newer ones that do not, each with its reasons."""
    refused: dict[str, list[str]] = {}
    for one in seen.found:
        if never_whole(one):
            continue
        problems = files.verify(one)
        if not problems:
            return one, refused
        refused[one.name] = problems
    return None, refused


def prune(seen: Checkpoints, keep: int | None, keep_for: float | None, plan: Mapping[str, Any]) -> list[str]:
    """Remove all but the newest `keep` good ones, and those older than `keep_for` seconds; gives their names.

    Without either, as many are kept as the job says. A damaged one does not count and goes; the newest good one stays
    whatever is asked. Raises WindlassError.
    """
    require_here(seen)
    if keep is None and keep_for is None:
        keep = (plan.get("job", {}).get("checkpoint") or {}).get("keep", DEFAULT_KEEP)
    damaged, good = set(), 0
    for one in seen.whole:  # no further than needed: to verify is to read every byte
        if good >= (keep or 1):
            break
        if files.verify(one):
            damaged.add(one.name)
        else:
            good += 1
    if not good:
        return []
    try:
        return files.prune(seen.folder, keep, keep_for, distrusted=damaged)
    except OSError as error:
        raise WindlassError(f"{seen.folder} cannot be changed ({error.strerror or error})") from error


def export(seen: Checkpoints, name: str | None, path: Path, part: str, plan: Mapping[str, Any]) -> Exported:
    """Write one part of a checkpoint (of the newest good one) as a plain file: `.safetensors`, or `.pt` for torch.load.

    Raises UsageError for another ending or a name that is not there, WindlassError for a damaged checkpoint, a part
    that is not in it, or a file that cannot be written.
    """
    require_here(seen)
    ending = path.suffix.lower()
    if ending not in (TENSORS, *TORCH):
        raise UsageError(f"{path}: what should it be?", f"give it the ending {TENSORS} or {TORCH[0]}")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent} is not a folder", "make it first")
    found, refused = _to_export(seen, name)
    try:
        if ending == TENSORS:
            files.export_safetensors(found, path, part=part)
        else:
            with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as near:
                tensors = Path(near) / f"part{TENSORS}"
                files.export_safetensors(found, tensors, part=part)
                _by_torch(tensors, path, plan)
        return Exported(found.name, str(path), path.stat().st_size, refused)
    except files.BadCheckpoint as error:
        raise WindlassError(f"{found.name} cannot be exported: {error}") from error
    except OSError as error:
        raise WindlassError(f"{path} cannot be written ({error.strerror or error})") from error


def _to_export(seen: Checkpoints, name: str | None) -> tuple[Found, dict[str, list[str]]]:
    if name is not None:
        found = seen.one(name)
        if problems := files.verify(found):
            raise WindlassError(f"{found.name} is damaged: {'; '.join(problems)}", _OTHERS.format(seen.status.id))
        return found, {}
    newest, refused = newest_good(seen)
    if newest is None:
        told = "; ".join(f"{damaged}: {problems[0]}" for damaged, problems in refused.items())
        raise WindlassError(
            f"{seen.status.id} has no good checkpoint" + (f" ({told})" if told else ""), f"looked in {seen.folder}"
        )
    return newest, refused


_OTHERS: Final = "windlass checkpoints {} verify says which ones are good"


def _by_torch(tensors: Path, path: Path, plan: Mapping[str, Any]) -> None:
    """Turn a safetensors file into one for torch.load, by the interpreter of the job, which has torch."""
    node: Mapping[str, Any] = next((step["request"] for step in plan.get("steps", ()) if step["kind"] == "node"), {})
    python = node.get("worker_python")
    if python is None:
        raise WindlassError("the plan of this run names no interpreter", f"export to a file ending in {TENSORS}")
    env = {**os.environ, **{name: value for name, value in node.get("env", {}).items() if name == "PYTHONPATH"}}
    command = [python, "-m", "windlass.train.checkpoint.to_torch", str(tensors), str(path)]
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, errors="replace", timeout=PYTHON_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WindlassError(f"{python} could not write {path}: {error}") from error
    if done.returncode:
        words = (done.stderr.strip() or "it said nothing").splitlines()[-1]
        raise WindlassError(f"{python} could not write {path}: {words}", f"export to a file ending in {TENSORS}")


def to_resume_from(seen: Checkpoints, wanted: str) -> str:
    """The checkpoint that a person names for a resume: a name in the folder of checkpoints, or an absolute path.

    A word without a slash means a checkpoint of the run before it means a file beside the caller. One of
    `windlass.train.checkpoint` is verified; what else a script has saved it alone can judge, but a run that has ours
    takes no other. Raises UsageError for what is not there or none, WindlassError for what is damaged.
    """
    if not wanted:
        raise UsageError("no checkpoint is named to go on from", f"windlass checkpoints {seen.status.id} lists them")
    if seen.in_cluster:  # the ranks verify what they load
        return wanted if wanted.startswith("/") else seen.one(wanted).name
    ours = any(wanted in (one.name, str(one.step)) for one in seen.found)
    # Path's own raise for a name that is too long, or for the home of nobody.
    if not ours and "/" not in wanted and wanted not in (".", "..") and os.path.exists(seen.folder / wanted):  # noqa: PTH110
        return wanted
    path = Path(os.path.abspath(os.path.expanduser(wanted)))  # noqa: PTH100, PTH111
    if ours or not os.path.exists(path):  # noqa: PTH110
        found = seen.one(wanted)
        _require_good(found, seen)
        return found.name
    if files.parse_name(path.name) is not None:
        for found in files.list_checkpoints(path.parent):
            if found.name == path.name:
                _require_good(found, seen)
                return str(path)
    if seen.found:
        hint = f"windlass checkpoints {seen.status.id} lists those of the run"
        raise UsageError(f"{path} is there, but it is no checkpoint", hint)
    return str(path)


def _require_good(found: Found, seen: Checkpoints) -> None:
    if problems := files.verify(found):
        raise WindlassError(f"{found.name} is damaged: {'; '.join(problems)}", _OTHERS.format(seen.status.id))


# -- what must not be lost --------------------------------------------------------------------------------------------


def kept_only_here(status: Status, store: Store) -> str:
    """What of an unfinished run would be lost with its folder, in words; empty where that is nothing to resume from."""
    if status.phase not in UNFINISHED:
        return ""
    seen = look(status.id, store, reach=False)
    if seen.in_cluster or not seen.folder.resolve().is_relative_to(store.run_dir(status.id).resolve()):
        return ""  # they lie elsewhere and stay
    good, _ = newest_good(seen)
    if good is not None:
        return f"the only checkpoint of step {good.step:,}"
    many = f"{seen.others} {'entry' if seen.others == 1 else 'entries'}"
    return f"{many} in its checkpoint folder" if seen.others else ""
