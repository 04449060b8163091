"""Unmodified scripts that save their own checkpoints continue from the newest verified one after a kill."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_views import plain
from tests.engines.harness import Can, Harness, Run, Way
from tests.engines.local.planning import plan_local
from tests.helpers.until import until
from tests.statuses import cause_of

from windlass.cli import statustext
from windlass.cli.eventtext import sentence
from windlass.cli.whytext import restart_words, why_lines
from windlass.diagnose.verdict import Diagnosis, Verdict
from windlass.engines.local.engine import LocalEngine
from windlass.engines.local.warm_pool import WarmPool
from windlass.errors import JobFileError
from windlass.plan.plan import NO_PLAN
from windlass.runs.ledger import fold_ledger, restarts
from windlass.runs.phase import Phase
from windlass.runs.start import Origin, Start
from windlass.views.run import run_of
from windlass.views.verdict import Why
from windlass.worker.resume import problem_of

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = Path(__file__).with_name("scripts")
EXAMPLES_PYTHON = ROOT / ".cache" / "examples-env" / "bin" / "python"
BARE = "--folder $WINDLASS_CHECKPOINT_DIR"
CHECKPOINT = {"find": "model-*.pt", "resume": "--resume {path}"}


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    way = Way("local", LocalEngine, plan_local, frozenset(Can), clean_up=lambda home: WarmPool(home).stop())
    harness = Harness(way, tmp_path_factory.mktemp("home"))
    yield harness
    harness.close()


@pytest.fixture(scope="module")
def _libraries() -> None:
    done = subprocess.run(["bash", "tools/examples-env.sh"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def bare(harness: Harness, *words: str, **fields: Any) -> Run:
    """Creates a run of the bare script on two ranks."""
    fields = {"procs_per_node": 2, "launcher": "torchrun", "restarts": 1, "checkpoint": CHECKPOINT, **fields}
    return harness.start("bare.py", *(BARE.split()), *words, base=SCRIPTS, **fields)


def undisturbed_weights(harness: Harness) -> str:
    run = harness.finish("bare.py", *(BARE.split()), base=SCRIPTS, procs_per_node=2)
    assert run.status.phase is Phase.SUCCEEDED, run.text()
    return weights(run)


def weights(run: Run) -> str:
    [found] = set(re.findall(r"weights (\w+)", run.text(attempt=len(run.status.attempts))))
    return str(found)


def kill(run: Run, rank: int = 0, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Kills a rank of the first attempt with SIGKILL; `meanwhile` is called while the rank waits."""

    def pids() -> list[int]:
        return [
            event.data["pid"]
            for event in run.events
            if event.kind == "rank" and event.data["rank"] == rank and "pid" in event.data
        ]

    [pid] = until(pids)  # output of a rank may be read before its start is recorded
    os.kill(pid, signal.SIGSTOP)
    meanwhile()
    os.kill(pid, signal.SIGKILL)


def checkpoint_events(run: Run, action: str) -> list[dict[str, Any]]:
    """Returns the recorded checkpoint events with this action."""
    return [dict(event.data) for event in run.events if event.kind == "checkpoint" and event.data["action"] == action]


def steps(run: Run, attempt: int) -> list[int]:
    return [int(step) for step in re.findall(r"^step (\d+)$", run.text(attempt=attempt), re.MULTILINE)]


def checkpoints(run: Run) -> list[Path]:
    """Returns the verified checkpoints of the bare script, newest first."""
    found = sorted((run.dir / "checkpoints").glob("model-*.pt"), key=lambda path: -int(path.stem.split("-")[1]))
    return [path for path in found if not problem_of(str(path))]


@pytest.mark.slow
def test_script_with_torch_save_resumes_after_a_kill_with_equal_weights(harness: Harness) -> None:
    run = bare(harness, "--hold", "12").until(lambda run: "step 12\n" in run.text())
    kill(run, rank=1)
    status = run.wait()
    assert (status.phase, len(status.attempts)) == (Phase.SUCCEEDED, 2), run.text()
    [restored] = checkpoint_events(run, "restored")
    saved = int(re.fullmatch(r"model-(\d+)\.pt", restored["name"])[1])  # type: ignore[index]
    assert saved >= 10
    assert steps(run, 2) == list(range(saved + 1, 41))
    assert weights(run) == undisturbed_weights(harness)


@pytest.mark.slow
def test_truncated_newest_checkpoint_is_refused_with_name_and_reason(harness: Harness) -> None:
    run = bare(harness, "--hold", "10").until(lambda run: len(checkpoints(run)) >= 2)
    torn: list[str] = []

    def tear() -> None:
        newest = checkpoints(run)[0]
        torn.append(newest.name)
        os.truncate(newest, newest.stat().st_size // 2)

    kill(run, meanwhile=tear)
    status = run.wait()
    assert status.phase is Phase.SUCCEEDED, run.text()
    refused = checkpoint_events(run, "refused")[-1]
    assert refused["name"] == torn[0]
    assert "not a zip file" in refused["reason"]
    saved = int(torn[0][6:-3]) - 5
    assert checkpoint_events(run, "restored")[-1]["name"] == f"model-{saved}.pt"
    assert steps(run, 2)[0] == saved + 1
    assert weights(run) == undisturbed_weights(harness)


@pytest.mark.slow
def test_script_without_checkpoints_restarts_with_its_original_arguments(harness: Harness) -> None:
    run = bare(harness, "--hold", "2", "--steps", "9").until(lambda run: "step 2\n" in run.text())
    kill(run)
    assert run.wait().phase is Phase.SUCCEEDED, run.text()
    assert steps(run, 2) == list(range(1, 10))
    assert checkpoint_events(run, "restored") == []


@pytest.mark.slow
def test_a_pattern_that_matches_nothing_is_a_warning_before_the_first_step(harness: Harness) -> None:
    checkpoint = {"find": "checkpoint-*.pt", "resume": "--resume {path}"}
    run = bare(harness, "--hold", "5", "--steps", "12", procs_per_node=1, checkpoint=checkpoint)
    run.until(lambda run: bool(checkpoints(run)))
    kill(run)
    status = run.wait()
    assert (status.phase, steps(run, 2)[0]) == (Phase.SUCCEEDED, 1), run.text()
    events = [(number, event) for number, event in enumerate(run.events)]
    second = next(number for number, event in events if event.kind == "attempt" and event.data["number"] == 2)
    checkpoint_events = [(number, event) for number, event in events if event.data.get("action") == "missing"]
    [(number, event)] = [(number, event) for number, event in checkpoint_events if "at_end" not in event.data]
    began = [number for number, event in events if event.kind in ("rank", "progress") and number > second]
    assert second < number < min(began)
    assert sum(event.data.get("at_end", False) for _, event in checkpoint_events) == 2
    folder = str(run.dir / "checkpoints")
    assert (event.data["find"], event.data["folder"]) == ("checkpoint-*.pt", folder)
    assert set(event.data["near"]) <= {path.name for path in Path(folder).iterdir()}
    assert event.data["near"]
    words = f"nothing matches checkpoint-*.pt in {folder}, where saves are expected: there "
    view = run_of(status, NO_PLAN, fold_ledger(run.events, 0.0), 0.0, is_here=True)
    views = (
        statustext.status_lines(view, 0.0, plain),
        statustext.summary_lines(view, 0.0, plain),
        why_lines(Why(status, Diagnosis(Verdict("none", "all is well")), ()), plain),
        [sentence(event)],
    )
    for lines in views:
        assert words in "\n".join(lines)


def test_first_attempt_with_a_matching_pattern_reports_nothing_missing(harness: Harness) -> None:
    run = bare(harness, "--steps", "6", restarts=0, procs_per_node=1)
    assert run.wait().phase is Phase.SUCCEEDED, run.text()
    assert checkpoint_events(run, "missing") == []
    assert run.status.warnings == ()


def test_self_resuming_script_is_reported_with_its_resumed_step(harness: Harness) -> None:
    run = harness.finish("itself.py", "0.3", base=SCRIPTS, restarts=1)
    assert (run.status.phase, len(run.status.attempts)) == (Phase.SUCCEEDED, 2), run.text()
    [restart] = restarts(run.events)
    said = f"Resuming training from {run.status.output_dir}"
    assert (restart.start, restart.steps_redone) == (Start(Origin.SCRIPT, 50, None, said), 7)
    assert "resumed by the script at step 50, 7 steps redone" in restart_words(restart)
    ledger = fold_ledger(run.events, 0.0)
    assert (ledger.steps_redone, ledger.unknown_starts, ledger.start) == (7, 0, restart.start)


@pytest.mark.slow
def test_checkpoints_of_an_earlier_run_are_ignored(harness: Harness, tmp_path: Path) -> None:
    """The script always writes to the same folder, which still has checkpoints of the last run."""
    (tmp_path / "bare.py").write_text((SCRIPTS / "bare.py").read_text())
    (tmp_path / "saved").mkdir()
    checkpoint = {"find": "saved/model-*.pt", "resume": "--resume {path}"}
    fields = {"base": tmp_path, "launcher": "torchrun", "checkpoint": checkpoint}
    words = ["bare.py", "--folder", "saved", "--steps", "12"]
    first = harness.start(*words, **fields)
    assert first.wait().phase is Phase.SUCCEEDED, first.text()
    run = harness.start(*words, "--hold", "7", restarts=1, **fields).until(lambda run: "step 7\n" in run.text())
    assert steps(run, 1)[0] == 1
    kill(run)
    assert run.wait().phase is Phase.SUCCEEDED, run.text()
    assert checkpoint_events(run, "restored")[0]["name"] == str(tmp_path / "saved" / "model-5.pt")
    assert steps(run, 2)[0] == 6


@pytest.mark.slow
def test_resumed_run_uses_exactly_the_named_checkpoint(harness: Harness) -> None:
    run = bare(harness, "--hold", "12", "--steps", "20", restarts=0).until(lambda run: "step 12\n" in run.text())
    kill(run)
    assert run.wait().phase is Phase.FAILED
    torn = run.dir / "checkpoints" / "model-10.pt"
    os.truncate(torn, torn.stat().st_size // 2)
    harness.engine.resume(run.id, checkpoint="model-10.pt")
    status = run.wait()
    assert status.phase is Phase.FAILED
    assert "cannot resume from model-10.pt: " in cause_of(status).summary
    harness.engine.resume(run.id, checkpoint="model-5.pt")
    assert run.wait().phase is Phase.SUCCEEDED, run.text()
    assert steps(run, len(run.status.attempts)) == list(range(6, 21))


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.usefixtures("_libraries")
def test_trainer_of_transformers_resumes_after_a_kill(harness: Harness) -> None:
    options = ["--use_cpu", "--max_steps", "300", "--save_steps", "20", "--logging_steps", "1", "--disable_tqdm",
               "True", "--per_device_train_batch_size", "4", "--report_to", "none"]  # fmt: skip
    run = harness.start(
        "trainer.py",
        "--output_dir",
        "$WINDLASS_CHECKPOINT_DIR",
        *options,
        base=SCRIPTS,
        procs_per_node=2,
        restarts=1,
        python=str(EXAMPLES_PYTHON),
        checkpoint={"find": "checkpoint-*", "resume": "--resume_from_checkpoint {path}"},
    ).until(lambda run: (run.dir / "checkpoints" / "checkpoint-60" / "trainer_state.json").exists(), 500)
    kill(run, rank=1)
    status = harness.engine.wait(run.id, 500)
    assert (status.phase, len(status.attempts)) == (Phase.SUCCEEDED, 2), run.text()
    [restored] = checkpoint_events(run, "restored")
    assert 60 <= restored["step"] < 300
    assert restored["name"] == f"checkpoint-{restored['step']}"
    assert run.text(attempt=2).count("'loss': ") == 300 - restored["step"]
    assert (run.dir / "checkpoints" / "checkpoint-300" / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.nightly  # its checkpoint is a file of torch.save, like that of the bare script
@pytest.mark.timeout(1500)
@pytest.mark.usefixtures("_libraries")
def test_lightning_resumes_after_a_kill(harness: Harness) -> None:
    run = harness.start(
        "lit.py",
        "--folder",
        "$WINDLASS_CHECKPOINT_DIR",
        base=SCRIPTS,
        procs_per_node=2,
        restarts=1,
        python=str(EXAMPLES_PYTHON),
        checkpoint={"find": "*.ckpt", "resume": "--ckpt_path {path}"},
    ).until(lambda run: "step 65\n" in run.text(), 500)
    kill(run, rank=1)
    status = harness.engine.wait(run.id, 500)
    assert (status.phase, len(status.attempts)) == (Phase.SUCCEEDED, 2), run.text()
    [restored] = checkpoint_events(run, "restored")
    assert 60 <= restored["step"] < 300
    assert re.fullmatch(rf"epoch=\d+-step={restored['step']}\.ckpt", restored["name"])
    assert steps(run, 2) == list(range(restored["step"] + 1, 301))
    assert "trained 300 steps" in run.text(attempt=2)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"find": "model-*.pt"}, "checkpoint.resume: required with find"),
        ({"resume": "--resume {path}"}, "checkpoint.resume: is --resume {path}, but find names no"),
        ({"find": "a", "resume": "'{path}"}, "checkpoint.resume: cannot be split into words"),
        ({"pattern": "a"}, "checkpoint.pattern: not a field (did you mean find?)"),
    ],
)
def test_incomplete_resume_settings_are_refused(fields: dict[str, Any], says: str) -> None:
    from windlass.spec.job import Job

    with pytest.raises(JobFileError) as caught:
        Job(name="a", run="train.py", checkpoint=fields)
    assert says in str(caught.value.problems[0])


def test_plan_shows_the_resume_arguments_and_their_condition(harness: Harness) -> None:
    from windlass.cli.plantext import plan_lines

    made = harness.plan("bare.py", *BARE.split(), "$WINDLASS_DATA_NONE", base=SCRIPTS, checkpoint=CHECKPOINT)
    assert [note.message for note in made.notes if note.code == "name-unknown"] == [
        "$WINDLASS_DATA_NONE in the job's arguments is not replaced"
    ]
    text = "\n".join(plan_lines(made, lambda text, *_, **__: text))
    assert f"--folder {harness.home}/runs/{made.run_id}/checkpoints" in text
    assert "… --resume '{path}', once there is model-*.pt" in text
