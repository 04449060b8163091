"""What TensorBoard and notebooks refuse before anything starts, and the page with which a notebook begins."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from windlass.actions import boards
from windlass.errors import NoSuchRun, UsageError
from windlass.plan.exposure import Exposure
from windlass.runs.context import Context
from windlass.services.service import ServiceKind

Start = Callable[..., object]
MINE = Exposure(("203.0.113.7/32",))


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context({**os.environ, "WINDLASS_HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": str(tmp_path)}, tmp_path)


def tensorboard(*sources: str, on: str | None = None) -> Start:
    return lambda *given: boards.start_tensorboard(sources, boards.Options(on), *given)


def notebook(source: str, on: str | None = None, **more: Any) -> Start:
    return lambda *given: boards.start_notebook(source, boards.Options(on, **more), *given)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (tensorboard("claim:results"), "claim:results is in a cluster"),
        (tensorboard("claim:results", "claim:others", on="lab"), "a claim is shown alone"),
        (tensorboard("ftp://host/logs"), "in no known kind of store"),
        (tensorboard(".", on="nowhere"), "no target is called 'nowhere'"),
        (tensorboard(".", on="lab"), "lab is not this machine"),
        (notebook("s3://bucket/runs"), "a notebook opens runs, folders and claims"),
        (notebook("claim:results"), "claim:results is in a cluster"),
        (notebook(".", exposure=MINE), "--expose needs a cluster"),
        (notebook("claim:results", on="lab", exposure=MINE), "--expose needs an end of the service"),
    ],
)
def test_source_that_cannot_be_shown_is_refused(start: Start, message: str, context: Context, tmp_path: Path) -> None:
    (tmp_path / "targets.yaml").write_text("lab: {kind: kubernetes, context: lab}\n")
    with context.store() as store, pytest.raises(UsageError, match=message):
        start(store, context, print)
    assert not (context.home / "services").exists()


def test_source_that_does_not_exist_is_refused(context: Context) -> None:
    with context.store() as store, pytest.raises(NoSuchRun, match="'digits'"):
        boards.start_notebook("digits", boards.Options(), store, context, print)


def test_page_is_a_notebook_that_names_the_run_and_its_files() -> None:
    page = json.loads(boards.prepared_page("digits-7f3k2", ["/runs/out"], "/job", "/job/src/train.py"))
    kinds = [cell["cell_type"] for cell in page["cells"]]
    assert kinds == ["code", "markdown", "code", "code", "code"]
    assert page["cells"][0]["source"].splitlines() == [
        "RUN = 'digits-7f3k2'",
        "PLACES = ['/runs/out']",
        "CODE = '/job'",
        "SCRIPT = 'train.py'",
    ]
    assert len({cell["id"] for cell in page["cells"]}) == len(kinds)
    for cell in page["cells"]:
        if cell["cell_type"] == "code":
            compile(cell["source"], "page", "exec")


def test_name_of_a_run_is_no_running_service(context: Context) -> None:
    with context.store() as store:
        assert boards.running("digits", ServiceKind.NOTEBOOK, store, context) is None
