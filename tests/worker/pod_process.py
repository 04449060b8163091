"""Runs the main process of a pod on this machine."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.helpers.until import until

from windlass.engines.kubernetes.access.control import signalling
from windlass.worker import pod, pod_reuse, rank
from windlass.worker.protocol import NodeSpec, RankSpec, pack

SCRIPT = """
import os, signal, subprocess, sys, time
def save(*_):
    print("saves", flush=True)
    while not os.path.exists(os.path.join(os.environ["WINDLASS_OUTPUT_DIR"], "saved")):
        time.sleep(0.01)
    sys.exit(143)
if os.environ["WINDLASS_HOW"] == "saves":
    signal.signal(signal.SIGTERM, save)
print("attempt", os.environ["WINDLASS_ATTEMPT"], flush=True)
how = os.environ["WINDLASS_HOW"]
time.sleep(600 if how in ("sleeps", "saves") else 0)
if how.startswith("writes"):
    with open(os.path.join(os.environ["WINDLASS_OUTPUT_DIR"], "model.bin"), "wb") as file:
        file.write(b"m" * int(how.removeprefix("writes")))
if how == "leaves":
    subprocess.Popen(["sleep", "600"], start_new_session=True)
sys.exit(how in ("fails", "leaves"))
"""


class Pod:
    """Process of a pod with one rank, and its folder."""

    def __init__(
        self,
        work: Path,
        how: str,
        reuse_wait_seconds: float = 600.0,
        env: Mapping[str, str] | None = None,
        warm: tuple[str, ...] = (),
        python: str = sys.executable,
        place: int = 0,
        outputs_max: int = 0,
        setup: str = "",
        world_size: int = 1,
    ) -> None:
        """Starts the pod with index `place` in the attempt, which has one node at index 0."""
        self.work = work
        self.place = place
        self.warm = warm
        self.outputs_max = outputs_max
        self.setup = setup
        self.world_size = world_size
        (work / "script.py").write_text(SCRIPT)
        nodes = work / "nodes.json.gz"
        nodes.write_bytes(self.spec(1, how, reuse_wait_seconds))
        self.log = work / "log"
        words = [python, "-I", "-S", pod.__file__, str(work / "attempt"), str(nodes)]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                words,
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"], "JOB_COMPLETION_INDEX": str(place), **(env or {})},
            )

    def spec(self, attempt: int, how: str, reuse_wait_seconds: float = 600.0, place: int = 0) -> bytes:
        env = {
            "MASTER_ADDR": "127.0.0.1",
            "WINDLASS_ATTEMPT": str(attempt),
            "WINDLASS_HOW": how,
            "WINDLASS_OUTPUT_DIR": str(self.work / "out"),
            "WINDLASS_CHECKPOINT_DIR": str(self.work / "checkpoints"),
        }
        runner = (rank.__file__,) if self.warm else ()
        its = RankSpec(0, 0, (sys.executable, *runner, str(self.work / "script.py")), {})
        spec = NodeSpec(
            0,
            "script.py",
            sys.executable,
            str(self.work),
            env,
            (its,),
            5.0,
            reuse_wait_seconds=reuse_wait_seconds,
            attempt=attempt,
            warm=self.warm,
            outputs_max=self.outputs_max,
            setup=self.setup,
            world_size=self.world_size,
        )
        return pack(attempt, {place: spec})

    def text(self) -> str:
        return self.log.read_text()

    def wait_for(self, text: str) -> None:
        until(lambda: text in self.text() or self.process.poll() is not None, lambda: f"no {text!r} in {self.text()}")
        assert text in self.text()

    def wait(self) -> int:
        return self.process.wait(100)

    def tell(self, *words: str) -> int:
        """Runs `pod_reuse.py` next to the pod, as in its container."""
        return subprocess.run([sys.executable, "-I", "-S", pod_reuse.__file__, str(self.work), *words]).returncode

    def order(self, attempt: int, how: str) -> int:
        return self.tell("order", base64.b64encode(self.spec(attempt, how, place=self.place)).decode(), str(attempt))

    def signal_as_supervisor(self, attempt: int, number: signal.Signals = signal.SIGTERM) -> None:
        """Signals the pod like `pod_reuse.signal_first`, which would otherwise signal process 1."""
        words = [str(self.work), str(attempt), str(int(number)), str(self.process.pid)]
        subprocess.run([sys.executable, "-c", signalling(), *words], check=True)
