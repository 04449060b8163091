"""Asks a pool of warm processes for forks, without a run around them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.engines.lab import Lab, Way
from tests.engines.test_local import plan_local

from windlass.engines.local.engine import LocalEngine
from windlass.engines.local.warm import Bounds, Refused, WarmPool
from windlass.spec.job import Job

SCRIPTS = Path(__file__).with_name("scripts")
MODULES = ("numpy", "torch")
VARIABLES = ("PATH", "HOME", "LANG", "TMPDIR")


def lab_in(home: Path, start: str) -> Lab:
    fields = {"local": {"start": start}, "warm": MODULES}
    return Lab(Way(f"local {start}", LocalEngine, plan_local, frozenset(), fields), home)


class Forks:
    """A pool in a folder, with scripts and modules beside it."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.folder = folder / "job"
        self.modules = folder / "modules"
        for made in (self.home, self.folder, self.modules):
            made.mkdir()
        self.pool = WarmPool(self.home)
        self.count = 0
        self.script("done.py", "print('done')")

    def bounded(self, **bounds: Any) -> None:
        self.pool = WarmPool(self.home, Bounds(**bounds))

    def script(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return name

    def module(self, name: str, text: str) -> str:
        """A module that can be imported by way of PYTHONPATH."""
        (self.modules / f"{name}.py").write_text(text)
        return name

    @property
    def environ(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in VARIABLES if name in os.environ}
        return {**kept, "PYTHONPATH": str(self.modules)}

    def fork(self, script: str = "done.py", *modules: str, **env: str) -> int | Refused:
        """Fork a node with one rank."""
        self.count += 1
        place = self.folder / f"attempt-{self.count}"
        place.mkdir()
        job = Job(name="case", run=script, warm=modules or ("json",))
        made = plan_local(job, self.folder, self.home, f"case-{self.count}").requests("node")[0]
        spec = {**made, "folder": str(place), "events": str(place / "events"), "path": str(place / "node.json")}
        spec["env"] = {**made["env"], **self.environ, **env}
        (place / "node.json").write_text(json.dumps(spec))
        output = os.open(place / "out", os.O_WRONLY | os.O_CREAT)
        try:
            return self.pool.fork(
                python=sys.executable, modules=made["warm"], script=made["script"], spec=place / "node.json",
                env={**self.environ, **env}, output=output, keep=[],
            )  # fmt: skip
        finally:
            os.close(output)

    def works(self, script: str = "done.py", *modules: str, **env: str) -> str:
        """Fork a node, which must be possible; gives what its rank printed."""
        answer = self.fork(script, *modules, **env)
        assert isinstance(answer, int), answer
        return self.text()

    def refused(self, script: str = "done.py", *modules: str, **env: str) -> str:
        """Ask for a node, which must be refused; gives why."""
        answer = self.fork(script, *modules, **env)
        assert isinstance(answer, Refused), self.text()
        return answer.why

    def text(self) -> str:
        """What the newest fork's rank printed, once it has ended."""
        place = self.folder / f"attempt-{self.count}"
        until(lambda: "end" in [event["kind"] for event in self.events(place)], lambda: (place / "out").read_text())
        return (place / "rank-0.log").read_text()

    def events(self, place: Path) -> list[dict[str, Any]]:
        path = place / "events"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def one(self) -> dict[str, Any]:
        """The only warm process."""
        (found,) = self.pool.show()
        return found

    def pids(self) -> list[int]:
        return [found["pid"] for found in self.pool.show() if "pid" in found]

    def close(self) -> None:
        self.pool.stop()


def until(found: Callable[[], object], otherwise: Callable[[], object] = lambda: "", seconds: float = 100.0) -> None:
    """Wait until something is true; AssertionError after a time that a busy machine does not need either."""
    give_up = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < give_up, otherwise()
        time.sleep(0.01)


def lives(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
