"""Requests forks from a pool of warm processes, without a run."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.engines.harness import Harness, Way
from tests.engines.local.planning import plan_local
from tests.helpers.until import until

from windlass.engines.local.engine import LocalEngine
from windlass.engines.local.warm_client import Bounds
from windlass.engines.local.warm_pool import Refused, WarmPool
from windlass.plan.compose import compose
from windlass.spec.job import Job
from windlass.worker.import_ahead import parts_of
from windlass.worker.import_trial import Verdicts

SCRIPTS = Path(__file__).with_name("scripts")
MODULES = ("numpy", "torch")
VARIABLES = ("PATH", "HOME", "LANG", "TMPDIR")


def harness_in(home: Path, start: str) -> Harness:
    fields = {"start": start, "warm": MODULES}
    return Harness(Way(f"local {start}", LocalEngine, plan_local, frozenset(), fields), home)


def trust(home: Path, *modules: str) -> None:
    """Records modules as tried and safe for the interpreter of the tests."""
    path = WarmPool(home).tried(sys.executable, modules)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        Verdicts(str(path)).add({part: "" for _, part in parts_of(list(modules))})


class Forks:
    """A pool in a folder, with scripts and modules next to it."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.folder = folder / "job"
        self.modules = folder / "modules"
        for made in (self.home, self.folder, self.modules):
            made.mkdir()
        self.bounded()
        self.count = 0
        self.trusts = True
        """Whether modules are recorded as tried and safe."""
        self.keep: list[int] = []
        """Descriptors that the next forks inherit; each event writes a byte to the first."""
        self.script("done.py", "print('done')")

    def bounded(self, **bounds: Any) -> None:
        self.pool = WarmPool(self.home, Bounds(**{"trial_delay_seconds": 0.0, **bounds}))

    def script(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return name

    def module(self, name: str, text: str) -> str:
        """Writes a module that can be imported through PYTHONPATH."""
        (self.modules / f"{name}.py").write_text(text)
        return name

    def trust(self, *modules: str) -> None:
        """Records modules as tried and safe."""
        trust(self.home, *modules)

    @property
    def environ(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in VARIABLES if name in os.environ}
        return {**kept, "PYTHONPATH": str(self.modules)}

    def fork(self, script: str = "done.py", *modules: str, **env: str) -> int | Refused:
        """Forks a node with one rank."""
        self.count += 1
        place = self.folder / f"attempt-{self.count}"
        place.mkdir()
        job = Job(name="case", run=script, warm=modules or ("json",))
        [spec] = compose(plan_local(job, self.folder, self.home, f"case-{self.count}").nodes)
        spec = spec.replace(folder=str(place), env={**spec.env, **self.environ, **env})
        spec.write()
        if self.trusts:
            self.trust(*spec.warm)
        output = os.open(place / "out", os.O_WRONLY | os.O_CREAT)
        try:
            return self.pool.fork(
                python=sys.executable,
                modules=spec.warm,
                script=spec.script,
                spec=Path(spec.path("json")),
                env={**self.environ, **env},
                output=output,
                keep=self.keep,
            )
        finally:
            os.close(output)

    def works(self, script: str = "done.py", *modules: str, **env: str) -> str:
        """Forks a node, asserts that this was possible, and returns the output of its rank."""
        answer = self.fork(script, *modules, **env)
        assert isinstance(answer, int), answer
        return self.text()

    def refused(self, script: str = "done.py", *modules: str, **env: str) -> str:
        """Requests a node, asserts that the request is refused, and returns the reason."""
        answer = self.fork(script, *modules, **env)
        assert isinstance(answer, Refused), self.text()
        return answer.why

    def text(self) -> str:
        """Waits for the end of the newest fork and returns the output of its rank."""
        place = self.folder / f"attempt-{self.count}"
        until(lambda: "end" in [event["kind"] for event in self.events(place)], lambda: (place / "out").read_text())
        return (place / "rank-0.log").read_text()

    def events(self, place: Path) -> list[dict[str, Any]]:
        path = place / "node-0.events"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def one(self) -> dict[str, Any]:
        """Returns the facts of the only warm process."""
        (found,) = self.pool.show()
        return found

    def pids(self) -> list[int]:
        return [found["pid"] for found in self.pool.show() if "pid" in found]

    def close(self) -> None:
        self.pool.stop()
