"""Runs one case of `cases.yaml` by real commands, and compares what they say with what is right."""

from __future__ import annotations

import importlib.util
import json
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from tests.helpers.machine import Machine, machine_in
from tests.helpers.until import until

HERE = Path(__file__).parent
RUN_SECONDS = 240.0
LISTS = {"args", "words", "absent", "warnings", "shown"}


@dataclass(frozen=True)
class Case:
    """A row; the head of `cases.yaml` says what its fields mean."""

    name: str
    file: str
    verdict: str
    job: Mapping[str, Any] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    needs: str = ""
    runs: int = 1
    stop_at: str = ""
    in_ci: bool = False
    words: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    attempts: int | None = None

    @property
    def is_left_out(self) -> str:
        """Why it cannot be run here; empty where it can."""
        missing = self.needs and importlib.util.find_spec(self.needs) is None
        return f"{self.needs} is not installed" if missing else ""


@dataclass(frozen=True)
class Said:
    """What the commands have said of a run."""

    verdict: str
    wrong: tuple[str, ...]
    """Each way in which that is not right."""
    text: str
    """All of it, for a person who looks into the case."""


def cases() -> list[Case]:
    """The rows of the table. Raises AssertionError where a list is no list of strings."""
    rows = YAML(typ="safe").load(HERE / "cases.yaml")
    for row in rows:
        for name in LISTS & set(row):
            assert isinstance(row[name], list), f"{row['name']}: {name} is no list"
            assert all(isinstance(word, str) for word in row[name]), f"{row['name']}: {name} has other than strings"
            row[name] = tuple(row[name])
    return [Case(**row) for row in rows]


def play(case: Case, folder: Path) -> Said:
    """Run the case below this empty folder, and ask for the verdict on its last run."""
    with machine_in(folder) as machine:
        shutil.copy(HERE / "inputs" / case.file, machine.folder)
        for name, text in case.files.items():
            machine.write(name, text)
        fields = {
            "name": "case",
            "run": shlex.join([case.file, *case.args]),
            "python": sys.executable,
            "grace": "2s",
            **case.job,
        }
        fields = json.loads(json.dumps(fields).replace("{folder}", str(machine.folder)))
        machine.write("job.yaml", json.dumps(fields))
        for _ in range(case.runs):
            printed = _run(machine, case.stop_at)
        status, text = machine.status(), machine.windlass("status").stdout
        said = machine.windlass("why", "-o", "json")
        assert said.returncode == 0, printed + said.stderr
        return judged(case, json.loads(said.stdout), status, machine.windlass("why").stdout, printed + text)


def _run(machine: Machine, stop_at: str) -> str:
    """Run the job of the folder to its end; gives what the command prints, output of ranks left out."""
    process = machine.start("run", "-q")
    if stop_at:
        until(lambda: stop_at in machine.windlass("logs").stdout, f"no rank has printed {stop_at!r}")
        assert machine.windlass("stop").returncode == 0
    out, err = process.communicate(timeout=RUN_SECONDS)
    return out + err


def judged(case: Case, why: dict[str, Any], status: dict[str, Any], text: str, printed: str) -> Said:
    """Compare. `why` and `status` are as the commands print them with `-o json`, `text` is `why` without, and `printed`
    what `run` and `status` print."""
    main = "\n".join([why["summary"], *why["evidence"], why["fix"]])
    warnings = "\n".join(json.dumps(one, ensure_ascii=False) for one in status.get("warnings", ()))
    everything = "\n".join([json.dumps(why, ensure_ascii=False), text, printed])
    wrong = [f"verdict {why['verdict']}, right is {case.verdict}"] if why["verdict"] != case.verdict else []
    for words, said, where in (
        (case.words, main, "verdict"),
        (case.warnings, warnings, "warnings"),
        (case.shown, printed, "output"),
    ):
        wrong += [f"{word!r} is missing in the {where}" for word in words if word not in said]
    wrong += [f"{word!r} is printed" for word in case.absent if word in everything]
    attempts = len(status["attempts"])
    if case.attempts not in (None, attempts):
        wrong.append(f"{attempts} attempts, right is {case.attempts}")
    return Said(why["verdict"], tuple(wrong), "\n".join([printed, text, f"warnings: {warnings or 'none'}"]))
