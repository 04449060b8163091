"""The code kept with a run is the code that its ranks used."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import windlass
from windlass.actions.runs import submit
from windlass.code.pack import pack
from windlass.code.snapshot import extract_snapshot
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
