"""Sets of files for tests of storage, and the command `windlass data` as a process."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.helpers.machine import WINDLASS

Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Shape:
    """Number and sizes of small files, and of large files that are copied in parts."""

    num_small: int
    small_bytes: int
    num_large: int
    large_bytes: int

    @property
    def num_bytes(self) -> int:
        return self.num_small * self.small_bytes + self.num_large * self.large_bytes


QUICK = Shape(60, 100_000, 2, 36_000_000)
LARGE = Shape(2000, 100_000, 2, 1_000_000_000)
"""Sizes claimed in the documentation; used with `LARGE=1` in the environment."""


IN_FLIGHT = {"up": 64 << 20, "down": 20 << 20}
"""Bytes in flight when a copy is killed: uploads keep complete parts, downloads keep pieces.

An upload holds as many parts in memory as `window.MAX_BYTES` allows, and may have to send all of them again.
"""


def shape() -> Shape:
    return LARGE if os.environ.get("LARGE") else QUICK


def write_set(folder: Path, shape: Shape, seed: int = 1) -> Path:
    """Writes random files, so that no part equals another."""
    rng = random.Random(seed)
    for number in range(shape.num_small):
        path = folder / f"small/{number % 10}/{number:05}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.randbytes(shape.small_bytes))
    for number in range(shape.num_large):
        with open(folder / f"large-{number}.bin", "wb") as file:
            for start in range(0, shape.large_bytes, 1 << 24):
                file.write(rng.randbytes(min(1 << 24, shape.large_bytes - start)))
    return folder


def names(folder: Path) -> set[str]:
    """Returns the names of the files of a set, without Windlass's own."""
    found = (one.relative_to(folder) for one in folder.rglob("*") if one.is_file())
    return {str(one) for one in found if not one.parts[0].startswith(".windlass")}


def assert_equal(one: Path, other: Path) -> None:
    """Asserts that two folders have the same files, byte for byte."""
    assert names(one) == names(other)
    for name in names(one):
        assert all(mine == theirs for mine, theirs in zip(_blocks(one / name), _blocks(other / name), strict=True)), (
            name
        )


def _blocks(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            yield block


class Server(Protocol):
    """Running store server of any kind."""

    def environ(self, endpoint: str = "") -> dict[str, str]:
        """Returns the environment of clients; `endpoint` may be the address of a proxy."""
        ...


@dataclass(frozen=True)
class Data:
    """The command `windlass data` in a separate home, with the keys of a server."""

    home: Path
    server: Server
    endpoint: str = ""
    """Endpoint of a proxy; empty for the server's own."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Environment variables; an empty value removes the variable."""

    @property
    def environ(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        homes = {"HOME": str(self.home), "WINDLASS_HOME": str(self.home)}
        found = {**kept, **homes, "NO_COLOR": "1", **self.server.environ(self.endpoint), **self.settings}
        return {name: value for name, value in found.items() if value}

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        command = [str(WINDLASS), "data", *words]
        return subprocess.Popen(command, env=self.environ, text=True, stdin=subprocess.DEVNULL, **options)

    def run(self, *words: str) -> Done:
        popen = self.start(*words)
        out, err = popen.communicate()
        return Done(popen.args, popen.returncode, out, err)

    def json(self, *words: str) -> Any:
        """Runs a command that must exit with 0. Returns its JSON output."""
        done = self.run(*words, "-o", "json")
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)
