"""Reads and writes the files of a claim, independent of a run: a helper pod mounts the claim, and is deleted
afterwards.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Final

from windlass.engines.kubernetes.access import exec_stream, probe_pods
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.exec_stream import Pod
from windlass.engines.kubernetes.access.files import OnProgress, PodFiles, require_claim
from windlass.engines.kubernetes.objects.helper_manifests import COPY_SECONDS, helper_job, mounted, sleeping
from windlass.engines.kubernetes.objects.pod_template import IMAGE, PYTHON, target_shape
from windlass.worker import tarpipe

if TYPE_CHECKING:
    from windlass.spec.targets import KubernetesTarget

MOUNT: Final = "/claim"
START_SECONDS: Final = 300.0
EXEC: Final = """
import os, signal, sys
os.chdir(sys.argv[1])
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    print(f"{sys.argv[2]}: {error.strerror}", file=sys.stderr)
    sys.exit(127 if isinstance(error, FileNotFoundError) else 126)
"""
"""Program that runs a command in a folder. Arguments: the folder, then the command."""


class ClaimFiles:
    """Files of one claim, mounted in a helper pod. Paths are relative to the root of the claim."""

    def __init__(self, client: Client, python: str, pod: Pod) -> None:
        self.python = python
        """Path of the interpreter in the pod."""
        self._client = client
        self._pod = pod
        self._python = [python, "-I", "-S"]
        self._files = PodFiles(client, self._python, "paths are those in the claim: claim:NAME/data/train.csv")

    def fetch(self, path: str, local: Path, on_progress: OnProgress) -> tarpipe.Received:
        """Copies a path of the claim to this machine. Raises EngineError, OSError."""
        return self._files.fetch(self._pod, str(PurePosixPath(MOUNT, path)), local, on_progress)

    def put(self, local: Path, path: str, on_progress: OnProgress) -> tarpipe.Received:
        """Copies the local path `local` to a path of the claim. Raises EngineError, OSError."""
        slash = "/" if path.endswith("/") else ""
        return self._files.put(self._pod, local, f"{PurePosixPath(MOUNT, path)}{slash}", on_progress)

    def execute(self, command: Sequence[str], stdin: IO[bytes] | None, stdout: IO[bytes], stderr: IO[bytes]) -> int:
        """Runs a command in the root folder of the claim and returns its exit code. Raises EngineError."""
        words = [*self._python, "-c", EXEC, MOUNT, *command]
        return exec_stream.attach(self._client, self._pod, self._python, words, stdin, stdout, stderr)


@contextlib.contextmanager
def claim_files(client: Client, target: KubernetesTarget, claim: str) -> Iterator[ClaimFiles]:
    """Yields the files of a claim of the target, mounted in a pod with the target's image. Raises UsageError,
    EngineError.
    """
    require_claim(client, claim)
    name, python = f"windlass-claim-{secrets.token_hex(3)}", target.python or PYTHON
    waits = sleeping(target.image or IMAGE, python, COPY_SECONDS)
    pod = mounted(waits, {"persistentVolumeClaim": {"claimName": claim}}, MOUNT)
    made = helper_job(target_shape(target, client.namespace, name), "copy", pod, COPY_SECONDS)
    with probe_pods.made(client, COPY_SECONDS, made):
        [running] = probe_pods.running(client, name, 1, START_SECONDS, lambda _text: None)
        yield ClaimFiles(client, python, running)
