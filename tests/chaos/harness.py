"""Plays a chaos case: a job that trains digits, the strikes on it, and what must be true of the run at its end."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.plans import (
    DAMAGES,
    EVERY_STEPS,
    FULL_STORES,
    NOTICES,
    READ_ERROR_SECONDS,
    READ_ERRORS,
    Case,
    Strike,
)
from tests.helpers.disk import fill, small_disk
from tests.helpers.failing_disk import failing_reads
from tests.helpers.machine import Machine, Process, kill
from tests.helpers.until import passed, until

from windlass.runs.events import Event
from windlass.runs.phase import Phase
from windlass.runs.store import Store

LOOK_SECONDS = 0.4
"""How often a command looks at the run, and so takes it up again where its supervisor is dead."""
PATIENCE_SECONDS = 200.0
DISK_KIB = 640
"""Room for some checkpoints of this network."""
TRAIN = Path(__file__).with_name("train.py")


def steps_in(marks: Path) -> dict[int, list[int]]:
    """By attempt, from what the ranks wrote down: the step that it was restored at, then the highest that any made."""
    found: dict[int, list[int]] = {}
    for path in marks.glob("rank-*"):
        for line in path.read_text().splitlines():
            attempt, *words = line.split()
            steps = found.setdefault(int(attempt), [0, 0])
            if words[0] == "restored":
                steps[0] = int(words[1])
            steps[1] = max(steps[1], int(words[-1]))
    return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class Struck:
    """What a strike did."""

    strike: Strike
    attempt: int
    """The attempt that it met; 0 before the first."""
    victims: str
    unfinished_step: int | None = None
    """The step of a checkpoint that was being written then."""
    damaged: str | None = None
    """The checkpoint that was spoilt."""
    expected_step: int | None = None
    """The step of the newest one that is still good after that."""
    came_due: bool = False
    """Whether a checkpoint came due while the disk was full, in a rank that lived on."""
    vanished: tuple[str, ...] = ()
    """Checkpoints that were complete before reads failed, and gone after that."""
    held_node: int | None = None
    """The node that had not started when another one of its attempt failed."""

    @property
    def is_harmless(self) -> bool:
        """Whether no attempt ends by it."""
        return self.strike.kind in ("warm", "supervisor") or (self.strike.kind in FULL_STORES and not self.victims)


@dataclass
class Play:
    """One run through its strikes."""

    case: Case
    machine: Machine
    folder: Path
    """Of this case alone."""
    run: str = ""
    struck: list[Struck] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    filler: Path | None = None
    looked_at: float = 0.0

    # -- the run ------------------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Everything, with the reasons for which it is not as it should be in `problems`."""
        self.folder.mkdir(parents=True)
        if any(strike.kind == "read error" for strike in self.case.strikes):
            with failing_reads(self.folder, READ_ERRORS[0]):
                pass  # skips here, and not in the middle of a run, where nothing can be mounted
        with small_disk(self.disk, DISK_KIB) if self.case.fills_a_disk else contextlib.nullcontext():
            try:
                self._begin()
                for strike in self.case.strikes:
                    if not self._moment_of(strike):
                        break
                    self._strike(strike)
                self._finish()
                self._judge()
            except AssertionError as error:
                self.problems.append(f"{error}; record: {self._story()}")

    @property
    def marks(self) -> Path:
        return self.folder / "marks"

    @property
    def disk(self) -> Path:
        return self.folder / "disk"

    @property
    def checkpoints(self) -> Path:
        outside = self.case.fills_a_disk or self.case.fills_the_store
        return self.disk if outside else self.machine.home / "runs" / self.run / "checkpoints"

    def _begin(self) -> None:
        job = self.machine.folder / f"case-{self.case.seed}.yaml"
        job.write_text(json.dumps(self._fields()))
        done = self.machine.windlass("run", str(job), "--detach", "-o", "json")
        assert done.returncode == 0, done.stderr
        self.run = json.loads(done.stdout)["id"]

    def _fields(self) -> dict[str, Any]:
        """The job."""
        command = [str(TRAIN), *self._where_marks_are(), "--every", str(EVERY_STEPS)]
        # A store that is full is to cost the record nothing; what it costs checkpoints, the kind "disk full" shows.
        outside = self.case.fills_a_disk or self.case.fills_the_store
        command += ["--checkpoints", str(self.disk)] if outside else []
        # Nothing that differs between cases is in the environment, or each would need a warm process of its own.
        return {
            "name": "chaos",
            "launcher": "torchrun",
            "run": " ".join(command),
            "nodes": self.case.nodes,
            "grace": "10s",
            "procs_per_node": self.case.procs_per_node,
            "python": sys.executable,
            "restarts": {"max": 100, "on": ["failure", "preemption", "node-loss"]},
        }

    def _where_marks_are(self) -> list[str]:
        """The argument that names their folder."""
        self.marks.mkdir()
        return [str(self.marks)]

    def _moment_of(self, strike: Strike) -> bool:
        """Wait for it; False where the run is over before."""
        if strike.after_steps is None:
            passed(strike.after_seconds)
            return not self._look()
        goal = self._front() + strike.after_steps
        until(lambda: self._look() or self._newest_step() >= goal, "no progress", PATIENCE_SECONDS)
        return not self._look()

    def _look(self) -> bool:
        """What a person does who wonders: a command looks, and a run that was stopped, or found no space for its next
        attempt, is resumed. Gives whether it is over.
        """
        phase = self._phase()
        if phase is Phase.STOPPED or (phase is Phase.FAILED and self._may_resume()):
            done = self.machine.windlass("resume", self.run, "--detach")
            assert done.returncode == 0, f"resume: exit {done.returncode}: {done.stdout}{done.stderr}"
            return False
        if not phase.is_terminal and time.monotonic() - self.looked_at > LOOK_SECONDS:
            self.machine.status(self.run)
            self.looked_at = time.monotonic()
        return phase in (Phase.SUCCEEDED, Phase.FAILED, Phase.LOST)

    def _finish(self) -> None:
        until(self._look, lambda: f"not ended: {self._story()}", PATIENCE_SECONDS)
        phase = self._phase()
        assert phase is Phase.SUCCEEDED, f"the run {phase}: {self.machine.windlass('why', self.run).stdout}"

    def _attempt(self) -> int:
        """The number of the newest attempt."""
        with Store(self.machine.home) as store:
            return len(store.status(self.run).attempts)

    def _phase(self) -> Phase:
        with Store(self.machine.home) as store:
            return store.status(self.run, with_progress=False).phase

    def _may_resume(self) -> bool:
        """Whether a user who sees the reason would resume the failed run."""
        return self._found_no_space()

    def _found_no_space(self) -> bool:
        """Whether the last attempt began while the store was still full, and could not start for that."""
        causes = [event.data["summary"] for event in self._events() if event.kind == "cause"]
        found = f"could not start: [Errno {errno.ENOSPC}]"
        return self.case.fills_the_store and any(one.startswith(found) for one in causes[-1:])

    def _events(self) -> list[Event]:
        with Store(self.machine.home) as store:
            return store.events(self.run)

    def _story(self) -> list[str]:
        """The run's events, in short."""
        left_out = {"progress", "phase", "rank", "node"}
        return [
            f"{event.kind} {json.dumps(event.data)[:300]}" for event in self._events() if event.kind not in left_out
        ]

    # -- what the ranks wrote down ------------------------------------------------------------------------------------

    def steps(self) -> dict[int, list[int]]:
        """By attempt: the step that it was restored at, then the highest that any rank made."""
        return steps_in(self.marks)

    def _newest_step(self) -> int:
        return list(self.steps().values() or [[0, 0]])[-1][1]

    def _front(self) -> int:
        return max((highest for _, highest in self.steps().values()), default=0)

    # -- strikes ------------------------------------------------------------------------------------------------------

    def _strike(self, strike: Strike) -> None:
        attempt = self._attempt()
        if strike.kind in DAMAGES:
            self.struck.append(self._damage(strike, attempt))
            return
        special = {
            "disk full": self._fill,
            "read error": self._fail_reads,
            "node while another starts": self._hold_a_node,
            **dict.fromkeys(FULL_STORES, self._fill_store),
        }
        if strike.kind in special:
            special[strike.kind](strike, attempt)
            return
        if strike.kind == "stop":
            self.machine.windlass("stop", self.run)
            victims = ["the run"]
        elif strike.kind == "power cut":
            victims = self._cut_power()
        else:
            number = signal.SIGTERM if strike.kind in NOTICES else signal.SIGKILL
            pids = sorted(self._pids(strike.kind.removesuffix(" sigterm")))
            victims = [f"{pid}" for pid in pids[int(strike.which * len(pids)) :][:1] if kill(pid, number)]
        self.struck.append(Struck(strike, attempt, " ".join(victims), self._unfinished()))

    def _pids(self, kind: str) -> set[int]:
        """The processes of one kind that live now."""
        if kind in ("supervisor", "sigterm"):
            return {process.pid for process in self.machine.supervisors()}
        if kind == "warm":
            about = [path.read_text() for path in (self.machine.home / "warm").glob("*.json")]
            return {json.loads(text)["pid"] for text in about if text} & self._alive()
        events = self._events()
        begun = max((number for number, event in enumerate(events) if event.kind == "attempt"), default=0)
        return {e.data["pid"] for e in events[begun:] if e.kind == kind and "pid" in e.data} & self._alive()

    def _alive(self) -> set[int]:
        """Everything that came of this home or this case: their folders stand in a variable or in the arguments.

        Forks of a warm process have its variables and not those of their rank; writers have few of either.
        """
        found = set()
        words = [str(self.machine.home).encode(), str(self.folder).encode()]
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    said = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                    if any(word in said for word in words):
                        found.add(int(entry.name))
        return found

    def _cut_power(self) -> list[str]:
        """Everything dies at one moment, and no process sees another die."""
        victims: set[int] = set()
        while more := self._alive() - victims:
            for pid in more:
                kill(pid, signal.SIGSTOP)
            victims |= more
        for pid in victims:
            kill(pid)
        until(lambda: not self._alive(), lambda: f"still there: {self._alive()}")
        return [f"{len(victims)} processes"]

    def _fill(self, strike: Strike, attempt: int) -> None:
        """The disk is full for some steps, and perhaps for a restart too."""
        filler = fill(self.disk)
        begun = self._newest_step()
        goal = begun + EVERY_STEPS + 5 + int(30 * strike.which)  # a checkpoint comes due meanwhile
        until(lambda: self._look() or self._newest_step() >= goal, "a full disk stops the training", PATIENCE_SECONDS)
        victims, ending = [], self._attempt()
        if strike.detail < 0.5:
            victims = [f"{pid}" for pid in sorted(self._pids("rank"))[:1] if kill(pid)]
            passed(strike.detail)
        # The last steps may have been made before: then no write has looked for space. A rank that was killed may have
        # been so before its writer looked.
        came_due = not victims and begun // EVERY_STEPS < (self._newest_step() - 1) // EVERY_STEPS
        filler.unlink()
        # Struck while one attempt ended, the disk is full for the next one too, whose rank it then is.
        for number in {attempt, ending}:
            self.struck.append(Struck(strike, number, " ".join(victims), came_due=came_due))

    def _fill_store(self, strike: Strike, attempt: int) -> None:
        """The disk of the record is full for some steps, and perhaps for a restart too; no command looks meanwhile."""
        ranks, supervisors = sorted(self._pids("rank")), self._pids("supervisor")
        filler = fill(self.machine.home)
        if strike.kind != "store full":
            for pid in supervisors:
                kill(pid)
        goal = self._newest_step() + 5 + int(30 * strike.which)
        until(lambda: self.digest() or self._newest_step() >= goal, "a full store stops the training", PATIENCE_SECONDS)
        victims = []
        if strike.detail < 0.5:
            victims = [f"{pid}" for pid in ranks[:1] if kill(pid)]
            passed(2 * strike.detail)
        filler.unlink()
        self.struck.append(Struck(strike, attempt, " ".join(victims), self._unfinished()))

    def _fail_reads(self, strike: Strike, attempt: int) -> None:
        """Hold all ranks, let every read of the checkpoints fail, kill the ranks, and let them restore meanwhile."""
        held = self._family(self._pids("rank"))
        for pid in held:
            kill(pid, signal.SIGSTOP)
        found = self._committed()
        once = strike.which < 0.3
        number = READ_ERRORS[int(strike.detail * len(READ_ERRORS))]
        with failing_reads(self.checkpoints, number, once=once) as disk:
            for pid in held:
                kill(pid)
            give_up = time.monotonic() + (READ_ERROR_SECONDS if once else READ_ERROR_SECONDS * strike.which)
            while time.monotonic() < give_up and not self._look() and not (once and disk.num_failed):
                passed(0.02)
            num_failed = disk.num_failed
        # Where the ranks have saved newer ones by now, older ones are removed in their turn.
        is_past = step_of(self._committed()[0]) > step_of(found[0]) if found and self._committed() else False
        gone = tuple(path.name for path in found if not (path / "manifest.json").exists())
        vanished = () if is_past else gone
        expected = (step_of(found[0]) if found else 0) if held else None
        said = f"{len(held)} ranks, {os.strerror(number)} × {num_failed}"
        self.struck.append(Struck(strike, attempt, said, vanished=vanished, expected_step=expected))

    def _hold_a_node(self, strike: Strike, attempt: int) -> None:
        """End the attempt; of the two nodes of the next one stop one before it reports, and let the other fail."""
        warm, supervisors = self._pids("warm"), self._pids("supervisor")

        def nodes() -> set[int]:
            """The forks of a warm process, and what supervisors have begun cold; they begin warm processes too."""
            return children(warm) | {pid for pid in children(supervisors) if is_node(pid)}

        known = nodes()
        victims = [f"{pid}" for pid in sorted(self._pids("rank"))[:1] if kill(pid)]
        self.struck.append(Struck(strike, attempt, " ".join(victims), self._unfinished()))
        give_up = time.monotonic() + 20
        new: list[int] = []
        while len(new) < self.case.nodes and time.monotonic() < give_up:  # without a pause: it reports in milliseconds
            new = sorted(nodes() - known)
        if len(new) < self.case.nodes:
            return
        held = new[-1]
        kill(held, signal.SIGSTOP)
        until(lambda: self._started() or not self._alive() & set(new[:-1]), "no node starts", PATIENCE_SECONDS)
        started = self._started()
        kind = "node" if strike.detail < 0.5 else "rank"
        until(lambda: self._pids(kind) or not self._alive() & set(new[:-1]), f"no {kind} starts", PATIENCE_SECONDS)
        victims = [f"{pid}" for pid in sorted(self._pids(kind) - {held})[:1] if kill(pid)]
        passed(0.2 + strike.which)  # the supervisor has noticed by then
        kill(held, signal.SIGCONT)
        (held_node,) = set(range(self.case.nodes)) - set(started) if len(started) == 1 else (None,)
        attempt = self._attempt()
        said = f"{kind} {' '.join(victims)}, node {held_node} held"
        self.struck.append(Struck(strike, attempt, said, held_node=held_node))

    def _started(self) -> list[int]:
        """The nodes of the newest attempt that have reported."""
        events = self._events()
        begun = max((number for number, event in enumerate(events) if event.kind == "attempt"), default=0)
        return sorted({event.data["node"] for event in events[begun:] if event.kind == "node"})

    def _damage(self, strike: Strike, attempt: int) -> Struck:
        """Hold all ranks, spoil the newest checkpoint, and kill them."""
        held = self._family(self._pids("rank"))
        if not held:  # the run is at its end, or between two attempts: no restore might meet what is spoilt now
            return Struck(strike, attempt, "0 ranks")
        for pid in held:
            kill(pid, signal.SIGSTOP)
        found = self._committed()
        damaged = found[0] if found else None
        if damaged is not None:
            spoil(damaged, strike)
        for pid in held:
            kill(pid)
        expected = step_of(found[1]) if len(found) > 1 else 0
        name = damaged.name if damaged is not None else None
        return Struck(strike, attempt, f"{len(held)} ranks", damaged=name, expected_step=expected)

    def _family(self, pids: set[int]) -> set[int]:
        """These processes and all that came of them."""
        parents = {}
        for pid in self._alive():
            with contextlib.suppress(OSError):
                parents[pid] = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
        found = set(pids)
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return found

    def _committed(self) -> list[Path]:
        """Checkpoints with a manifest that was not spoilt, the newest first."""
        spoilt = {struck.damaged for struck in self.struck}
        found = [
            path.parent for path in self.checkpoints.glob("step-*/manifest.json") if path.parent.name not in spoilt
        ]
        return sorted(found, key=age_of, reverse=True)

    def _unfinished(self) -> int | None:
        found = [path for path in self.checkpoints.glob("step-*") if not (path / "manifest.json").exists()]
        return max(map(step_of, found), default=None)

    # -- judgement ----------------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        self.problems += [*self._wrong_restores(), *self._lost_work(), *self._untrue_record()]
        self._all_gone()

    def _wrong_restores(self) -> Iterator[str]:
        damaged = {struck.damaged: struck.attempt for struck in self.struck if struck.damaged is not None}
        said = [event.data for event in self._events() if event.kind == "checkpoint"]
        attempt = 0
        for event in self._events():
            attempt += event.kind == "attempt"
            is_restored = event.kind == "checkpoint" and event.data["action"] == "restored"
            # The attempt in which it was spoilt may have begun with it, when it was good.
            if is_restored and attempt > damaged.get(event.data["name"], attempt):
                yield f"{event.data['name']} was spoilt, and loaded"
        if any(struck.came_due for struck in self.struck) and not any(data["action"] == "failed" for data in said):
            yield "a checkpoint that found no space was not told"
        for struck in self.struck:
            if struck.vanished:
                yield f"{', '.join(struck.vanished)} vanished while reads failed"
        only_one = any(struck.damaged is not None and struck.expected_step == 0 for struck in self.struck)
        if any(data["action"] == "none-verified" for data in said) and not only_one:
            yield f"no checkpoint was verified, though one was not spoilt: {said}"
        refused = {data["name"] for data in said if data["action"] == "refused"}
        for struck in self.struck:
            if struck.damaged is not None and struck.strike.kind != "manifest" and struck.damaged not in refused:
                yield f"{struck.damaged} was spoilt, and no rank said that it was refused"

    def _lost_work(self) -> Iterator[str]:
        """Compares where each attempt ended with where the next one began."""
        attempts = self.steps()
        for (before, (_, reached)), (after, (restored, _)) in zip(
            attempts.items(), list(attempts.items())[1:], strict=False
        ):
            strikes = [struck for struck in self.struck if before <= struck.attempt < after]
            kinds = {struck.strike.kind for struck in strikes}
            lost = reached - restored
            if all(struck.is_harmless for struck in strikes):
                yield f"attempt {before} ended, and {kinds or 'nothing'} was struck in it"
            where = f"attempt {before} reached step {reached}, attempt {after} began at {restored}"
            expected = [struck.expected_step for struck in strikes if struck.expected_step is not None]
            if kinds & (DAMAGES | {"read error"}):
                if len(strikes) == 1 and expected and restored != expected[0]:
                    yield f"{where}, though the newest good checkpoint was of step {expected[0]}"
            elif kinds and kinds <= NOTICES | {"warm", "supervisor"} and kinds & NOTICES:
                if lost != 0:
                    yield f"{where}: {lost} steps lost, and there was notice"
            elif "disk full" not in kinds:
                seen = [struck.unfinished_step for struck in strikes if struck.unfinished_step is not None]
                unfinished = [step for step in seen if step <= reached]  # a later one is of the next attempt
                # One that was due, but of which nothing was on the disk yet, was being copied or begun.
                begun = EVERY_STEPS - 1 if lost >= EVERY_STEPS and not unfinished else 0
                most = EVERY_STEPS + max((reached - step for step in unfinished), default=begun)
                most += EVERY_STEPS * self._skipped(restored, reached)
                if lost > most:
                    yield f"{where}: {lost} steps lost, more than {most}"

    def _skipped(self, after: int, until: int) -> int:
        """How many checkpoints of these steps were left out, since a writer with little time was still at another."""
        said = [event.data for event in self._events() if event.kind == "checkpoint"]
        return len({data["step"] for data in said if data["action"] == "skipped" and after < data["step"] <= until})

    def _untrue_record(self) -> Iterator[str]:
        events = self._events()
        if [event.seq for event in events] != list(range(1, len(events) + 1)):
            yield f"events are numbered {[event.seq for event in events]}"
        if events[-1].kind != "end":
            yield f"the last event is {events[-1]}"
        status = self.machine.status(self.run)
        wall = status["ended_at"] - status["created_at"]
        if abs(sum(status["phases"].values()) - wall) > 0.01 * wall:
            yield f"phases {status['phases']} do not sum to {wall}"

        yield from self._false_statements(events)

    def _false_statements(self, events: list[Event]) -> Iterator[str]:
        """A node that had not started was not killed or lost, and its ranks are no victims."""
        for struck in self.struck:
            if struck.held_node is None:
                continue
            begun = [n for n, e in enumerate(events) if e.kind == "attempt" and e.data["number"] == struck.attempt]
            after = [n for n, e in enumerate(events) if e.kind == "attempt" and e.data["number"] > struck.attempt]
            own = events[begun[0] : after[0] if after else None]
            if any(event.kind == "node" and event.data["node"] == struck.held_node for event in own):
                continue  # it started after all, before the supervisor had noticed that the other failed
            first = struck.held_node * self.case.procs_per_node
            ranks = set(range(first, first + self.case.procs_per_node))
            for event in own:
                if event.kind == "lost-node" and event.data["node"] == struck.held_node:
                    yield f"node {struck.held_node} had not started, and is said to be lost: {event.data}"
                if event.kind == "cause" and ranks & {event.data["rank"], *event.data.get("victims", ())}:
                    yield f"ranks {ranks} had not started, and the cause names them: {event.data}"

    def _all_gone(self) -> None:
        def left() -> set[int]:
            return self._alive() - self._pids("warm")

        # A warm process tries further imports in a fork with idle priority, which a busy machine lets wait for long.
        until(lambda: not left(), lambda: f"still there: {[(pid, said_of(pid)) for pid in left()]}", PATIENCE_SECONDS)

    def digest(self) -> str:
        """Of the weights at the end; empty where there are none."""
        path = self.marks / "digest"
        return path.read_text() if path.exists() else ""


def children(parents: set[int]) -> set[int]:
    """The processes that these have begun and not left."""
    found = set()
    for pid in parents:
        with contextlib.suppress(OSError):
            found |= {int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    return found


def is_node(pid: int) -> bool:
    """Whether this process has the arguments of a node worker.

    A child of a supervisor has the supervisor's arguments until its exec. To stop it before that would stop the
    supervisor too, which the kernel lets wait for the exec (vfork).
    """
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return False
    return Process(pid, words.decode(errors="replace"), {}).node is not None


def step_of(checkpoint: Path) -> int:
    """The step that a checkpoint's folder is named after."""
    match = re.match(r"step-(\d+)", checkpoint.name)
    assert match is not None, f"{checkpoint} is not named as a checkpoint"
    return int(match[1])


def said_of(pid: int) -> str:
    """The arguments of a process, for a message."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    return "gone"


def age_of(checkpoint: Path) -> tuple[int, int]:
    """Attempt and step: of two, the greater is the newer one."""
    match = re.match(r"step-(\d+)-a(\d+)[0-9a-f]{4}\b", checkpoint.name)
    assert match is not None, f"{checkpoint} is not named as a checkpoint"
    return int(match[2]), int(match[1])


def spoil(checkpoint: Path, strike: Strike) -> None:
    """Cut a file of it, turn one bit of a file, or take its manifest away."""
    if strike.kind == "manifest":
        (checkpoint / "manifest.json").unlink()
        return
    files = sorted(path for path in checkpoint.iterdir() if path.stat().st_size)
    victim = files[int(strike.which * len(files))]
    size = victim.stat().st_size
    place = int(strike.detail * size)
    if strike.kind == "truncate":
        os.truncate(victim, place)
        return
    content = bytearray(victim.read_bytes())
    content[place] ^= 1 << int(strike.which * 1000) % 8
    victim.write_bytes(content)
