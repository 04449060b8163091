"""This machine as these tests see it: commands in a home of their own, and all the processes that came of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.helpers.until import BOUND_SECONDS, until

KEPT = ("PATH", "LANG", "VIRTUAL_ENV")
WINDLASS = Path(sys.executable).with_name("windlass")
Done = subprocess.CompletedProcess[str]


class Process(NamedTuple):
    """A process that carries a home in its environment."""

    pid: int
    command: str
    environ: dict[str, str]

    @property
    def is_supervisor(self) -> bool:
        return " windlass.engines.local.supervisor:make_backend " in self.command

    @property
    def node(self) -> int | None:
        """Number of the node, where this is a node worker."""
        for word in self.command.split(" "):
            path = Path(word)
            if path.parent.name.startswith("attempt-") and path.name.startswith("node-") and path.suffix == ".json":
                return int(path.stem.removeprefix("node-"))
        return None

    @property
    def rank(self) -> int | None:
        """Number of the rank, where this is one (or came of one)."""
        return int(self.environ["WINDLASS_RANK"]) if "WINDLASS_RANK" in self.environ else None


@dataclass(frozen=True)
class Machine:
    """A home for records and a folder for jobs."""

    home: Path
    folder: Path
    keys: Mapping[str, str] = field(default_factory=dict)
    """Variables that its commands, and so the ranks of its runs, have besides: those of a server of a store."""

    @property
    def environ(self) -> dict[str, str]:
        """What every command here is called with; no setting of the person who runs the tests gets in."""
        kept = {name: value for name, value in os.environ.items() if name in KEPT or name.startswith("AWS_")}
        own = {"HOME": str(self.folder), "WINDLASS_HOME": str(self.home), "NO_COLOR": "1"}
        return {**kept, **own, **self.keys}

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """`windlass WORDS` in the job's folder, as a process."""
        return subprocess.Popen(
            [str(WINDLASS), *words],
            cwd=self.folder,
            env=self.environ,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )

    def windlass(self, *words: str) -> Done:
        """`windlass WORDS`, finished."""
        popen = self.start(*words)
        out, err = popen.communicate(timeout=2.5 * BOUND_SECONDS)
        return Done(words, popen.returncode, out, err)

    def write(self, name: str, text: str) -> Path:
        """A file in the job's folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def status(self, run: str = "") -> dict[str, Any]:
        """What a fresh command says of a run; empty where it knows none."""
        done = self.windlass("status", *([run] if run else []), "-o", "json")
        assert done.returncode in (0, 102), done.stderr
        return dict(json.loads(done.stdout)) if done.returncode == 0 else {}

    def ended(self, run: str = "") -> dict[str, Any]:
        """Ask until the run has ended; only looking brings it there. While it has a supervisor, that does."""

        def look() -> dict[str, Any]:
            status = self.status(run)
            if status["ended_at"] is not None:
                return status
            until(
                lambda: not any(f" {status['id']} " in one.command for one in self.supervisors()),
                lambda: f"not ended: {self.status(run)}",
            )
            return {}

        return until(look, lambda: f"not ended: {self.status(run)}")

    def events(self, run: str = "") -> list[dict[str, Any]]:
        """The history of a run as the command prints it."""
        done = self.windlass("events", *([run] if run else []), "-o", "json")
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def processes(self) -> list[Process]:
        """All live processes that carry this home, by any starter; not what is warm, which belongs to no run."""
        return self._carrying(f"WINDLASS_HOME={self.home}")

    def everything(self) -> list[Process]:
        """Warm processes too, and what they have forked: a fork shows the environment of the process it came from."""
        return self._carrying(f"WINDLASS_HOME={self.home}", f"HOME={self.folder}")

    def _carrying(self, *marks: str) -> list[Process]:
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                variables = (entry / "environ").read_bytes().split(b"\0")
                if any(mark.encode() in variables for mark in marks):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    pairs = (item.decode(errors="replace").partition("=") for item in variables)
                    found.append(Process(int(entry.name), command, {name: value for name, _, value in pairs}))
        return found

    def supervisors(self) -> list[Process]:
        return [process for process in self.processes() if process.is_supervisor]

    def nodes(self) -> list[Process]:
        return [process for process in self.processes() if process.node is not None]

    def ranks(self) -> list[Process]:
        return [process for process in self.processes() if process.rank is not None and process.node is None]

    def empty(self) -> None:
        """Wait until nothing of this home runs any more. Raises AssertionError."""
        until(lambda: not self.processes(), lambda: f"still there: {self.processes()}")

    def kill_all(self) -> None:
        """End whatever a failed test has left, so that it disturbs no other."""
        while left := self.everything():
            for process in left:
                kill(process.pid)
            time.sleep(0.05)


@contextlib.contextmanager
def machine_in(folder: Path, **keys: str) -> Iterator[Machine]:
    """A machine below `folder`, with nothing left running after the block; see `Machine.keys`."""
    machine = Machine(folder / "home", folder / "job", keys)
    machine.folder.mkdir(parents=True, exist_ok=True)
    try:
        yield machine
    finally:
        machine.kill_all()


def lives(pid: int) -> bool:
    """Whether a process runs: it is neither gone nor a zombie."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def kill(pid: int, number: int = signal.SIGKILL) -> bool:
    """Signal a process; False where it is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
