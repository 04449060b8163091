"""The ledger of a real run that was killed three times and hung once is held to what the script saw itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.helpers.machine import Machine, kill
from tests.helpers.spans import spans
from tests.helpers.until import passed, until

from windlass.runs.ledger import Restart, fold_ledger, restarts
from windlass.runs.store import Store
from windlass.runs.time_accounting import Spent

STEPS = 170
KILLS = (20, 50, 80)
"""Once these steps are done, a rank is killed."""
HANG_STEP, HANG_SECONDS = 120, 15.0
STEP_SECONDS = 0.03
"""At least; so at most four steps lie between two reports, of which there are ten a second."""
UNREPORTED = 4
SCRIPT = f"""
import os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from windlass.train.checkpoint import Checkpoint
from windlass.train.sampler import BatchSampler

marks = sys.argv[1]
rank = int(os.environ["RANK"])

def mark(*words):
    with open(os.path.join(marks, f"rank-{{rank}}"), "a") as file:
        print(os.environ["WINDLASS_ATTEMPT"], *words, time.time(), file=file)

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.Adam(model.parameters())
data = TensorDataset(torch.randn({STEPS * 8}, 64))
sampler = BatchSampler(len(data), global_batch_size=8, seed=0)
loader = DataLoader(data, batch_sampler=sampler)
saved = Checkpoint(model=model, optimizer=optimizer, sampler=sampler, every=8)
for epoch in saved.epochs(1):
    for (batch,) in saved.batches(loader):
        step = saved.steps + 1
        if rank == 1 and step == {HANG_STEP} and not os.path.exists(os.path.join(marks, "hung")):
            open(os.path.join(marks, "hung"), "w").close()
            mark("hang")
            time.sleep({HANG_SECONDS})
            mark("awake")
        time.sleep({STEP_SECONDS})
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        mark("step", step)
        print("step", step, flush=True)
saved.close()
del model
dist.destroy_process_group()
"""


def kill_after(machine: Machine, marks: Path, attempt: int, step: int) -> None:
    """Kill rank 1 as soon as this attempt has done this step."""
    until(
        lambda: steps_of(marks_of(marks / "rank-0")).get(attempt, [0])[-1] >= step,
        lambda: f"step {step} of attempt {attempt} never came: {machine.windlass('why').stdout}",
    )
    with Store(machine.home) as store:  # a command would take as long as many steps
        pid = until(lambda: store.statuses(last=1)[0].ranks[1].pid, "the record does not know the rank")
    assert pid is not None
    assert kill(pid)


def marks_of(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def steps_of(marks: list[list[str]]) -> dict[int, list[int]]:
    """The steps that each attempt has done, in order."""
    found: dict[int, list[int]] = {}
    for attempt, what, *rest in marks:
        if what == "step":
            found.setdefault(int(attempt), []).append(int(rest[0]))
    return found


def lost_steps(steps: dict[int, list[int]]) -> int:
    """How many steps were done more than once."""
    done = [step for attempt in steps.values() for step in attempt]
    return len(done) - len(set(done))


@pytest.mark.slow
def test_the_ledger_sums_to_the_wall_clock_and_finds_the_hang(machine: Machine, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    machine.write("train.py", SCRIPT)
    job = {
        "name": "ledger",
        "run": f"train.py {marks}",
        "procs_per_node": 2,
        "python": sys.executable,
        "hang": "10s",
        "restarts": {"max": len(KILLS), "on": ["failure"]},
    }
    machine.write("job.yaml", json.dumps(job))
    begun = machine.windlass("run", "--detach", "-o", "json")
    assert begun.returncode == 0, begun.stderr
    for number, step in enumerate(KILLS, 1):
        kill_after(machine, marks, number, step)
    status = machine.ended()
    assert status["phase"] == "succeeded", machine.windlass("why").stdout

    with Store(machine.home) as store:
        events = store.events(status["id"])
    ledger, now = fold_ledger(events, status["ended_at"]), status["ended_at"]
    wall = status["ended_at"] - status["created_at"]
    told = f"{ledger} of {wall} s"

    # It sums to the wall clock, and spans what the script has seen.
    assert sum(ledger.seconds.values()) == pytest.approx(wall, rel=0.01), told
    mine = marks_of(marks / "rank-0")
    seen = float(mine[-1][-1]) - float(mine[0][-1])
    assert seen <= wall, told

    # It finds the hang, and where it was.
    (asleep,), (awake,) = (
        [float(mark[-1]) for mark in marks_of(marks / "rank-1") if mark[1] == word] for word in ("hang", "awake")
    )
    hung = [span for span in spans(events, now) if span.spent is Spent.HUNG and span.end > asleep > span.begin - 1]
    # A node that is not scheduled at once sees its end later; it is noticed after 10 s.
    assert sum(span.end - span.begin for span in hung) == pytest.approx(awake - asleep, abs=2.0), told
    assert ledger.seconds[Spent.HUNG] == pytest.approx(awake - asleep, abs=2.0), told

    # It tells the restarts and what they lost.
    steps = steps_of(mine)
    found = restarts(events)
    assert [(one.attempt, one.reason) for one in found] == [(2, "failure"), (3, "failure"), (4, "failure")]
    assert [one.restarts_left for one in found] == [2, 1, 0]
    for one in found:
        hold_to_the_script(one, steps)
    assert lost_steps(steps) - len(KILLS) * UNREPORTED <= ledger.steps_redone <= lost_steps(steps), told
    for spent in (Spent.STARTING, Spent.TRAINING, Spent.CHECKPOINTING, Spent.REDONE, Spent.RESTARTING):
        assert ledger.seconds.get(spent, 0) > 0, told
    assert ledger.attempts == 1 + len(KILLS)

    # And all of this is what the command says.
    assert status["ledger"]["seconds"] == {str(spent): seconds for spent, seconds in ledger.seconds.items()}
    assert status["ledger"]["steps_redone"] == ledger.steps_redone


def hold_to_the_script(restart: Restart, steps: dict[int, list[int]]) -> None:
    """An attempt went on after the step that the record names, at the step at which the script did."""
    assert restart.restored_step == steps[restart.attempt][0] - 1, restart
    reached = max(step for attempt, done in steps.items() if attempt < restart.attempt for step in done)
    assert restart.reached_step is not None
    assert reached - UNREPORTED <= restart.reached_step <= reached, restart


@pytest.mark.slow
def test_after_a_power_cut_the_time_until_a_command_looks_is_idle(machine: Machine) -> None:
    machine.write("train.py", "import time\nwhile True:\n    print('trains', flush=True)\n    time.sleep(0.02)\n")
    machine.windlass("run", "--detach", "train.py")
    until(lambda: machine.status()["phase"] == "training", "never trained")
    passed(1.0)
    machine.kill_all()
    machine.empty()
    passed(2.0)
    status = machine.ended()
    seconds = status["ledger"]["seconds"]
    assert status["phase"] == "lost"
    assert sum(seconds.values()) == pytest.approx(status["ended_at"] - status["created_at"], abs=1e-3)
    assert seconds["idle"] >= 2.0  # nothing ran for so long
    assert seconds["training"] >= 0.5  # of more than a second in which it wrote lines
