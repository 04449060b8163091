"""The test cluster can be broken like a real one, and leaves no traces on this machine."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster import objects
from tests.cluster.bed import host
from tests.cluster.bed.api import calm
from tests.cluster.bed.cluster import Bed
from tests.cluster.bed.host import wait_for
from tests.cluster.bed.layout import ROOT, Layout
from tests.cluster.bed.node import GPU
from tests.cluster.bed.sharing import alone

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]  # broken test clusters show what the emulation lacks
PATIENCE = "--timeout=500s"
COUNTER = """
import time
for count in range(100000):
    print(count)
    time.sleep(0.2)
"""
RESTLESS = re.compile(
    r"/(random|pty|nf_conntrack_count|ns_last_pid|dentry-state|file-nr|inode-nr|inode-state|aio-nr|aio-max-nr|quota"
    r"|perf_event_max_sample_rate|hung_task_detect_count|hung_task_warnings)(/|$)|/(conf|neigh)/(?!all/|default/)"
)
"""Kernel settings that are counters, or that depend on devices."""


def phase(bed: Bed, namespace: str, name: str) -> str:
    return bed.kubectl("get", "pod", name, "-n", namespace, "-o", "jsonpath={.status.phase}")


def counted(bed: Bed, namespace: str, name: str) -> int:
    """Returns the number of lines in a pod's log."""
    return len(bed.kubectl("logs", "-n", namespace, name).splitlines())


def start_counter(bed: Bed, namespace: str, **fields: object) -> None:
    bed.apply(objects.pod(bed, "counter", COUNTER, **fields), namespace=namespace)
    bed.kubectl("wait", "-n", namespace, "--for=condition=ready", "pod/counter", PATIENCE)


def test_stopped_node_is_lost_and_returns_with_its_pods(lone_bed: Bed, lone_namespace: str) -> None:
    start_counter(lone_bed, lone_namespace, nodeSelector={"kubernetes.io/hostname": "node2"})
    lone_bed.stop_node("node2")
    try:
        lone_bed.wait_for_node("node2", ready=False)
        taints = ("get", "node", "node2", "-o", "jsonpath={.spec.taints[*].key}")
        wait_for(lambda: "node.kubernetes.io/unreachable" in lone_bed.kubectl(*taints), "the node's taint")
    finally:
        lone_bed.continue_node("node2")
    lone_bed.wait_for_node("node2", ready=True)
    assert phase(lone_bed, lone_namespace, "counter") == "Running"


def test_killed_node_loses_its_pods_and_returns_with_gpus(lone_bed: Bed, lone_namespace: str) -> None:
    start_counter(lone_bed, lone_namespace, nodeSelector={"kubernetes.io/hostname": "node2"})
    address = lone_bed.kubectl("get", "pod", "counter", "-n", lone_namespace, "-o", "jsonpath={.status.podIP}")
    assert reaches(address)
    lone_bed.kill_node("node2")
    try:
        wait_for(lambda: not list(_pod_processes(lone_bed)), "the processes of its pods to be gone")
        assert not reaches(address)
        lone_bed.wait_for_node("node2", ready=False)
    finally:
        lone_bed.start_node("node2")
    allocatable = lone_bed.kubectl("get", "node", "node2", "-o", "jsonpath={.status.allocatable}")
    assert f'"{GPU}":"2"' in allocatable
    wait_for(lambda: phase(lone_bed, lone_namespace, "counter") == "Failed", "the pod to be called failed")
    after = objects.pod(lone_bed, "after", "print('ran')", nodeSelector={"kubernetes.io/hostname": "node2"})
    lone_bed.apply(after, namespace=lone_namespace)
    lone_bed.kubectl("wait", "-n", lone_namespace, "--for=jsonpath={.status.phase}=Succeeded", "pod/after", PATIENCE)


def reaches(address: str) -> bool:
    """Returns whether an address answers, even with a refusal."""
    try:
        socket.create_connection((address, 9), timeout=3).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True


def _pod_processes(bed: Bed) -> Iterator[int]:
    for folder in host.cgroup_folders(bed.node("node2").cgroup):
        yield from (int(line) for line in (folder / "cgroup.procs").read_text().split())


def test_pods_behind_a_cut_network_run_unreachably(lone_bed: Bed, lone_namespace: str) -> None:
    start_counter(lone_bed, lone_namespace, nodeSelector={"kubernetes.io/hostname": "node2"})
    address = lone_bed.kubectl("get", "pod", "counter", "-n", lone_namespace, "-o", "jsonpath={.status.podIP}")
    lone_bed.cut_network("node2")
    try:
        assert not reaches(address)
    finally:
        lone_bed.mend_network("node2")
    wait_for(lambda: reaches(address), "the pod to be reached again")
    assert phase(lone_bed, lone_namespace, "counter") == "Running"


def test_a_drained_node_is_emptied(lone_bed: Bed, lone_namespace: str) -> None:
    start_counter(lone_bed, lone_namespace, nodeSelector={"kubernetes.io/hostname": "node1"})
    lone_bed.kubectl("drain", "node1", "--force", "--ignore-daemonsets", PATIENCE)
    try:
        left = lone_bed.kubectl("get", "pods", "-n", lone_namespace, "-o", "name").split()
    finally:
        lone_bed.kubectl("uncordon", "node1")
    assert left == []


def test_a_frozen_api_server_answers_when_thawed(lone_bed: Bed) -> None:
    lone_bed.freeze("kube-apiserver")
    try:
        with pytest.raises(subprocess.CalledProcessError):
            lone_bed.kubectl("get", "nodes", "--request-timeout=2s")
    finally:
        lone_bed.thaw("kube-apiserver")
    wait_for(lone_bed.api.is_ready, "the API server")


def test_names_do_not_resolve_while_their_server_is_down(lone_bed: Bed, lone_namespace: str) -> None:
    start_counter(lone_bed, lone_namespace)
    ask = "import socket; print(socket.gethostbyname('kubernetes.default.svc.cluster.local'))"
    asked = ("exec", "-n", lone_namespace, "counter", "--", lone_bed.python, "-c", ask)
    assert lone_bed.kubectl(*asked).strip() == "10.96.0.1"
    lone_bed.stop_program("coredns")
    try:
        with pytest.raises(subprocess.CalledProcessError) as unknown:
            lone_bed.kubectl(*asked)
        assert "gaierror" in unknown.value.stderr
    finally:
        lone_bed.start_program("coredns")


def test_pods_keep_running_while_the_api_server_restarts(lone_bed: Bed, lone_namespace: str) -> None:
    start_counter(lone_bed, lone_namespace)
    before = counted(lone_bed, lone_namespace, "counter")
    lone_bed.kill_api_server()
    assert not lone_bed.api.is_ready()
    lone_bed.start_api_server()
    wait_for(lambda: calm(lambda: counted(lone_bed, lone_namespace, "counter") > before), "more lines of the pod")
    restarts = "jsonpath={.status.containerStatuses[0].restartCount}"
    assert lone_bed.kubectl("get", "pod", "counter", "-n", lone_namespace, "-o", restarts) == "0"
    job = objects.indexed_job(lone_bed, "digits", lone_namespace)
    lone_bed.apply(objects.headless("digits", {"job-name": "digits"}), job, namespace=lone_namespace)
    lone_bed.kubectl("wait", "-n", lone_namespace, "--for=condition=complete", "job/digits", PATIENCE)


@pytest.mark.usefixtures("ours_to_break")
def test_a_second_up_starts_from_the_seed_and_down_leaves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    before = settings()
    with alone() as bed:
        layout = bed.layout
        first = bed.made()
        started = time.monotonic()
        bed.down()
        down_seconds = time.monotonic() - started
        assert traces(layout) == []
        second = Bed.up(bed.index).made()
        assert second["from_seed"]
        with bed.namespace() as namespace:
            start_counter(bed, namespace)
            assert traces(layout) != []
            assert settings() == before
            freeze(layout)  # like runc when it is killed while it has frozen a container's cgroup
    assert traces(layout) == []
    assert settings() == before
    with capsys.disabled():
        print(f"\nbed: up {first['seconds']} s, down {down_seconds:.1f} s, up again {second['seconds']} s")


@pytest.mark.usefixtures("ours_to_break")
def test_up_works_after_a_killed_up() -> None:
    with alone() as bed:
        layout = bed.layout
        bed.down()
        command = [sys.executable, "-m", "tests.cluster.bed", "up", "--index", str(bed.index)]
        killed = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True)
        wait_for(lambda: (layout.logs / "kube-apiserver.log").exists(), "the API server to be started")
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
        assert not bed.is_up()
        assert traces(layout) != []
        assert Bed.up(bed.index).is_up()
    assert traces(layout) == []


def freeze(layout: Layout) -> None:
    """Freezes the processes of all pods."""
    states = [
        (folder / name, word)
        for folder in host.cgroup_folders(layout.cgroup)
        for name, word in (("freezer.state", "FROZEN"), ("cgroup.freeze", "1"))
        if folder.name == "kubepods" and (folder / name).exists()
    ]
    assert states
    for state, word in states:
        state.write_text(word)


def settings() -> dict[str, str]:
    """Returns all settings of the machine's kernel that do not change by themselves."""
    found = {}
    for folder, _, names in os.walk("/proc/sys"):
        for name in names:
            path = Path(folder, name)
            if not RESTLESS.search(str(path)):
                try:
                    found[str(path)] = path.read_text()
                except (OSError, UnicodeDecodeError):
                    continue
    return found


def traces(layout: Layout) -> list[str]:
    """Lists traces of a test cluster on this machine: processes, links, routes, mounts, rules, cgroups, files."""
    found = [f"process {pid}" for pid in host.processes_naming(str(layout.control))]
    found += [f"process {entry}" for entry in Path("/proc").glob("[0-9]*") if _lives_in(entry, layout)]
    for command in ("ip -oneline address", "ip route", "nft list ruleset", "cat /proc/self/mountinfo"):
        name = command.split()[0]
        said = host.run(*command.split(), check=False) if host.has(name) else ""
        marks = (layout.link, f"10.200.{layout.index}.", f"10.244.{layout.index}.", f"{layout.folder}/")
        found += [line for line in said.splitlines() if any(mark in line for mark in marks)]
    found += [str(path) for path in host.cgroup_folders(layout.cgroup)]
    return found + [str(layout.folder)] * layout.folder.exists()


def _lives_in(process: Path, layout: Layout) -> bool:
    """Returns whether a process has the folder of a test cluster as its root or among its arguments."""
    try:
        arguments = (process / "cmdline").read_bytes()
        return f"{layout.folder}/".encode() in arguments or (process / "cwd").readlink() == layout.folder
    except OSError:
        return False
