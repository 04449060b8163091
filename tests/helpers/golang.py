"""Builds the Go modules of these tests into programs, once for each version of each, in the cache of this machine."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "windlass-testbed"
"""Outside the checkout: a clean checkout does not cost the ten minutes of a build again."""
KEEP = "WINDLASS_TESTBED_KEEP_GO_CACHE"
_OWN_CACHES = {"GOMODCACHE": "gomod", "GOCACHE": "gocache"}


class BuildError(RuntimeError):
    """A module cannot be built here; the message is for the user."""


def digest_of(*parts: bytes) -> str:
    """12 hex digits that change when a part does."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()[:12]


@contextmanager
def locked(path: Path, to: str = "") -> Iterator[None]:
    """Hold a lock that the kernel takes back should this process be killed; `to` is what for, as others are told."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = path.read_text().strip() or "it does not say for what"
            print(f"waiting for another process, which holds {path} ({holder})", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(f"process {os.getpid()}{', to ' if to else ''}{to}\n")
        file.flush()
        yield


@dataclass(frozen=True, eq=False)
class GoModule:
    """A Go module of ours: a `go.mod` that names programs of others, and perhaps some small ones of its own."""

    folder: Path
    what: str
    """Shown while it is built."""
    patterns: tuple[str, ...]
    """Main packages."""

    @property
    def ldflags(self) -> str:
        """For the linker: without debug information."""
        return "-s -w"

    @property
    def gcflags(self) -> str:
        """For the compiler, which spends a twentieth of its time on debug information that the linker drops."""
        return "all=-dwarf=false"

    def recipe(self) -> object:
        """All that decides what is built, besides the sources."""
        return [self.gcflags, self.ldflags, self.patterns]

    def digest(self) -> str:
        """Changes when what would be built changes."""
        own = [f"{pattern[2:]}/main.go" for pattern in self.patterns if pattern.startswith("./")]
        sources = ["go.mod", "go.sum", *own]
        return digest_of(*((self.folder / name).read_bytes() for name in sources), json.dumps(self.recipe()).encode())

    @property
    def home(self) -> Path:
        """The folder of this version's programs (`bin`), and of what else is made of it."""
        return CACHE / self.digest()

    def is_built(self) -> bool:
        return (self.home / "built").exists()

    def program(self, name: str) -> str:
        """The path of one of the programs."""
        return str(self.home / "bin" / name)

    def build(self) -> None:
        """Make the programs. Raises BuildError."""
        print(f"building {self.what} from source, once", flush=True)
        self.home.mkdir(parents=True, exist_ok=True)
        flags = ("-trimpath", "-gcflags", self.gcflags, "-ldflags", self.ldflags)
        go(self.folder, "build", "-o", f"{self.home / 'bin'}/", *flags, *self.patterns)
        self.complete()
        (self.home / "built").touch()

    def complete(self) -> None:
        """Make what else is made of it."""
        return


def build(modules: Iterable[GoModule]) -> None:
    """Build those that are missing; a second caller waits for the first. Raises BuildError."""
    if "QUICK" in os.environ:  # even where they are built: the tests that a person waits for must not come to need it
        raise BuildError("a test that needs a program of Go is marked `slow`: `make test` builds none")
    wanted = list(modules)
    if all(module.is_built() for module in wanted):
        return
    what = ", ".join(module.what for module in wanted if not module.is_built())
    with locked(CACHE / "build.lock", f"build {what}"):
        missing = [module for module in wanted if not module.is_built()]
        for module in missing:
            module.build()
        if missing:
            _forget_caches()


def go(folder: Path, *args: str) -> str:
    """Run the Go command in a module; it prints its own complaints. Raises BuildError."""
    env = {**os.environ, **_caches(), "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
    niced = ["nice", "-n", "5", "go", *args]
    done = subprocess.run(niced, cwd=folder, env=env, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        needs = "the build needs Go 1.26.6 or newer and a way to modules"
        raise BuildError(f"go {args[0]}: exit {done.returncode}; {needs}")
    return done.stdout


def _caches() -> dict[str, str]:
    """Caches of our own unless the caller has named some: these can be removed without asking."""
    return {name: os.environ.get(name, str(CACHE / folder)) for name, folder in _OWN_CACHES.items()}


def _forget_caches() -> None:
    """Remove 6.5 GB that only a change of go.mod would use again; `KEEP` keeps them for who is changing it."""
    if os.environ.get(KEEP):
        return
    for name, folder in _OWN_CACHES.items():
        if name not in os.environ:
            subprocess.run(["chmod", "-R", "u+w", str(CACHE / folder)], check=False, capture_output=True)
            shutil.rmtree(CACHE / folder, ignore_errors=True)
