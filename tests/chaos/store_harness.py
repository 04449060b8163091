"""Plays a chaos case whose data, checkpoints and outputs are in an S3 store, behind a proxy that lies and refuses."""

from __future__ import annotations

import filecmp
import itertools
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tests.chaos.harness import PATIENCE_SECONDS, Play, Struck, step_of
from tests.chaos.plans import STORE_KINDS, Strike
from tests.helpers.machine import kill
from tests.helpers.until import passed, until
from tests.servers.faulty import BARE_400, FORBIDDEN, HTML, PASS, Fault, FaultProxy, Request, refusal
from tests.servers.s3 import S3Server

from windlass.runs.phase import Phase

EXPIRED = refusal(400, "ExpiredToken", "The provided token has expired.")
SET_FILES = 5
SET_FILE_BYTES = 40_000
FORBIDDEN_SECONDS = 12.0
"""How long an object is forbidden at most, once a rank has asked for it."""
MEET_SECONDS = 25.0
"""How long a restart may take on a busy machine, until its ranks ask the store."""


@dataclass
class StorePlay(Play):
    """One run in a store through its strikes."""

    server: S3Server = field(kw_only=True)
    proxy: FaultProxy = field(kw_only=True)
    bucket: str = field(kw_only=True)
    num_resumes: int = 0
    num_met: int = 0
    """Requests that have met the fault of the newest strike."""

    # -- the run ------------------------------------------------------------------------------------------------------

    def _fields(self) -> dict[str, Any]:
        source = self._bucket / "set"
        source.mkdir()
        for number in range(SET_FILES):
            (source / f"part-{number}").write_bytes(bytes([self.case.seed % 256, number]) * (SET_FILE_BYTES // 2))
        return super()._fields() | {
            "data": [{"name": "extra", "source": f"s3://{self.bucket}/set/"}],
            "checkpoint": {"folder": f"s3://{self.bucket}/checkpoints/"},
            "outputs": f"s3://{self.bucket}/outputs/",
        }

    @property
    def marks(self) -> Path:
        return self.machine.home / "runs" / self.run / "output"

    def _where_marks_are(self) -> list[str]:
        return []  # the outputs of the run

    @property
    def _bucket(self) -> Path:
        """The bucket, as the folder in which the server keeps its objects."""
        return self.server.folder / self.bucket

    @property
    def checkpoints(self) -> Path:
        return self._bucket / "checkpoints" / self.run

    def _may_resume(self) -> bool:
        """Whether the store, which answers truly again, has failed the run; a user resumes it then."""
        self.num_resumes += 1
        return self.num_resumes <= 2 * len(self.case.strikes)

    # -- strikes ------------------------------------------------------------------------------------------------------

    def _strike(self, strike: Strike) -> None:
        if strike.kind not in STORE_KINDS:
            super()._strike(strike)
            return
        attempt = self._attempt()
        act = {
            "endpoint lies": self._lie,
            "object forbidden": self._forbid,
            "token expired": self._expire,
            "byte flipped": self._flip,
        }[strike.kind]
        said, expected = act(strike)
        self.proxy.fault = lambda _request: PASS
        # Attempts that failed meanwhile were struck too.
        for number in range(attempt, self._attempt() + 1):
            self.struck.append(Struck(strike, number, said, expected_step=expected if number == attempt else None))

    def _lie(self, strike: Strike) -> tuple[str, None]:
        """Answer 200 with HTML to everything for some steps, and perhaps at a restore too."""
        self._answer(lambda _request: HTML)
        self._progress(40 * strike.which)
        if strike.detail < 0.5:
            self._restore_meanwhile(5 * strike.detail)
        return f"HTML × {self.num_met}", None

    def _expire(self, strike: Strike) -> tuple[str, None]:
        """Refuse the token until the run has ended, or for some steps."""
        self._answer(lambda request: BARE_400 if request.method == "HEAD" else EXPIRED)
        if strike.detail < 0.6:
            until(lambda: self._phase().is_terminal, "an expired token keeps the run from ending", PATIENCE_SECONDS)
        else:
            self._progress(40 * strike.which)
        return f"expired × {self.num_met}", None

    def _forbid(self, strike: Strike) -> tuple[str, int | None]:
        """Hold all ranks, forbid one object of the newest checkpoint, and kill them: they restore meanwhile."""
        held = self._family(self._pids("rank"))
        for pid in held:
            kill(pid, signal.SIGSTOP)
        found = self._committed()
        files = sorted(path for path in found[0].iterdir() if path.is_file()) if found else []
        chosen = files[int(strike.which * len(files))] if files else None
        if chosen is not None:
            victim = str(chosen.relative_to(self.server.folder))
            self._answer(lambda request: FORBIDDEN if unquote(request.path).strip("/") == victim else PASS)
        for pid in held:
            kill(pid)
        if chosen is not None and held:
            self._until_met(FORBIDDEN_SECONDS * strike.detail)
        name = chosen.name if chosen is not None else "nothing"
        return f"{len(held)} ranks, {name} × {self.num_met}", step_of(found[0]) if found and held else None

    def _flip(self, strike: Strike) -> tuple[str, None]:
        """Flip a bit in what passes, never twice in a row at one object, and let the ranks restore meanwhile."""
        numbers, flipped = itertools.count(int(1000 * strike.which)), set[str]()

        def flip(request: Request) -> Fault:
            if not request.is_data or request.path in flipped:
                flipped.discard(request.path)
                return PASS
            flipped.add(request.path)
            at = 37 * next(numbers) % 400
            if request.method == "GET":
                return Fault(flips_answer_at=at)
            return Fault(flips_request_at=at % max(1, request.length))

        self._answer(flip)
        self._progress(30 * strike.which)
        if strike.detail < 0.7:
            self._restore_meanwhile(3 * strike.detail)
        return f"flipped × {self.num_met}", None

    def _answer(self, choose: Callable[[Request], Fault]) -> None:
        """Let the proxy choose a fault for each request; `num_met` counts those that met one."""
        lock, self.num_met = threading.Lock(), 0

        def decide(request: Request) -> Fault:
            with lock:
                fault = choose(request)
                self.num_met += fault is not PASS
                return fault

        self.proxy.fault = decide

    def _restore_meanwhile(self, seconds: float) -> None:
        """Kill a rank, and go on once the ranks of the next attempt have met the fault for so long."""
        for pid in sorted(self._pids("rank"))[:1]:
            kill(pid)
        self._until_met(seconds)

    def _until_met(self, seconds: float) -> None:
        before = self.num_met
        give_up = time.monotonic() + MEET_SECONDS
        while self.num_met == before and time.monotonic() < give_up and not self._phase().is_terminal:
            passed(0.02)
        passed(seconds)

    def _progress(self, steps: float) -> None:
        goal = self._newest_step() + int(steps)
        until(
            lambda: self.digest() or self._phase().is_terminal or not self._pids("rank") or self._newest_step() >= goal,
            "a store stops the training",
            PATIENCE_SECONDS,
        )

    # -- judgement ----------------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        super()._judge()
        self.problems += [*self._false_saves(), *self._forgotten_saves(), *self._wrong_outputs()]

    def _false_saves(self) -> Iterator[str]:
        """Checkpoints that were recorded as saved and are not there, or refused though nothing had spoilt them."""
        said = [event.data for event in self._events() if event.kind == "checkpoint"]
        saved = [data["name"] for data in said if data["action"] == "saved"]
        if saved and not (self.checkpoints / saved[-1] / "manifest.json").exists():
            yield f"{saved[-1]} is recorded as saved, and is not in the store"
        yield from (
            f"{data['name']} was refused, and nothing had spoilt it" for data in said if data["action"] == "refused"
        )

    def _forgotten_saves(self) -> Iterator[str]:
        """Attempts that restored less than the record had as saved before them."""
        restored = {number: first for number, (first, _) in self.steps().items()}
        saved = attempt = 0
        for event in self._events():
            if event.kind == "checkpoint" and event.data["action"] == "saved":
                saved = max(saved, int(event.data["step"]))
            elif event.kind == "attempt":
                attempt += 1
                if restored.get(attempt, saved) < saved:
                    yield f"attempt {attempt} restored step {restored[attempt]}, and {saved} was saved"

    def _wrong_outputs(self) -> Iterator[str]:
        """Files of the run's outputs that the store has otherwise, or not at all."""
        here, there = self.machine.home / "runs" / self.run / "output", self._bucket / "outputs" / self.run
        for path in sorted(path for path in here.rglob("*") if path.is_file()):
            copy = there / path.relative_to(here)
            if not copy.exists() or not filecmp.cmp(path, copy, shallow=False):
                yield f"{copy} is not {path}"
        done = self.machine.windlass("data", "verify", f"s3://{self.bucket}/outputs/{self.run}/", "-o", "json")
        if done.returncode or not json.loads(done.stdout)["ok"]:
            yield f"outputs: {done.stdout}{done.stderr}"
        if self._phase() is Phase.SUCCEEDED and not self.machine.status(self.run)["outputs"].get("digest"):
            yield f"outputs without a digest: {self.machine.status(self.run)['outputs']}"
