"""Runs commands in the pods of a run, and copies files from and to them.

Files are read from a running pod, or, once the pods are deleted, from a helper pod that mounts the run's claim.
"""

from __future__ import annotations

import contextlib
import copy
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import IO, Any, Final

from windlass.engines.kubernetes.access import exec_stream, probe_pods
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.files import (
    SILENCE_SECONDS,
    OnProgress,
    PodFiles,
    last_line,
    parsed,
    require_claim,
)
from windlass.engines.kubernetes.access.node_pods import pods_of, running_pod
from windlass.engines.kubernetes.objects import labels, layout
from windlass.engines.kubernetes.objects.find_pod_specs import pod_spec
from windlass.engines.kubernetes.objects.helper_manifests import COPY_SECONDS
from windlass.engines.kubernetes.objects.planned import attempt_objects
from windlass.engines.kubernetes.objects.pod_status import container_state
from windlass.engines.kubernetes.objects.pods import Pod
from windlass.errors import EngineError, UsageError
from windlass.plan.plan import Plan
from windlass.plan.steps import ReadJobStep
from windlass.runs.record import Status
from windlass.worker import checkpoint_list, file_list, tarpipe

START_SECONDS: Final = 300.0
RELATIVE: Final = "paths that do not begin with / are relative to the results: RUN:output/model.pt"
PROGRAM: Final = f"{layout.TRAVEL}/windlass/worker/exec_command.py"


class RunPods:
    """Pods of one run, for commands and file transfers."""

    def __init__(self, client: Client, plan: Plan, status: Status) -> None:
        self._client = client
        self._plan = plan
        self._status = status
        self._python = [plan.nodes.worker_python, "-I", "-S"]
        self._files = PodFiles(client, self._python, RELATIVE)

    def execute(
        self,
        node: int,
        rank: int | None,
        command: Sequence[str],
        stdin: IO[bytes] | None,
        stdout: IO[bytes],
        stderr: IO[bytes],
    ) -> int:
        """Runs a command in the pod of a node, with the environment of a rank unless `rank` is None; returns its exit
        code.
        """
        pod = running_pod(self._client, self._status.id, node)
        spec = f"{layout.WORK}/attempt/node-{node}.json"
        words = [*self._python, PROGRAM, spec, "-" if rank is None else str(rank), "0", *command]
        return exec_stream.attach(self._client, pod, self._python, words, stdin, stdout, stderr)

    def list_checkpoints(self, folder: str) -> Mapping[str, Any]:
        """Returns the contents of a folder of checkpoints, as `worker/checkpoint_list.py` prints them."""
        with self._pod(self._first_node(), folder) as pod:
            return self._listed(pod, checkpoint_list, folder)

    def list_results(self, checkpoints: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Returns the contents of the folder of outputs, as `worker/file_list.py` prints them, and of the folder
        `checkpoints`.

        One pod reads both. If `checkpoints` is not a folder, only outputs are read.
        """
        with self._pod(self._first_node(), layout.OUTPUT) as pod:
            found = self._listed(pod, file_list, layout.OUTPUT)
            return found, self._listed(pod, checkpoint_list, checkpoints) if checkpoints.startswith("/") else {}

    def _first_node(self) -> int:
        return next(iter(self._status.attempts[-1].members), 0) if self._status.attempts else 0

    def _listed(self, pod: Pod, program: ModuleType, folder: str) -> Mapping[str, Any]:
        """Returns the JSON that a program prints about a folder in a pod. Raises EngineError."""
        words = [*self._python, "-c", Path(str(program.__file__)).read_text(encoding="utf-8"), folder]
        code, answer, stderr = exec_stream.call(self._client, pod, words, SILENCE_SECONDS)
        found = parsed(answer)
        if code or found is None:
            why = last_line(stderr, f"exit code {code}")
            raise EngineError(
                f"{folder} of {self._status.id} cannot be read: {why}",
                f"windlass exec {self._status.id} -- ls {folder}",
            )
        return found

    def fetch(self, node: int, path: str, local: Path, on_progress: OnProgress) -> tarpipe.Received:
        """Copies `path` of a node, relative to the results or absolute, to this machine. Raises EngineError,
        OSError.
        """
        path = _absolute(path)
        with self._pod(node, path) as pod:
            return self._files.fetch(pod, path, local, on_progress)

    def put(self, node: int, local: Path, path: str, on_progress: OnProgress) -> tarpipe.Received:
        """Copies the local path `local` to `path` of a node. Raises EngineError, OSError."""
        path = _absolute(path)
        with self._pod(node, path) as pod:
            return self._files.put(pod, local, path, on_progress)

    # -- which pod ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _pod(self, node: int, path: str) -> Iterator[Pod]:
        """Yields a running pod that contains `path`; creates a helper pod if no pod runs and the path is in the run's
        claim.
        """
        run_id = self._status.id
        # The API server may still report pods of an ended run as running.
        pods = {} if self._status.phase.is_terminal else pods_of(self._client, run_id)
        pods = {number: pod for number, pod in pods.items() if container_state(pod)[0] == "running"}
        spec = pod_spec(attempt_objects(self._plan))
        is_result = path == layout.RESULTS or path.startswith(f"{layout.RESULTS}/")
        claim = results_claim(spec) if is_result else None
        if node in pods or (claim is not None and pods):
            yield pods.get(node) or next(iter(pods.values()))
            return
        if claim is None and is_result:
            raise UsageError(
                f"the pods of {run_id} do not run, and its results were stored nowhere else",
                "write kubernetes: {results: {size: 20GiB}} into the job for the next run",
            )
        if claim is None:
            raise UsageError(
                f"the pod of node {node} of {run_id} does not run, and {path} was in it",
                "results are reached by relative paths: RUN:output",
            )
        require_claim(self._client, claim["volume"]["persistentVolumeClaim"]["claimName"], f" of {run_id}")
        name = f"{run_id}-cp-{secrets.token_hex(3)}"
        with probe_pods.made(self._client, COPY_SECONDS, self._helper(name)):
            [pod] = probe_pods.running(self._client, name, 1, START_SECONDS, lambda _text: None)
            yield pod

    def _helper(self, name: str) -> probe_pods.Manifest:
        """Returns the planned Job of a pod that mounts the claim, with a name of its own."""
        made = copy.deepcopy(dict(self._plan.only(ReadJobStep).manifest))
        made["metadata"]["name"] = name
        for meta in (made["metadata"], made["spec"]["template"]["metadata"]):
            meta["labels"][labels.HELPER] = name
        return made


def _absolute(path: str) -> str:
    slash = "/" if path.endswith("/") else ""  # A destination that ends in a slash is a folder.
    return path if path.startswith("/") else f"{PurePosixPath(layout.RESULTS, path)}{slash}"


def results_claim(spec: Pod) -> Mapping[str, Any] | None:
    """Returns the volume mount of the results in a pod spec if they are in a claim, else None."""
    [mount] = [one for one in spec["containers"][0]["volumeMounts"] if one["mountPath"] == layout.RESULTS]
    [volume] = [one for one in spec["volumes"] if one["name"] == mount["name"]]
    return {"volume": volume, "mount": mount} if "persistentVolumeClaim" in volume else None
