"""Warnings that a node detects: conditions that do not end a run but may spoil its result; see `runs/warnings.py`."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from windlass.worker import process
from windlass.worker.event_log import EventLog
from windlass.worker.process import ProcessStat
from windlass.worker.protocol import NodeSpec, NodeWarning
from windlass.worker.ranks import Rank, Ranks
from windlass.worker.saved_states import newest_saved
from windlass.worker.training_start import LOADS

ALONE_IN = {
    ".alone-mpi": ("MPI world: COMM_WORLD had size 1", "launcher: mpi starts the ranks by mpirun"),
    ".alone-group": (
        "process group, which was made with world_size=1",
        "leave rank and world_size out of init_process_group, which then takes them from the environment",
    ),
}
"""For each suffix of a mark that `rank.py` writes: the group in which the rank was alone, and the fix."""
LEAVE_SECONDS = 0.25
"""Seconds in which child processes may end after their rank; Python's helper processes notice its end a moment
later."""
_VIEWER = r"(?:tensorboard|wandb-core|wandb-service|mlflow|aim|jupyter|nvidia-smi|dcgmi)(?:$|\W)"
NAMED = 3
COMMAND_CHARS = 80
_OF_RESUME = r"(?i)resum|restor|checkpoint|ckpt|load|init|pretrain|weights|from"
_NO_BATCHES = (
    r"(?im)^(?:[^\n|]{0,40}\b(?:train|epoch|step)[^\n|]{0,40}: )0it \[00:00|Total length of `(?:Combined|Data)Loader` "
    r"across ranks is zero|`Trainer\.fit` stopped: `max_(?:steps|epochs)=0`"
)
"""Matches an empty tqdm bar of a training, and Lightning's messages about a loader without batches."""
_EVALUATES = (
    r"(?i)\b(?:acc(?:uracy)?|eval\w*|test\w*|val(?:id\w*)?|predict\w*|infer\w*|generat\w*|sampl\w*|map(?:\d+)?|f1|bleu|"
    r"perplexity)\b|\bacc@\d"
)
"""Matches output that shows that a script evaluates or uses a checkpoint instead of training."""


class SurvivingProcess(NamedTuple):
    """Process that outlived the rank that started it."""

    pid: int
    command: str


class RunWarnings:
    """Detects warnings of one node, and reports each kind once."""

    def __init__(self, spec: NodeSpec, events: EventLog) -> None:
        self._spec = spec
        self._events = events
        self._began_at = time.time()
        self._has_restored = self._is_refused = self._has_epoch = False
        self._is_loaded = self._is_own = False
        """Two flags: whether the script printed that it loaded a checkpoint (not that it resumes), and whether that is
        a checkpoint of this run."""
        self._if_it_trains: tuple[str, str] | None = None
        """Arguments of a warning about a loaded checkpoint, which is added if a training step follows."""
        self._left: list[tuple[int, SurvivingProcess]] = []
        """Processes that outlived their rank, each with the number of the rank."""

    def add(self, code: str, message: str, fix: str, ranks: Iterable[int] = ()) -> None:
        """Reports a warning about the run."""
        self._events.add(NodeWarning(time.time(), message, code=code, fix=fix, ranks=tuple(ranks)))

    # -- where training begins ----------------------------------------------------------------------------------------

    def restored(self, found: Mapping[str, Any]) -> None:
        """Handles a checkpoint event. Warns if the first attempt restored a checkpoint of another run."""
        if found.get("action") == "none-verified":
            self._is_refused = True  # the run then gets the warning `checkpoint-damaged`
        if found.get("action") != "restored" or self._has_restored:
            return
        self._has_restored = True
        step, epoch, line = found.get("step"), found.get("epoch"), str(found.get("line", ""))
        self._is_loaded = LOADS.search(line) is not None
        self._is_own = self._is_loaded and self._names_new_file(line)
        is_beginning = not (step or epoch) and (step, epoch) != (None, None)
        if self._spec.attempt > 1 or is_beginning or self._is_own or self._is_named(line):
            return
        what = f"step {step}" if step else f"epoch {epoch}" if epoch else "a checkpoint"
        where = line or str(found.get("name", ""))
        if self._is_loaded:
            self._if_it_trains = (what, where)
        else:
            self._began_from(what, where)

    def _began_from(self, what: str, where: str, did: str = "training began from") -> None:
        self.add(
            "resumed-from-another-run",
            f"{did} {what} of another run: {where}",
            "save into WINDLASS_OUTPUT_DIR or WINDLASS_CHECKPOINT_DIR, which are separate for each run; remove the old "
            "file to train from the beginning. If this is intended, name the file in the arguments of the script",
        )

    def trains(self) -> None:
        """Handles a reported step or loss, which shows that a checkpoint was loaded to continue training."""
        if self._if_it_trains is not None:
            self._began_from(*self._if_it_trains)
            self._if_it_trains = None

    def _names_new_file(self, line: str) -> bool:
        """Whether the line names a file that was written after the run had begun."""
        for word in re.findall(r"[^\s'\"()\[\],;]+", line):
            path = os.path.join(self._spec.cwd, word.rstrip(".:"))
            if os.path.isfile(path) and _time_of(path, "st_mtime") >= self._spec.since:
                return True
        return False

    def _is_named(self, line: str) -> bool:
        """Whether the script's arguments name the file from which it resumed."""
        words = [part for word in self._spec.ranks[0].argv[2:] for part in word.split("=", 1)]
        for before, word in zip(["", *words], words):  # noqa: B905 - `strict` came with Python 3.10
            is_there = bool(word) and os.path.exists(os.path.join(self._spec.cwd, word))
            if is_there and (word in line or (before.startswith("-") and re.search(_OF_RESUME, before))):
                return True
        return False

    def began(self, first: Mapping[str, Any], progress: Mapping[str, Any]) -> None:
        """Handles the first steps of a rank. Warns if a later attempt starts from the beginning despite a
        saved state.
        """
        self.trains()
        step, every = int(first["step"]), int(first.get("every") or 1)
        if step <= max(1, every) and not (progress.get("epoch") or 0) > 1:
            self._started_over("step", step)

    def began_epoch(self, epoch: object) -> None:
        """Handles the first epoch of a rank that reports no steps. Warns if a later attempt starts at epoch 0 despite a
        saved state.
        """
        if epoch == 0 and not self._has_epoch:
            self._started_over("epoch", 0)
        self._has_epoch = True

    def _started_over(self, unit: str, number: int) -> None:
        if self._spec.attempt == 1 or self._has_restored or self._is_refused or self._spec.ranks[0].rank != 0:
            return
        saved = self._newest_saved()
        numbers = re.findall(r"\d{1,15}", saved)
        if saved and not (numbers and int(numbers[-1]) < number):  # a step above the saved one may be its continuation
            self.add(
                "saves-not-used",
                f"attempt {self._spec.attempt} started over at {unit} {number} although {saved} had been saved",
                "load the newest saved file when the script starts, chosen by file name and not by a pointer file "
                "written later; or set checkpoint: {find: …, resume: …}",
            )

    def _newest_saved(self) -> str:
        """Returns the newest saved state in the run's own folders when the attempt began; empty if there is none.

        Also empty if the access time shows that the file was read after it was written: the script may have resumed
        from it.
        """
        named = (self._spec.env.get(name, "") for name in ("WINDLASS_CHECKPOINT_DIR", "WINDLASS_OUTPUT_DIR"))
        folders = [folder for folder in named if folder.startswith("/")]
        found = newest_saved(folders, self._spec.since, self._began_at)
        if found is None or _time_of(found.path, "st_atime") > found.at:
            return ""
        return min((os.path.relpath(found.path, folder) for folder in folders), key=len)

    # -- the end ------------------------------------------------------------------------------------------------------

    def outlived(self, rank: Rank) -> None:
        """Records processes in the group of a successful rank that do not end by themselves. The node kills
        them later.
        """
        try:
            os.killpg(rank.pid, 0)
        except OSError:
            return
        left = _still_alive(lambda line: line.group == rank.pid)
        if "step" in rank.capture.progress:  # forks of a rank that has trained are workers, such as a DataLoader's
            own = _shown(self._spec.ranks[0].argv)
            left = [one for one in left if one.command != own]
        self._left += [(rank.number, one) for one in left]

    def ended(self, ranks: Ranks, own: set[int]) -> None:
        """Reports processes that outlived the ranks, after all have ended. Ignores `own`, the processes of the node."""
        if not ranks or ranks.are_ending or any(rank.outcome() != 0 for rank in ranks):
            return
        me, number = os.getpid(), ranks[0].number
        orphans = _still_alive(lambda line: line.parent == me and line.pid not in own) if _has_children() else []
        if left := [*self._left, *((number, one) for one in orphans)]:
            some = ", ".join(f"{one.command} (process {one.pid})" for _, one in left[:NAMED])
            some = ranks[0].capture.masked(some)
            many = "a process that a rank had started" if len(left) == 1 else f"{len(left)} processes of ranks"
            self.add(
                "processes-outlived",
                f"{many} outlived it and {'was' if len(left) == 1 else 'were'} ended: {some}",
                "wait for child processes in the script, and do not run it in the background (&, nohup, setsid)",
                sorted({number for number, _ in left}),
            )
        self._no_steps(ranks)
        for end, (what, fix) in ALONE_IN.items():
            if all(os.path.exists(rank.base + end) for rank in ranks):
                message = f"each of the {self._spec.world_size} ranks was alone in its {what}"
                self.add("ranks-alone", message, fix, [rank.number for rank in ranks])

    def _no_steps(self, ranks: Ranks) -> None:
        """Warns if the first attempt of a training script trained no step, because it resumed a finished training or
        its loader is empty.
        """
        progress = [rank.capture.progress for rank in ranks]
        if self._spec.attempt > 1 or any(one.get("step") or "loss" in one for one in progress):
            return
        if self._is_own or (self._is_loaded and any(re.search(_EVALUATES, rank.capture.tail) for rank in ranks)):
            return  # the script evaluates the loaded checkpoint
        if self._if_it_trains is not None:
            self._began_from(*self._if_it_trains, did="the script loaded")
        if self._has_restored or any(re.search(_NO_BATCHES, rank.capture.tail) for rank in ranks):
            why = "it loaded the checkpoint of a finished training" if self._has_restored else ""
            self.add(
                "no-steps",
                f"the script trained no step{': ' + why if why else ''}",
                "remove or rename that checkpoint to train from the beginning, or train for more epochs"
                if why
                else "check that the data set and its loader are not empty on any rank",
            )


def _still_alive(is_wanted: Callable[[ProcessStat], bool]) -> list[SurvivingProcess]:
    """Returns the matching processes that are still alive after `LEAVE_SECONDS`.

    If none is found, searches again, because one pass can miss a process that is forked and orphaned meanwhile.
    """
    give_up = time.monotonic() + LEAVE_SECONDS
    was_empty = False
    while True:
        found = [line for line in process.all_processes() if line.state != "Z" and is_wanted(line)]
        if (was_empty and not found) or time.monotonic() >= give_up:
            return [SurvivingProcess(line.pid, _command(line)) for line in found if not _is_viewer(line)]
        was_empty = not found
        time.sleep(0.0 if was_empty else 0.02)


def _time_of(path: str, name: str) -> float:
    """Returns a time of a file, such as `st_mtime`; 0 if the file does not exist."""
    try:
        return float(getattr(os.stat(path), name))
    except OSError:
        return 0.0


def _is_viewer(line: ProcessStat) -> bool:
    """Whether a process only displays or records metrics; killing it does not harm the run."""
    words = process.read_text(f"/proc/{line.pid}/cmdline").split("\0")[:4]
    return any(re.match(_VIEWER, os.path.basename(word)) for word in words)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _command(line: ProcessStat) -> str:
    """Returns the program and the first argument of a process; later arguments may be secrets."""
    return _shown(process.read_text(f"/proc/{line.pid}/cmdline").split("\0"))


def _shown(words: Sequence[str]) -> str:
    shown = [os.path.basename(words[0]), *(word for word in words[1:] if not word.endswith("/worker/rank.py"))]
    return " ".join(shown[:2])[:COMMAND_CHARS].strip() or "a process"
