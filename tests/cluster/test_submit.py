"""A submission on a real cluster is refused before it creates objects, or can be killed at any moment without loss."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.bed import users
from tests.cluster.bed.cluster import Bed, Cluster
from tests.helpers.until import until

WINDLASS = Path(sys.executable).with_name("windlass")
JOBSETS = "jobsets.jobset.x-k8s.io"

# The command is killed at one of the moments of a lasting change: its record is opened, a file is written, or a request
# is sent. Before the record is opened, there are only questions and dry runs.
KILLED = """
import os, signal, sys

left = int(os.environ["MOMENT"])
METHODS = (b"POST", b"PATCH", b"PUT", b"GET")
begun = False

def kill_at_the_moment(event, args):
    global begun, left
    begun = begun or event == "sqlite3.connect"
    is_request = event == "http.client.send" and args[1].startswith(METHODS)  # a body is sent by itself
    if begun and (is_request or event in ("sqlite3.connect", "os.rename")):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(kill_at_the_moment)
from windlass.cli.entry import main

sys.argv[0] = "windlass"
sys.exit(main())
"""

pytestmark = pytest.mark.timeout(600)


class User:
    """A user's shell with a job and a target."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        self.cluster, self.namespace, self.folder = cluster, namespace, folder
        self.env = {**os.environ, "WINDLASS_HOME": str(folder / "home"), "KUBECONFIG": cluster.kubeconfig}
        folder.mkdir(exist_ok=True)
        (folder / "code").mkdir(exist_ok=True)
        (folder / "code" / "script.py").write_text("print('hello', flush=True)\n")

    def write(self, target: Mapping[str, Any] | None = None, job: Mapping[str, Any] | None = None) -> None:
        """Writes a valid target and job, with the given changes."""
        there = {
            "kind": "kubernetes",
            "context": self.cluster.context,
            "namespace": self.namespace,
            "image": self.cluster.image,
            "python": self.cluster.python,
        }
        (self.folder / "targets.yaml").write_text(json.dumps({"bed": {**there, **(target or {})}}))
        asked = {"name": "case", "run": "script.py", "code": "code", "kubernetes": {"via": "job"}, **(job or {})}
        (self.folder / "job.yaml").write_text(json.dumps(asked))

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def start_and_kill(self, moment: int) -> int:
        """Kills a submission at its moment of this number, if it has as many; returns its exit code."""
        words = [sys.executable, "-c", KILLED, "run", "job.yaml", "--on", "bed", "--detach"]
        return subprocess.run(words, cwd=self.folder, env={**self.env, "MOMENT": str(moment)}).returncode

    def windlass(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([WINDLASS, *words], cwd=self.folder, env=self.env, capture_output=True, text=True)

    def runs(self) -> list[dict[str, Any]]:
        """Returns the output of `ps`, the next command after a submission."""
        answer = self.windlass("ps", "-a", "-o", "json")
        assert answer.returncode == 0, answer.stderr
        found: list[dict[str, Any]] = json.loads(answer.stdout)
        return found

    def made(self) -> set[str]:
        """Returns the runs with any object in the namespace."""
        words = ("get", "configmaps,services,jobs,pods,pvc", "-n", self.namespace, "-l", "windlass.dev/run")
        items = json.loads(self.cluster.kubectl(*words, "-o", "json"))["items"]
        return {item["metadata"]["labels"]["windlass.dev/run"] for item in items}


@pytest.fixture
def user(cluster: Cluster, namespace: str, tmp_path: Path) -> User:
    return User(cluster, namespace, tmp_path / "user")


def large_code(user: User) -> None:
    for number in range(5):
        (user.folder / "code" / f"noise-{number}.bin").write_bytes(os.urandom(2_000_000))


def as_it_is(_user: User) -> None:
    pass


@pytest.mark.parametrize(
    ("target", "job", "before", "exit_code", "message", "hint"),
    [
        ({"context": "nosuch"}, {}, as_it_is, 2, "has no context 'nosuch'", "known: "),
        ({"namespace": "no-such-namespace"}, {}, as_it_is, 2, "namespace no-such-namespace is not in the cluster",
         "create namespace no-such-namespace"),
        ({}, {"name": "x" * 70}, as_it_is, 2, "name", "at most"),
        ({}, {}, large_code, 2, "MB travel in objects of the cluster", ".windlassignore"),
        ({}, {"kubernetes": {"via": "job", "results": {"claim": "nosuch"}}}, as_it_is, 2,
         "the claim nosuch is not in the namespace", "kubectl get pvc"),
        ({}, {"secrets": ["nosuch"]}, as_it_is, 2, "secret nosuch is not in the namespace", "kubectl create secret"),
    ],
    ids=["context", "namespace", "long name", "large code", "claim", "secret"],
)  # fmt: skip
def test_impossible_job_is_refused_in_one_message_before_objects_are_created(
    user: User, target: Any, job: Any, before: Callable[[User], None], exit_code: int, message: str, hint: str
) -> None:
    before(user)
    user.write(target, job)
    refused(user, exit_code, message, hint)


@pytest.mark.parametrize(
    ("login", "exit_code", "message", "hint"),
    [
        (users.NOBODY, 2, "this login may not create configmaps", "--role prints the role"),
        (users.EXPIRED, 1, "Unauthorized", "the login has expired or is invalid"),
    ],
)
def test_insufficient_login_is_refused_before_objects_are_created(
    user: User, bed: Bed, login: str, exit_code: int, message: str, hint: str
) -> None:
    user.write({"context": users.context(login)})
    refused(user, exit_code, message, hint)


def refused(user: User, exit_code: int, message: str, hint: str) -> None:
    answer = user.windlass("run", "job.yaml", "--on", "bed", "--detach")
    said = answer.stderr
    errors = [line for line in said.splitlines() if line.startswith("error:")]
    assert (answer.returncode, len(errors)) == (exit_code, 1), said
    assert message in said
    assert hint in said
    assert "Traceback" not in said
    assert user.runs() == []
    assert user.made() == set()


def test_field_missing_in_the_clusters_jobset_is_refused_before_objects_are_created(
    lone_bed: Bed, lone_namespace: str, tmp_path: Path
) -> None:
    definition = json.loads(lone_bed.kubectl("get", "crd", JOBSETS, "-o", "json"))
    whole = json.dumps(definition["spec"])
    for version in definition["spec"]["versions"]:
        spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        del spec["network"]["properties"]["publishNotReadyAddresses"]
    lone_bed.kubectl("replace", "-f", "-", stdin=json.dumps(definition))
    try:
        user = User(lone_bed, lone_namespace, tmp_path / "user")
        user.write(job={"kubernetes": {"via": "jobset"}, "nodes": 2})
        give_up = time.monotonic() + 600  # the server applies a schema with a delay
        while user.windlass("plan", "job.yaml", "--on", "bed").returncode == 0:
            assert time.monotonic() < give_up, "the server has not taken the schema in"
        refused(user, 2, "publishNotReadyAddresses", "via: job")
    finally:
        words = ("patch", "crd", JOBSETS, "--type=merge", "--patch-file=/dev/stdin")
        lone_bed.kubectl(*words, stdin=f'{{"spec": {whole}}}')
    user.write(job={"kubernetes": {"via": "jobset"}, "nodes": 2})  # the next test must not get the old schema
    until(lambda: user.windlass("plan", "job.yaml", "--on", "bed").returncode == 0, "the schema is not back", 600)


def test_killed_submission_is_continued_by_the_next_command_or_leaves_no_trace(
    user: User,
) -> None:
    user.write()
    known: list[int] = []
    for moment in itertools.count(1):
        ended = user.start_and_kill(moment)
        runs = {run["id"] for run in user.runs()}
        assert user.made() <= runs
        known.append(len(runs))
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
    assert known[0] == 0, "the first moment is not before anything is made"
    assert 1 < known[-1] < len(known), f"runs known after each kill: {known}"
    while any(run["phase"] not in ("succeeded", "failed", "lost") for run in user.runs()):
        time.sleep(0.2)
    for run in user.runs():
        assert run["phase"] == "succeeded", user.windlass("why", run["id"]).stdout
        assert user.windlass("rm", run["id"]).returncode == 0
    until(lambda: user.made() == set(), lambda: f"not removed: {user.made()}")  # owned objects are deleted with a delay
