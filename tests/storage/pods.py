"""Pods that move data, simulated by processes on this machine with Windlass in a zip file and Python only."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windlass.engines.kubernetes.objects.package import transfer_archive


def package(path: Path) -> Path:
    """Creates the zip file of the package."""
    path.write_bytes(transfer_archive())
    return path


@dataclass(frozen=True)
class Ended:
    """Result of a pod that has ended."""

    code: int
    lines: list[dict[str, Any]]
    """Lines of standard output."""
    outcome: Any
    """Termination message written for the kubelet; None if there is none."""
    err: str


@dataclass
class Pod:
    """Running pod."""

    popen: subprocess.Popen[str]
    result: Path

    def ended(self) -> Ended:
        out, err = self.popen.communicate()
        outcome = json.loads(self.result.read_bytes()) if self.result.exists() else None
        return Ended(self.popen.returncode, [json.loads(line) for line in out.splitlines()], outcome, err)


@dataclass
class Pods:
    """Pods that share one claim, which is a folder."""

    folder: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    num_started: int = 0

    @property
    def root(self) -> Path:
        return self.folder / "claim" / "data"

    def link(self, run: str = "r-1") -> Path:
        return self.root / "runs" / run / "set"

    def start(self, request: Mapping[str, Any] | str, **environ: str) -> Pod:
        archive = self.folder / "windlass.zip"
        if not archive.exists():
            package(archive)
        self.num_started += 1
        result = self.folder / f"termination-log-{self.num_started}"
        text = request if isinstance(request, str) else json.dumps(request)
        given = {"WINDLASS_TRANSFER": text, "WINDLASS_TRANSFER_RESULT": str(result), **self.environ, **environ}
        command = [sys.executable, "-I", "-S", str(archive)]
        options: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return Pod(subprocess.Popen(command, env=given, text=True, cwd="/", **options), result)

    def stage(self, source: str, run: str = "r-1", **environ: str) -> Pod:
        sets = [{"name": "set", "source": source, "link": str(self.link(run))}]
        return self.start({"kind": "stage", "root": str(self.root), "sets": sets}, **environ)

    def upload(self, source: Path, destination: str, **environ: str) -> Pod:
        request = {"kind": "upload", "state": str(self.folder / "claim" / "state"), "name": "outputs"}
        return self.start({**request, "source": str(source), "destination": destination}, **environ)

    def check(self, destination: str, **environ: str) -> Pod:
        return self.start({"kind": "check", "destination": destination, "pause_seconds": 0}, **environ)
