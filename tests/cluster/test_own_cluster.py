"""A cluster is created from its file and destroyed: `windlass cluster up`, a run in it, `windlass cluster down`.

AWS and its nodes are emulated: the API server of the emulated EKS is that of a test cluster, in which helm installs a
chart whose DaemonSet does nothing. Terraform, its provider, helm, the API server and the pods of the run are real.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.bed import balancer, build
from tests.cluster.bed.cluster import Bed
from tests.cluster.bed.users import ADMIN, token
from tests.fakeaws.emulator import Emulator, emulated_aws, terraform_environ
from tests.helpers.machine import WINDLASS
from tests.helpers.until import until

pytestmark = [pytest.mark.operators, pytest.mark.timeout(1200)]
NAME = balancer.CLUSTER
PLUGIN = "nvidia-device-plugin"
CLUSTER = f"""
name: {NAME}
region: us-east-1
zones: [us-east-1a, us-east-1b]
network: {{public_access: [127.0.0.1/32]}}
access: {{users: ["arn:aws:iam::123456789012:role/research"]}}
storage: {{efs: true}}
components: [{PLUGIN}]
"""
LOGIN = """#!/bin/sh
# In place of `aws eks get-token`: the test cluster knows no roles of AWS.
echo '{"apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential", "status": {"token": "TOKEN"}}'
"""
DAEMON = """apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: nvidia-device-plugin
spec:
  selector: {matchLabels: {app: plugin}}
  template:
    metadata:
      labels: {app: plugin}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - {name: plugin, image: IMAGE, command: [sleep, "100000"]}
"""
WAITS = """
import os, time
print("ready", flush=True)
while not os.path.exists("/tmp/go"):
    time.sleep(0.2)
"""


class Shell:
    """Commands of one user, with an AWS account and access to the cluster."""

    def __init__(self, bed: Bed, aws: Emulator, folder: Path) -> None:
        self.bed, self.aws, self.folder = bed, aws, folder / "work"
        self.folder.mkdir()
        programs = folder / "bin"
        programs.mkdir(parents=True)
        (programs / "aws").write_text(LOGIN.replace("TOKEN", token(ADMIN)))
        (programs / "aws").chmod(0o755)
        (programs / "helm").symlink_to(build.HELM.program("helm"))
        self._environ = (
            terraform_environ(folder)
            | aws.environ
            | {
                "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
                "HOME": str(folder),
                "NO_COLOR": "1",
                "WINDLASS_HOME": str(folder / "home"),
                "WINDLASS_CHARTS": str(_charts(folder / "charts", bed)),
            }
        )

    def windlass(self, *words: str, code: int = 0) -> str:
        """Returns the output of a command; raises AssertionError for another exit code."""
        done = subprocess.run(
            [str(WINDLASS), *words],
            cwd=self.folder,
            env=self._environ,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout if code == 0 else done.stdout + done.stderr

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.windlass(*words, "-o", "json", code=code).splitlines()[0])


def _charts(folder: Path, bed: Bed) -> Path:
    """Returns a folder with the emulated chart of the device plugin."""
    chart = folder / PLUGIN
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text(json.dumps({"apiVersion": "v2", "name": PLUGIN, "version": "0.18.2"}))
    (chart / "templates" / "daemon.yaml").write_text(DAEMON.replace("IMAGE", bed.image))
    return folder


@pytest.fixture
def shell(lone_bed: Bed, tmp_path: Path) -> Iterator[Shell]:
    build.build_cluster_tools()
    authority = base64.b64encode((lone_bed.layout.pki / "ca.crt").read_bytes()).decode()
    server = {"FAKEAWS_EKS_ENDPOINT": lone_bed.layout.server, "FAKEAWS_EKS_CA": authority}
    with emulated_aws(tmp_path / "aws", environ=server) as aws:
        yield Shell(lone_bed, aws, tmp_path)
    lone_bed.kubectl("delete", "namespace", "training", "--ignore-not-found", "--wait=false")


def training(shell: Shell, run: str) -> dict[str, Any]:
    """Returns the status of a run that trains; else an empty one."""
    found: dict[str, Any] = shell.json("status", run)
    return found if found["phase"] == "training" else {}


def test_emulated_cluster_is_created_used_and_destroyed_with_an_audit(shell: Shell) -> None:
    (shell.folder / "cluster.yaml").write_text(CLUSTER)
    (shell.folder / "train.py").write_text(WAITS)
    made = shell.json("cluster", "up", "--yes")
    assert (made["name"], made["target"], made["changed"]) == (NAME, NAME, 0)
    assert {one["name"]: one["is_healthy"] for one in made["components"]} == {PLUGIN: True, "storage": True}
    as_user = ("--as=research", "--as-group=windlass-users", "-n", "training")
    assert shell.bed.kubectl("auth", "can-i", "create", "jobs", *as_user).strip() == "yes"

    bed = shell.bed
    image = ("--set", f"image={bed.image}", "--set", f"python={bed.python}", "--set", "launcher=plain")
    run = shell.windlass("run", "train.py", "--on", NAME, "-d", "-q", "--nodes", "2", *image).strip()
    seen = until(lambda: training(shell, run), lambda: shell.windlass("status", run), seconds=300)
    assert seen["supervisor"] == "cluster", "up has set the namespace up"
    refused = shell.windlass("cluster", "down", NAME, "--yes", code=2)
    assert run in refused
    shell.windlass("stop", run, "--now", "--on", NAME)
    shell.windlass("rm", run, "--force")

    (shell.folder / "cluster.yaml").write_text(CLUSTER.replace(f"[{PLUGIN}]", "[]"))
    changed = shell.json("cluster", "up", "--yes")
    assert [changed[key] for key in ("added", "changed", "destroyed")] == [0, 0, 0], "a second plan finds nothing to do"
    assert [one["name"] for one in changed["components"]] == ["storage"]
    assert bed.kubectl("get", "daemonsets", "-A", "-o", "name") == "", "what the file has no more is uninstalled"

    bucket = made["bucket"]
    shell.aws.client("s3").put_object(Bucket=bucket, Key="results/model", Body=b"weights")
    removed = shell.json("cluster", "down", NAME, "--yes")
    audit = removed["audit"]
    assert (audit["is_clean"], audit["leaks"], audit["unknown"]) == (True, [], []), audit
    assert sorted(one["kind"] for one in audit["kept"]) == ["bucket", "key"], "results are kept, with their key"
    assert removed["destroyed"] > 60
    assert shell.json("cluster", "ls") == []
    assert shell.windlass("cluster", "audit", NAME, "--region", "us-east-1")
