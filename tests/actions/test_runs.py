"""The code kept with a run is the code that its ranks used."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import windlass
from windlass.actions.runs import changed_code, engine_for, submit
from windlass.code.kept import FILE
from windlass.code.pack import pack
from windlass.code.snapshot import LIMIT_BYTES, extract_snapshot
from windlass.engines.fake import FakeEngine
from windlass.plan.steps import CodeStep
from windlass.runs.context import Context
from windlass.runs.store import Store


def test_kept_code_is_that_of_the_archive_that_was_sent(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)")
    sent = pack(folder, 1 << 20, os.environ)
    job = windlass.Job.model_validate({"name": "words", "command": ["true"]})
    with Store(tmp_path / "home") as store:
        engine = FakeEngine(store, lambda _: None)
        made = engine.plan(job, "words-1")
        step = CodeStep("send the code", sent.digest, str(folder), unpacked_bytes=sent.num_bytes)
        (folder / "train.py").write_text("print(2)")
        submit(engine, replace(made, archive=sent.data, steps=(step, *made.steps)), Context(os.environ, tmp_path))
        extract_snapshot(store.run_dir("words-1"), "train.py", tmp_path / "then.py")
    assert (tmp_path / "then.py").read_text() == "print(1)"


def test_outputs_of_earlier_runs_are_not_code(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("echo > $WINDLASS_OUTPUT_DIR/model.sh")
    fields = {"name": "words", "command": ["bash", "train.sh"], "outputs": "results"}
    context = Context({**os.environ, "WINDLASS_HOME": str(tmp_path / "home")}, tmp_path)
    first = windlass.run(windlass.Job.model_validate(fields), context=context)
    first.wait()
    second = windlass.run(windlass.Job.model_validate(fields), context=context)
    second.wait()
    with context.store() as store:
        assert (store.run_dir(second.id) / FILE).samefile(store.run_dir(first.id) / FILE)
        assert changed_code(engine_for(second.id, store), second.id, context) == []
    assert second.warnings == ()


def test_attempt_whose_code_cannot_be_compared_says_so(tmp_path: Path) -> None:
    code, edited, first = tmp_path / "code", tmp_path / "edited", tmp_path / "first"
    code.mkdir()
    (code / "train.py").write_text("1")
    os.mkfifo(edited)
    script = f"[ -e {first} ] && exit; touch {first}; cat {edited}; exit 1"
    fields = {"name": "words", "command": ["bash", "-c", script], "code": "code", "restarts": 1}
    context = Context({**os.environ, "WINDLASS_HOME": str(tmp_path / "home")}, tmp_path)
    run = windlass.run(windlass.Job.model_validate(fields), context=context)
    with (code / "large.py").open("wb") as file:
        file.truncate(LIMIT_BYTES + 1)
    edited.write_text("")
    run.wait()
    said = {event.data["message"] for event in run.events() if event.kind == "warning"}
    assert said == {"unknown whether files of the code changed after the run was submitted: they cannot be read now"}


def test_attempt_with_changed_program_files_has_a_warning_that_names_them(tmp_path: Path) -> None:
    code, edited, first = tmp_path / "code", tmp_path / "edited", tmp_path / "first"
    code.mkdir()
    (code / "train.py").write_text("1")
    os.mkfifo(edited)
    script = f"[ -e {first} ] && exit; touch {first} {code}/result.json {code}/hparams.yaml; cat {edited}; exit 1"
    fields = {"name": "words", "command": ["bash", "-c", script], "code": "code", "restarts": 1}
    context = Context({**os.environ, "WINDLASS_HOME": str(tmp_path / "home")}, tmp_path)
    run = windlass.run(windlass.Job.model_validate(fields), context=context)
    (code / "train.py").write_text("2")
    edited.write_text("")
    run.wait()
    [warning] = run.warnings
    assert (warning.code, warning.attempt) == ("code-changed", 2)
    assert warning.message == "files of the code changed after the run was submitted: train.py"
