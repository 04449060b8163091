"""Kill -9 of anything at any moment: the next command that looks brings every record to a true end."""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.machine import Machine, kill, machine_in
from tests.helpers.nightly import DRAWS_ALIKE, IS_NIGHTLY
from tests.helpers.until import passed, until

from windlass.actions import runs
from windlass.actions.jobs import read_job
from windlass.engines.local.engine import LocalEngine
from windlass.runs import crash
from windlass.runs.context import Context
from windlass.runs.events import entry_of
from windlass.runs.store import RunWriter, Store
from windlass.supervise.adoption import MAX_CRASHES
from windlass.worker import process

pytestmark = pytest.mark.slow
NUM_RUNS = 30 if IS_NIGHTLY else 10
AT_ONCE = 3
LATEST_SECONDS = 1.5
NUM_RANKS = 4
TARGETS = ("command", "supervisor", "node", "rank", "power cut")
WINDOW_SECONDS = 0.5
"""Between a rank's last act and the moment when its node has seen it end: struck in it, its outcome is unknown.
On a busy machine it is longer, by as much as two commands that look at the run take."""

SCRIPT = """
import os, time
from pathlib import Path
rank, marks = os.environ["WINDLASS_RANK"], Path(os.environ["MARKS"])
ledger = open(marks / f"said-{rank}", "a")
for step in range(8):
    line = f"rank {rank} says {step}"
    print(line, flush=True)
    ledger.write(f"{time.time()} {line}\\n")
    ledger.flush()
    time.sleep(0.1)
(marks / f"finished-{rank}").touch()
"""


def write_job(machine: Machine, script: str, *, launcher: str = "torchrun", **fields: object) -> Path:
    """A job of 2 nodes × 2 ranks; gives the folder in which its ranks leave marks."""
    marks = machine.folder / "marks"
    marks.mkdir(parents=True, exist_ok=True)
    machine.write("work.py", script)
    run = {"command": [sys.executable, "work.py"]} if launcher == "plain" else {"run": "work.py"}
    job = {
        "name": "kill",
        **run,
        "launcher": launcher,
        "nodes": 2,
        "procs_per_node": 2,
        "env": {"MARKS": str(marks)},
        "grace": "1s",
        "python": sys.executable,
        **fields,
    }
    machine.write("job.yaml", json.dumps(job))
    return marks


# -- thirty runs ------------------------------------------------------------------------------------------------------


@dataclass
class Case:
    """One run, what is killed in it and when, and what came of it."""

    number: int
    target: str
    launcher: str
    delay_seconds: float
    victim: int
    """Which node or rank."""
    killed_at: float = 0.0
    killed: list[str] = field(default_factory=list)
    status: dict[str, Any] = field(default_factory=dict)
    window_seconds: float = WINDOW_SECONDS
    finished: list[int] = field(default_factory=list)
    """Ranks that left their mark."""
    problems: list[str] = field(default_factory=list)

    def row(self) -> str:
        cause = self.status.get("cause") or {}
        named = f"rank {cause['rank']} {cause['signal'] or cause['exit_code']}" if "rank" in cause else ""
        return (
            f"{self.number:2}  {self.launcher:8}  {self.delay_seconds:5.2f} s  {self.target:10}  "
            f"{', '.join(self.killed) or 'nothing there':38.38}  {self.status.get('phase', 'no record'):9}  "
            f"{named:14}  {len(self.finished)} of {NUM_RANKS}  {'; '.join(self.problems)}"
        )


def cases(seed: int) -> list[Case]:
    rng = random.Random(seed)
    targets = [TARGETS[number % len(TARGETS)] for number in range(NUM_RUNS)]
    rng.shuffle(targets)
    return [
        Case(
            number, target, rng.choice(["plain", "torchrun"]), rng.uniform(0, LATEST_SECONDS), rng.randrange(NUM_RANKS)
        )
        for number, target in enumerate(targets, 1)
    ]


@pytest.mark.timeout(900)
def test_every_record_ends_true(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("WINDLASS_TEST_SEED") or (0 if DRAWS_ALIKE else secrets.randbits(32)))
    planned = cases(seed)

    def play(case: Case) -> None:
        with machine_in(tmp_path / str(case.number)) as machine:
            try:
                play_one(case, machine)
            except Exception as error:
                case.problems.append(f"{type(error).__name__}: {error}")

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(play, planned))
    with capsys.disabled():
        print(f"\nWINDLASS_TEST_SEED={seed}")
        print("\n".join(case.row() for case in planned))
    assert [case.row() for case in planned if case.problems] == []


def play_one(case: Case, machine: Machine) -> None:
    marks = write_job(machine, SCRIPT, launcher=case.launcher)
    command = machine.start("run", "--quiet")
    if case.target != "command" or case.victim % 2:  # else there would seldom be anything to kill
        until(lambda: list(machine.home.glob("runs/*")), "no run was begun")
    passed(case.delay_seconds)
    strike(case, machine, command)
    # Two commands look at once: both must answer, and neither may spoil what the other does.
    began = time.monotonic()
    looking = [machine.start("status", "-o", "json") for _ in range(2)]
    for looker in looking:
        _, said = looker.communicate(timeout=240)
        if looker.returncode not in (0, 102):
            case.problems.append(f"status: exit {looker.returncode}: {said}")
    case.window_seconds += time.monotonic() - began
    if case.target == "command":
        passed(0.2)  # its supervisor may just be starting
    command_over = command.poll() is not None
    case.status = machine.status()
    if case.status or not command_over:
        until(lambda: machine.status(), "the command lives and made no record")
        case.status = machine.ended()
    machine.empty()
    command.communicate(timeout=240)
    case.finished = sorted(int(path.name.removeprefix("finished-")) for path in marks.glob("finished-*"))
    if case.status:
        case.problems += [*untrue(case, marks), *broken_history(case, machine), *missing_lines(case, machine, marks)]
    elif case.finished:
        case.problems.append("ranks ran without a record")


def strike(case: Case, machine: Machine, command: subprocess.Popen[str]) -> None:
    """Kill the target, as far as it is there by now."""
    found = machine.processes()
    node_victim = case.victim // 2
    if case.target == "command":
        victims = [("command", command.pid)]
    elif case.target == "node":
        victims = [(f"node {p.node}", p.pid) for p in found if p.node == node_victim]
    elif case.target == "rank":
        victims = [(f"rank {p.rank}", p.pid) for p in found if p.rank == case.victim and p.node is None]
    else:
        victims = [("supervisor", p.pid) for p in found if p.is_supervisor]
        if case.target == "power cut":
            victims += [(f"node {p.node}", p.pid) for p in found if p.node is not None] + [("command", command.pid)]
    case.killed_at = time.time()
    if case.target == "power cut":  # all at one moment: no process observes the end of another
        for _, pid in victims:
            kill(pid, signal.SIGSTOP)
    case.killed = [name for name, pid in victims if kill(pid)]
    if case.target == "power cut":
        command.wait()
        until(lambda: not machine.processes() or machine.supervisors(), "ranks outlive their nodes")


def untrue(case: Case, marks: Path) -> Iterator[str]:
    """What the record says that is not so."""
    phase, cause = case.status["phase"], case.status["cause"] or {}
    all_finished = len(case.finished) == NUM_RANKS
    last_mark = max((path.stat().st_mtime for path in marks.glob("finished-*")), default=0.0)
    in_window = abs(case.killed_at - last_mark) <= case.window_seconds
    if phase == "succeeded" and not all_finished:
        yield f"succeeded, and ranks {case.finished} alone did"
    if phase != "succeeded" and all_finished and not (in_window and case.target in ("node", "rank", "power cut")):
        yield f"{phase}, and all ranks did what they should"
    if phase == "failed":
        if case.target == "rank" and (cause.get("rank"), cause.get("signal")) != (case.victim, "SIGKILL"):
            yield f"rank {case.victim} was killed, the cause is {cause}"
        if case.target == "node" and (cause.get("rank", -1) // 2, cause.get("signal")) != (case.victim // 2, "SIGKILL"):
            yield f"node {case.victim // 2} was killed, the cause is {cause}"
        # Where one node had ended, the other was lost by itself, as far as anything on the machine can tell.
        whole = any({rank, rank + 1} <= set(case.finished) for rank in range(0, NUM_RANKS, 2))
        if not case.killed or case.target == "command" or (case.target == "power cut" and not whole):
            yield f"failed with {cause} for want of {case.killed}"
        if cause.get("rank") in case.finished and not in_window:
            yield f"blames rank {cause['rank']}, which finished"
    if phase == "lost" and "supervisor" not in case.killed and "command" not in case.killed:
        yield f"lost, when {case.killed} was killed"
    if phase == "lost" and case.target == "supervisor" and case.status["attempts"]:
        yield "lost, and the nodes lived"
    if phase == "stopped":
        yield "stopped without a request"
    known = {state["rank"]: state["exit_code"] for state in case.status["ranks"]}
    for rank in case.finished:
        if known[rank] not in (0, None) and not in_window:
            yield f"rank {rank} finished and has exit code {known[rank]}"


def broken_history(case: Case, machine: Machine) -> Iterator[str]:
    """What is wrong with the events and the sums."""
    events = machine.events()
    if [event["seq"] for event in events] != list(range(1, len(events) + 1)):
        yield f"events are numbered {[event['seq'] for event in events]}"
    if [event["kind"] for event in events].count("end") != 1 or events[-1]["kind"] != "end":
        yield f"events end with {[event['kind'] for event in events[-3:]]}"
    told = [(e["rank"], "pid" in e) for e in events if e["kind"] == "rank"]
    if len(set(told)) != len(told):
        yield f"ranks are told of twice: {sorted(told)}"
    wall = case.status["ended_at"] - case.status["created_at"]
    if abs(sum(case.status["phases"].values()) - wall) > 0.001 * len(case.status["phases"]):
        yield f"phases {case.status['phases']} do not sum to {wall}"


def missing_lines(case: Case, machine: Machine, marks: Path) -> Iterator[str]:
    """What a rank has written and its log does not have.

    What was in the pipe of a killed node is gone with it: what the rank has written since the node had last read.
    """
    shown = machine.windlass("logs")
    if shown.returncode != 0:
        yield f"logs: exit {shown.returncode}: {shown.stderr}"
    node_killed = any(name.startswith("node") for name in case.killed)
    for rank in range(NUM_RANKS):
        said = marks / f"said-{rank}"
        ledger = [line.split(" ", 1) for line in said.read_text().splitlines()] if said.exists() else []
        written = [line for _, line in ledger]
        unread = [at for at, _ in ledger if node_killed and float(at) >= case.killed_at - WINDOW_SECONDS]
        kept = [line.removeprefix(f"[{rank}] ") for line in shown.stdout.splitlines() if line.startswith(f"[{rank}] ")]
        # The ledger is written after the line, so the log may be one ahead of it.
        if kept[: len(written)] != written[: len(kept)] or len(kept) < len(written) - len(unread):
            yield f"rank {rank} wrote {len(written)} lines, its log has {kept[-1:]} as number {len(kept)}"


# -- moments that chance seldom finds ---------------------------------------------------------------------------------


def create(machine: Machine, store: Store) -> RunWriter:
    """What `run` writes before it starts a supervisor."""
    context = Context(machine.environ, machine.folder)
    plan = runs.make_plan(read_job(None, (), {}, context), "local", context)
    return store.create(
        plan.run_id,
        name=plan.name,
        target=plan.target,
        output_dir=plan.output_dir,
        plan=plan.to_text(),
        time=time.time(),
    )


def begun(machine: Machine) -> str:
    """A detached run, once all its ranks have spoken; gives its id."""
    done = machine.windlass("run", "--detach", "-o", "json")
    assert done.returncode == 0, done.stderr
    run_id: str = json.loads(done.stdout)["id"]
    marks = machine.folder / "marks"
    until(lambda: len(list(marks.glob("began-*"))) == NUM_RANKS, lambda: f"not begun: {machine.status()}")
    return run_id


WAITS = """
import os, signal, time
from pathlib import Path
rank, marks = os.environ["WINDLASS_RANK"], Path(os.environ["MARKS"])
signal.signal(signal.SIGTERM, lambda *_: ((marks / f"asked-{rank}").touch(), exit(0)))
(marks / f"began-{rank}").touch()
print("began", flush=True)
while not (marks / "go").exists():
    time.sleep(0.02)
(marks / f"finished-{rank}").touch()
"""


def test_a_run_whose_command_was_killed_before_it_began_is_begun_by_the_next(machine: Machine) -> None:
    marks = write_job(machine, SCRIPT)
    with Store(machine.home) as store:
        create(machine, store).close()  # the lock goes with the process, as here
    status = machine.ended()
    assert (status["phase"], len(status["attempts"])) == ("succeeded", 1)
    assert len(list(marks.glob("finished-*"))) == NUM_RANKS
    machine.empty()
    assert machine.windlass("rm", status["id"]).returncode == 0
    assert machine.status() == {}


def test_a_run_that_was_to_stop_before_it_began_is_not_begun(machine: Machine) -> None:
    write_job(machine, SCRIPT)
    with Store(machine.home) as store:
        writer = create(machine, store)
        writer.close()
        LocalEngine(store).stop(writer.status.id)
    assert [event["kind"] for event in machine.events()] == ["created", "stop", "end"]


def test_supervisors_that_are_killed_again_and_again_are_followed_by_more(machine: Machine) -> None:
    marks = write_job(machine, SCRIPT)
    with Store(machine.home) as store:
        writer = create(machine, store)
        for _ in range(6):
            writer.append(entry_of("adopted", {}), at=time.time() - 100)
        writer.close()
    assert machine.ended()["phase"] == "succeeded"
    assert len(list(marks.glob("finished-*"))) == NUM_RANKS


def begin_crashed(machine: Machine, words: str, *, crashes: int = MAX_CRASHES, log: str = "") -> None:
    """A run whose supervisors crashed one after the other, the last with this traceback."""
    write_job(machine, SCRIPT)
    with Store(machine.home) as store:
        writer = create(machine, store)
        for _ in range(crashes - 1):
            writer.append(entry_of("adopted", {"crash": words, "crashed_at": time.time()}), at=time.time() - 100)
        run_dir = store.run_dir(writer.status.id)
        if crashes:
            (run_dir / crash.MARKER).write_text(words)
        (run_dir / "supervisor.log").write_text(log)
        writer.close()


def test_a_supervisor_that_crashed_again_and_again_has_its_words_in_the_record(machine: Machine) -> None:
    begin_crashed(machine, "Traceback …\nImportError: no module")
    status = machine.status()
    assert (status["phase"], status["attempts"]) == ("lost", [])
    assert "ImportError: no module" in status["cause"]["summary"]
    why = machine.windlass("why").stdout
    assert "supervisor crashed" in why
    assert "ImportError: no module" in why


def test_a_supervisor_that_crashed_once_is_followed_by_one_that_works(machine: Machine) -> None:
    begin_crashed(machine, "Traceback …\nOSError: passing", crashes=1)
    assert machine.ended()["phase"] == "succeeded"
    [adopted] = [event for event in machine.events() if event["kind"] == "adopted"]
    assert adopted["crash"] == "OSError: passing"


def test_what_libraries_log_in_a_supervisor_breaks_no_run(machine: Machine) -> None:
    begin_crashed(
        machine, "", crashes=0, log="ERROR:root:exec: process returned 1\nTraceback (most recent call last):\n"
    )
    assert machine.ended()["phase"] == "succeeded"


def test_many_commands_settle_a_run_once(machine: Machine) -> None:
    begin_crashed(machine, "MemoryError")
    looking = [machine.start("status", "-o", "json") for _ in range(4)]
    answers = [looker.communicate(timeout=240) for looker in looking]
    assert [json.loads(out)["phase"] for out, _ in answers] == ["lost"] * 4, answers
    assert [event["kind"] for event in machine.events()].count("end") == 1


def test_many_commands_begin_a_run_once(machine: Machine) -> None:
    write_job(machine, SCRIPT)
    with Store(machine.home) as store:
        create(machine, store).close()
    looking = [machine.start("status", "-o", "json") for _ in range(4)]
    answers = [looker.communicate(timeout=240) for looker in looking]
    assert [looker.returncode for looker in looking] == [0] * 4, answers
    assert machine.ended()["phase"] == "succeeded"
    kinds = [event["kind"] for event in machine.events()]
    assert (kinds.count("adopted"), kinds.count("attempt"), kinds.count("end")) == (1, 1, 1)


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with any run."""
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as popen:
        yield popen
        popen.kill()


@pytest.mark.parametrize("difference", ["start time", "boot"])
def test_a_process_that_has_taken_over_a_nodes_pid_is_not_signalled(
    machine: Machine, bystander: subprocess.Popen[bytes], difference: str
) -> None:
    """What the record finds after a reboot, or after the machine has been round all its pids."""
    write_job(machine, WAITS)
    found = process.stat(bystander.pid)
    assert found is not None
    ticks = found.start_ticks - (difference == "start time")
    boot = "another" if difference == "boot" else process.boot_id()
    with Store(machine.home) as store:
        writer = create(machine, store)
        run_dir = store.run_dir(writer.status.id)
        attempt = run_dir / "attempt-1"
        attempt.mkdir()
        writer.append(entry_of("attempt", {"number": 1, "members": [0, 1], "world_size": 4, "nodes": [[0, 1], [2, 3]]}))
        for node in range(2):
            said = [
                {
                    "kind": "node",
                    "at": time.time(),
                    "start": "cold",
                    "pid": bystander.pid,
                    "start_ticks": ticks,
                    "boot": boot,
                }
            ]
            (attempt / f"node-{node}.events").write_text("".join(json.dumps(event) + "\n" for event in said))
            (attempt / f"node-{node}.lock").touch()
        (run_dir / "supervisor.pid").write_text(f"{bystander.pid} {ticks} {boot}")
        writer.close()
    assert machine.windlass("stop", "--now").returncode == 0
    assert machine.status()["phase"] in ("lost", "stopped")
    passed(0.1)
    assert bystander.poll() is None


def test_a_stop_does_not_signal_who_has_taken_over_the_supervisors_pid(
    machine: Machine, bystander: subprocess.Popen[bytes]
) -> None:
    write_job(machine, WAITS)
    with Store(machine.home) as store:
        writer = create(machine, store)  # held by this process, as by a supervisor that has not said who it is
        pid_file = store.run_dir(writer.status.id) / "supervisor.pid"
        for text in (str(bystander.pid), f"{bystander.pid} 1 {process.boot_id()}"):
            pid_file.write_text(text)
            assert machine.windlass("stop", "--no-wait").returncode == 0
        writer.close()
    passed(0.1)
    assert bystander.poll() is None


def test_a_run_whose_supervisor_is_killed_is_taken_up_and_succeeds(machine: Machine) -> None:
    marks = write_job(machine, WAITS)
    begun(machine)
    for round_ in range(1, 3):
        (supervisor,) = machine.supervisors()
        kill(supervisor.pid)
        until(lambda: not machine.supervisors(), "the supervisor lives")
        assert machine.status()["phase"] == "training"
        assert [event["kind"] for event in machine.events()].count("adopted") == round_
    (marks / "go").touch()
    status = machine.ended()
    assert (status["phase"], [state["exit_code"] for state in status["ranks"]]) == ("succeeded", [0] * 4)
    machine.empty()


def test_a_stop_reaches_nodes_whose_supervisor_died_in_the_middle_of_it(machine: Machine) -> None:
    """The supervisor has written that a stop was asked for, and dies before it tells the nodes."""
    marks = write_job(machine, WAITS, grace="60s")
    run_id = begun(machine)
    (supervisor,) = machine.supervisors()
    kill(supervisor.pid)
    until(lambda: not machine.supervisors(), "the supervisor lives")
    with Store(machine.home) as store:
        writer = store.writer(run_id)
        assert writer is not None
        writer.append(entry_of("stop", {"now": False, "reason": "asked"}))
        writer.close()
    assert machine.ended()["phase"] == "stopped"
    assert len(list(marks.glob("asked-*"))) == NUM_RANKS
    machine.empty()


def test_a_stop_ends_a_run_whose_supervisor_is_dead(machine: Machine) -> None:
    marks = write_job(machine, WAITS, grace="60s")
    begun(machine)
    (supervisor,) = machine.supervisors()
    kill(supervisor.pid)
    done = machine.windlass("stop", "-o", "json")
    assert json.loads(done.stdout)["phase"] == "stopped", done.stderr
    assert len(list(marks.glob("asked-*"))) == NUM_RANKS
    machine.empty()


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.04, 0.06, 0.1])
def test_a_stop_right_after_the_start_is_a_stop(machine: Machine, delay: float) -> None:
    write_job(machine, WAITS)
    assert machine.windlass("run", "--detach").returncode == 0
    passed(delay)
    done = machine.windlass("stop", "-o", "json")
    assert json.loads(done.stdout)["phase"] == "stopped", done.stderr
    machine.empty()


def test_what_a_power_cut_made_of_a_nodes_file_does_not_make_the_run_unreadable(machine: Machine) -> None:
    """File systems that were cut off give back zeros, halves of lines, or nothing."""
    write_job(machine, WAITS)
    with Store(machine.home) as store:
        writer = create(machine, store)
        attempt = store.run_dir(writer.status.id) / "attempt-1"
        attempt.mkdir()
        writer.append(entry_of("attempt", {"number": 1, "members": [0, 1], "world_size": 4, "nodes": [[0, 1], [2, 3]]}))
        said = json.dumps({"kind": "rank", "at": time.time(), "rank": 0, "pid": 99999999})
        (attempt / "node-0.events").write_bytes(b"\0" * 500 + b"\n" + said.encode() + b'\n{"kind": "ra\n[]\n7\n\xff\n')
        (attempt / "node-1.events").write_bytes(b"")
        (store.run_dir(writer.status.id) / "stop.json").write_bytes(b"\0" * 40)
        writer.close()
    status = machine.status()
    assert status["phase"] == "lost"
    assert status["ranks"][0]["pid"] == 99999999
    assert machine.windlass("rm", status["id"]).returncode == 0


def test_one_run_that_cannot_be_followed_does_not_hide_the_others(machine: Machine) -> None:
    write_job(machine, WAITS)  # it must not end before the commands have looked
    with Store(machine.home) as store:
        create(machine, store).close()
        store.create("moon-1", name="n", target="moon", output_dir="/o", plan='{"engine":"moon"}', time=1.0).close()
    done = machine.windlass("ps", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert [run["name"] for run in json.loads(done.stdout)] == ["kill", "n"]
    assert machine.windlass("stop", "--now", "kill").returncode == 0


def test_a_restart_that_was_due_when_the_supervisor_died_is_made(machine: Machine) -> None:
    marks = write_job(machine, SCRIPT, restarts=2)
    with Store(machine.home) as store:
        writer = create(machine, store)
        writer.append(entry_of("attempt", {"number": 1, "members": [0, 1], "world_size": 4, "nodes": [[0, 1], [2, 3]]}))
        writer.append(entry_of("cause", {"rank": 0, "summary": "killed", "exit_code": -9, "signal": "SIGKILL"}))
        writer.append(entry_of("attempt-end", {"phase": "failed"}))
        writer.close()
    status = machine.ended()
    assert [attempt["number"] for attempt in status["attempts"]] == [1, 2]
    assert status["phase"] == "succeeded"
    assert len(list(marks.glob("finished-*"))) == NUM_RANKS


def test_an_attempt_whose_nodes_were_not_started_when_the_supervisor_died_is_started(machine: Machine) -> None:
    """The supervisor has written that it begins an attempt and what its first node is to do, and dies."""
    marks = write_job(machine, SCRIPT)
    with Store(machine.home) as store:
        writer = create(machine, store)
        attempt = store.run_dir(writer.status.id) / "attempt-1"
        attempt.mkdir()
        writer.append(entry_of("attempt", {"number": 1, "members": [0, 1], "world_size": 4, "nodes": [[0, 1], [2, 3]]}))
        (attempt / "node-0.json").write_text("{")
        (attempt / "node-0.lock").touch()
        writer.close()
    status = machine.ended()
    assert (status["phase"], len(status["attempts"])) == ("succeeded", 1)
    assert len(list(marks.glob("finished-*"))) == NUM_RANKS


HALF = """
import os, time
from pathlib import Path
rank, marks = int(os.environ["WINDLASS_RANK"]), Path(os.environ["MARKS"])
(marks / f"began-{rank}").touch()
if rank % 2:
    time.sleep(1000)
"""


@pytest.mark.parametrize("launcher", ["plain", "torchrun"])
def test_a_killed_node_is_not_blamed_on_a_rank_that_had_finished(machine: Machine, launcher: str) -> None:
    write_job(machine, HALF, launcher=launcher)
    attempt = machine.home / "runs" / begun(machine) / "attempt-1"
    told = [attempt / f"node-{node}.events" for node in range(2)]
    until(lambda: all('"exit_code"' in path.read_text() for path in told), "ranks 0 and 2 have not ended")
    (node,) = [process_ for process_ in machine.nodes() if process_.node == 0]
    kill(node.pid)
    status = machine.ended()
    assert (status["phase"], status["cause"]["rank"]) == ("failed", 1)
    assert 0 not in status["cause"]["victims"]
    machine.empty()


def test_ranks_that_finished_under_a_node_that_was_killed_have_finished(machine: Machine) -> None:
    """The node is frozen, its ranks finish and mark it, then it is killed: their work is done, and the run with it."""
    marks = write_job(machine, WAITS)
    begun(machine)
    frozen = machine.nodes()
    for node in frozen:
        kill(node.pid, signal.SIGSTOP)
    (marks / "go").touch()
    until(lambda: not machine.ranks(), "the ranks have not finished")
    for node in frozen:
        kill(node.pid)
    status = machine.ended()
    assert (status["phase"], status["exit_code"]) == ("succeeded", 0)
    assert [state["exit_code"] for state in status["ranks"]] == [0] * 4


PROGRESS = """
import os, time
from pathlib import Path
rank, marks = os.environ["WINDLASS_RANK"], Path(os.environ["MARKS"])
(marks / f"began-{rank}").touch()
step = 0
while not (marks / "go").exists():
    step += 1
    phase = "checkpointing" if step % 10 == 0 else "training"
    print('::windlass {"step": %d, "phase": "%s"}' % (step, phase), flush=True)
    time.sleep(0.05)
"""


def recorded(machine: Machine) -> list[str]:
    """Kinds of the events of the only run, read without a command, which would take it up."""
    with Store(machine.home) as store:
        return [event.kind for event in store.events(store.statuses()[0].id)]


def test_a_second_supervisor_does_not_write_the_first_ones_history_again(machine: Machine) -> None:
    marks = write_job(machine, PROGRESS)
    begun(machine)
    until(lambda: recorded(machine).count("progress") >= 2, "no progress")
    (supervisor,) = machine.supervisors()
    kill(supervisor.pid)
    machine.status()
    until(lambda: recorded(machine)[-1] == "progress", "no progress after the take-over")
    (marks / "go").touch()
    machine.ended()
    events = machine.events()
    steps = [event["step"] for event in events if event["kind"] == "progress"]
    assert steps == sorted(steps)
    adopted = next(event["seq"] for event in events if event["kind"] == "adopted")
    known = max(event["time"] for event in events if event["seq"] < adopted)
    again = [e for e in events if e["seq"] > adopted and e["kind"] in ("phase", "progress") and e["time"] < known]
    assert again == []
