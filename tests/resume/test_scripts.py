"""Scripts that save for themselves, unchanged: killed in the middle, they go on from their newest whole checkpoint."""

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
from tests.engines.lab import Can, Lab, Run, Way
from tests.engines.test_local import plan_local

from windlass.cli import statustext
from windlass.cli.eventtext import sentence
from windlass.cli.whytext import restart_words, why_lines
from windlass.cli.words import tilde
from windlass.diagnose.verdict import Diagnosis, Verdict
from windlass.engines.local.engine import LocalEngine
from windlass.engines.local.warm import WarmPool
from windlass.errors import JobFileError
from windlass.runs.ledger import fold_ledger, restarts
from windlass.runs.record import Phase
from windlass.runs.start import Origin, Start
from windlass.worker.resume import problem_of

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).with_name("scripts")
EXAMPLES_PYTHON = ROOT / ".cache" / "examples-env" / "bin" / "python"
BARE = "--folder $WINDLASS_CHECKPOINT_DIR"
CHECKPOINT = {"find": "model-*.pt", "resume": "--resume {path}"}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    way = Way("local", LocalEngine, plan_local, frozenset(Can), clean_up=lambda home: WarmPool(home).stop())
    lab = Lab(way, tmp_path_factory.mktemp("home"))
    yield lab
    lab.close()


@pytest.fixture(scope="module")
def _libraries() -> None:
    done = subprocess.run(["bash", "tools/examples-env.sh"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def bare(lab: Lab, *words: str, **fields: Any) -> Run:
    """A run of the bare script on two ranks."""
    fields = {"procs_per_node": 2, "restarts": 1, "checkpoint": CHECKPOINT, **fields}
    return lab.start("bare.py", *(BARE.split()), *words, base=SCRIPTS, **fields)


def undisturbed_weights(lab: Lab) -> str:
    run = lab.finish("bare.py", *(BARE.split()), base=SCRIPTS, procs_per_node=2)
    assert run.status.phase is Phase.SUCCEEDED, run.text()
    return weights(run)


def weights(run: Run) -> str:
    [found] = set(re.findall(r"weights (\w+)", run.text(attempt=len(run.status.attempts))))
    return str(found)


def kill(run: Run, rank: int = 0, meanwhile: Callable[[], object] = lambda: None) -> None:
    """`kill -9` a rank of the first attempt; what is done meanwhile is done while it stands still."""
    [pid] = [event.data["pid"] for event in run.events if event.kind == "rank" and event.data["rank"] == rank
             and "pid" in event.data]  # fmt: skip
    os.kill(pid, signal.SIGSTOP)
    meanwhile()
    os.kill(pid, signal.SIGKILL)


def told(run: Run, action: str) -> list[dict[str, Any]]:
    """What the record says of checkpoints that were `restored` or `refused`."""
    return [dict(event.data) for event in run.events if event.kind == "checkpoint" and event.data["action"] == action]


def steps(run: Run, attempt: int) -> list[int]:
    return [int(step) for step in re.findall(r"^step (\d+)$", run.text(attempt=attempt), re.MULTILINE)]


def checkpoints(run: Run) -> list[Path]:
    """Those of the bare script that are whole, the newest first."""
    found = sorted((run.dir / "checkpoints").glob("model-*.pt"), key=lambda path: -int(path.stem.split("-")[1]))
    return [path for path in found if not problem_of(str(path))]


def test_a_bare_torch_save_goes_on_after_a_kill_and_ends_with_the_same_weights(lab: Lab) -> None:
    run = bare(lab, "--pause", "0.05").until(lambda run: "step 12\n" in run.text())
    kill(run, rank=1)
    status = run.wait()
    assert (status.phase, len(status.attempts)) == (Phase.SUCCEEDED, 2), run.text()
    [restored] = told(run, "restored")
    saved = int(re.fullmatch(r"model-(\d+)\.pt", restored["name"])[1])  # type: ignore[index]
    assert saved >= 10
    assert steps(run, 2) == list(range(saved + 1, 41))
    assert weights(run) == undisturbed_weights(lab)


def test_a_truncated_newest_checkpoint_is_passed_over_with_its_name_and_the_reason(lab: Lab) -> None:
    run = bare(lab, "--pause", "0.05").until(lambda run: len(checkpoints(run)) >= 2)
    torn: list[str] = []

    def tear() -> None:
        newest = checkpoints(run)[0]
        torn.append(newest.name)
        os.truncate(newest, newest.stat().st_size // 2)

    kill(run, meanwhile=tear)
    status = run.wait()
    assert status.phase is Phase.SUCCEEDED, run.text()
    refused = told(run, "refused")[-1]
    assert refused["name"] == torn[0]
    assert "not a zip file" in refused["reason"]
    saved = int(torn[0][6:-3]) - 5
    assert told(run, "restored")[-1]["name"] == f"model-{saved}.pt"
    assert steps(run, 2)[0] == saved + 1
    assert weights(run) == undisturbed_weights(lab)


def test_where_nothing_was_saved_the_script_starts_anew_with_its_own_arguments(lab: Lab) -> None:
    run = bare(lab, "--pause", "0.2", "--steps", "9").until(lambda run: "step 2\n" in run.text())
    kill(run)
    assert run.wait().phase is Phase.SUCCEEDED, run.text()
    assert steps(run, 2) == list(range(1, 10))
    assert told(run, "restored") == []


def test_a_pattern_that_matches_nothing_is_a_warning_before_the_first_step(lab: Lab) -> None:
    checkpoint = {"find": "checkpoint-*.pt", "resume": "--resume {path}"}
    run = bare(lab, "--pause", "0.05", "--steps", "12", procs_per_node=1, checkpoint=checkpoint)
    run.until(lambda run: bool(checkpoints(run)))
    kill(run)
    status = run.wait()
    assert (status.phase, steps(run, 2)[0]) == (Phase.SUCCEEDED, 1), run.text()
    events = [(number, event) for number, event in enumerate(run.events)]
    second = next(number for number, event in events if event.kind == "attempt" and event.data["number"] == 2)
    told = [(number, event) for number, event in events if event.data.get("action") == "missing"]
    [(number, event)] = [(number, event) for number, event in told if "at_end" not in event.data]
    began = [number for number, event in events if event.kind in ("rank", "progress") and number > second]
    assert second < number < min(began)
    assert sum(event.data.get("at_end", False) for _, event in told) == 2
    folder = str(run.dir / "checkpoints")
    assert (event.data["find"], event.data["folder"]) == ("checkpoint-*.pt", folder)
    assert set(event.data["near"]) <= {path.name for path in Path(folder).iterdir()}
    assert event.data["near"]
    words = f"nothing matches checkpoint-*.pt in {tilde(folder)}: there "
    ledger = fold_ledger(run.events, 0.0)
    views = (
        statustext.status_lines(status, {}, ledger, 0.0, plain),
        statustext.summary_lines(status, ledger, 0.0, plain),
        why_lines(status, Diagnosis(Verdict("none", "all is well")), (), plain),
        [sentence(event)],
    )
    for lines in views:
        assert words in "\n".join(lines)


def test_nothing_is_missing_where_the_pattern_matches_and_on_the_first_attempt(lab: Lab) -> None:
    run = bare(lab, "--steps", "6", restarts=0, procs_per_node=1)
    assert run.wait().phase is Phase.SUCCEEDED, run.text()
    assert told(run, "missing") == []
    assert run.status.checkpoint_missing is None


def test_a_script_that_resumes_by_itself_is_said_to_go_on_where_it_went_on(lab: Lab) -> None:
    run = lab.finish("itself.py", "0.3", base=SCRIPTS, restarts=1)
    assert (run.status.phase, len(run.status.attempts)) == (Phase.SUCCEEDED, 2), run.text()
    [restart] = restarts(run.events)
    said = f"Resuming training from {run.status.output_dir}"
    assert (restart.start, restart.steps_redone) == (Start(Origin.SCRIPT, 50, None, said), 7)
    assert "resumed by the script at step 50, 7 steps redone" in restart_words(restart)
    ledger = fold_ledger(run.events, 0.0)
    assert (ledger.steps_redone, ledger.unknown_starts, ledger.start) == (7, 0, restart.start)


@pytest.mark.slow
def test_checkpoints_of_an_earlier_run_are_none_of_this_one(lab: Lab, tmp_path: Path) -> None:
    """A script that always writes into the same folder of its own, which is there from the last time."""
    (tmp_path / "bare.py").write_text((SCRIPTS / "bare.py").read_text())
    (tmp_path / "saved").mkdir()
    fields = {"base": tmp_path, "checkpoint": {"find": "saved/model-*.pt", "resume": "--resume {path}"}}
    words = ["bare.py", "--folder", "saved", "--steps", "12"]
    first = lab.start(*words, **fields)
    assert first.wait().phase is Phase.SUCCEEDED, first.text()
    run = lab.start(*words, "--pause", "0.1", restarts=1, **fields).until(lambda run: "step 7\n" in run.text())
    assert steps(run, 1)[0] == 1
    kill(run)
    assert run.wait().phase is Phase.SUCCEEDED, run.text()
    assert told(run, "restored")[0]["name"] == str(tmp_path / "saved" / "model-5.pt")
    assert steps(run, 2)[0] == 6


@pytest.mark.slow
def test_a_resumed_run_goes_on_from_the_checkpoint_that_is_named_or_not_at_all(lab: Lab) -> None:
    run = bare(lab, "--pause", "0.05", "--steps", "20", restarts=0).until(lambda run: "step 12\n" in run.text())
    kill(run)
    assert run.wait().phase is Phase.FAILED
    torn = run.dir / "checkpoints" / "model-10.pt"
    os.truncate(torn, torn.stat().st_size // 2)
    lab.engine.resume(run.id, checkpoint="model-10.pt")
    status = run.wait()
    assert status.phase is Phase.FAILED
    assert "cannot go on from model-10.pt: " in (status.cause or {})["summary"]
    lab.engine.resume(run.id, checkpoint="model-5.pt")
    assert run.wait().phase is Phase.SUCCEEDED, run.text()
    assert steps(run, len(run.status.attempts)) == list(range(6, 21))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("_libraries")
def test_the_trainer_of_transformers_goes_on_after_a_kill(lab: Lab) -> None:
    options = ["--use_cpu", "--max_steps", "300", "--save_steps", "20", "--logging_steps", "1", "--disable_tqdm",
               "True", "--per_device_train_batch_size", "4", "--report_to", "none"]  # fmt: skip
    run = lab.start(
        "trainer.py", "--output_dir", "$WINDLASS_CHECKPOINT_DIR", *options, base=SCRIPTS, procs_per_node=2, restarts=1,
        python=str(EXAMPLES_PYTHON),
        checkpoint={"find": "checkpoint-*", "resume": "--resume_from_checkpoint {path}"},
    ).until(lambda run: (run.dir / "checkpoints" / "checkpoint-60" / "trainer_state.json").exists(), 250)  # fmt: skip
    kill(run, rank=1)
    status = lab.engine.wait(run.id, 250)
    assert (status.phase, len(status.attempts)) == (Phase.SUCCEEDED, 2), run.text()
    [restored] = told(run, "restored")
    assert 60 <= restored["step"] < 300
    assert restored["name"] == f"checkpoint-{restored['step']}"
    assert run.text(attempt=2).count("'loss': ") == 300 - restored["step"]
    assert (run.dir / "checkpoints" / "checkpoint-300" / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("_libraries")
def test_lightning_goes_on_after_a_kill(lab: Lab) -> None:
    run = lab.start(
        "lit.py", "--folder", "$WINDLASS_CHECKPOINT_DIR", base=SCRIPTS, procs_per_node=2, restarts=1,
        python=str(EXAMPLES_PYTHON), checkpoint={"find": "*.ckpt", "resume": "--ckpt_path {path}"},
    ).until(lambda run: "step 65\n" in run.text(), 250)  # fmt: skip
    kill(run, rank=1)
    status = lab.engine.wait(run.id, 250)
    assert (status.phase, len(status.attempts)) == (Phase.SUCCEEDED, 2), run.text()
    [restored] = told(run, "restored")
    assert 60 <= restored["step"] < 300
    assert re.fullmatch(rf"epoch=\d+-step={restored['step']}\.ckpt", restored["name"])
    assert steps(run, 2) == list(range(restored["step"] + 1, 301))
    assert "trained 300 steps" in run.text(attempt=2)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"find": "model-*.pt"}, "checkpoint.resume: is needed beside find"),
        ({"resume": "--resume {path}"}, "checkpoint.resume: is --resume {path}, but find does not say"),
        ({"find": "a", "resume": "--resume"}, "checkpoint.resume: has no {path}"),
        ({"find": "a", "resume": "'{path}"}, "checkpoint.resume: cannot be split into words"),
        ({"pattern": "a"}, "checkpoint.pattern: not a field (did you mean find?)"),
    ],
)
def test_half_an_instruction_is_refused(fields: dict[str, Any], says: str) -> None:
    from windlass.spec.job import Job

    with pytest.raises(JobFileError) as caught:
        Job(name="a", run="train.py", checkpoint=fields)
    assert says in str(caught.value.problems[0])


def test_the_plan_shows_the_words_and_what_they_wait_for(lab: Lab) -> None:
    from windlass.cli.plantext import plan_lines

    made = lab.plan("bare.py", *BARE.split(), "$WINDLASS_DATA_NONE", base=SCRIPTS, checkpoint=CHECKPOINT)
    assert [note.message for note in made.notes if note.code == "name-unknown"] == [
        "$WINDLASS_DATA_NONE stands in the job's words, and is not filled in"
    ]
    text = "\n".join(plan_lines(made, lambda text, *_, **__: text))
    assert f"--folder {lab.home}/runs/{made.run_id}/checkpoints" in text
    assert "… --resume '{path}', once there is model-*.pt" in text
