"""Nodes with separate networks are isolated from other runs and the host, have a limited rate, and are always
removed.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines.local.warm.forks import trust
from tests.helpers import machine
from tests.helpers.until import until
from tests.statuses import cause_of

from windlass.engines import netns
from windlass.engines.local.engine import LocalEngine
from windlass.engines.local.facts import Facts, read_facts
from windlass.engines.local.plan import plan
from windlass.engines.local.warm_pool import WarmPool
from windlass.errors import EngineError, NoSuchRun, PlanError
from windlass.plan.plan import Plan
from windlass.plan.steps import NetworkStep, Step
from windlass.runs.logs import RunLogs
from windlass.runs.phase import Phase
from windlass.runs.record import Status
from windlass.runs.store import Store
from windlass.spec.job import Job
from windlass.spec.targets import LocalTarget

SCRIPTS = Path(__file__).parents[1] / "scripts"
PATIENCE_SECONDS = 240.0
OWN = f"net-{uuid.uuid4().hex[:6]}"
"""Prefix of the run ids of this process: networks are found by the id, and several processes may run these tests."""
MAY = os.geteuid() == 0 and shutil.which("ip", path=netns.search_path(os.environ.get("PATH"))) is not None
needs_root = pytest.mark.skipif(not MAY, reason="networks are made by root, with iproute2")


def facts_of(job: Job, home: Path) -> Facts:
    environ = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "CONDA_PREFIX")}
    return read_facts(job, base=SCRIPTS, home=home, environ=environ)


def plan_of(home: Path, run_id: str, run: str, *, local: dict[str, Any] | None = None, **fields: Any) -> Plan:
    job = Job(name="net", run=run, local={"netns": True, **(local or {})}, **{"nodes": 2, **fields})
    return plan(job, LocalTarget(name="local"), facts_of(job, home), run_id)


def names(run_id: str) -> list[str]:
    """Returns the namespaces that a run has now."""
    return sorted(path.name for path in netns.FOLDER.glob(f"wl-{run_id}-??????-*"))


def host_network() -> list[str]:
    """Returns devices, queues, addresses, routes and mounts of the host, without the namespaces of other tests."""
    commands = ("ip -brief link", "tc qdisc show", "ip -brief address", "ip route")
    path = netns.search_path(os.environ.get("PATH"))
    shown = [
        subprocess.run(command.split(), env={"PATH": path}, capture_output=True, text=True, check=True).stdout
        for command in commands
    ]
    beside = ("tmpfs /", "failing /")  # small and failing disks of tests that run in parallel
    mounts = [
        line
        for line in Path("/proc/self/mounts").read_text().splitlines()
        if str(netns.FOLDER) not in line and not line.startswith(beside)
    ]
    return [*shown, *mounts]


class House:
    """Separate records, and the runs that were started with them."""

    def __init__(self, home: Path, prefix: str) -> None:
        self.home = home
        self.prefix = prefix
        self.store = Store(home)
        self.engine = LocalEngine(self.store)
        self.started: list[str] = []

    def start(self, run: str, **fields: Any) -> str:
        run_id = f"{self.prefix}-{len(self.started)}"
        self.engine.submit(plan_of(self.home, run_id, run, **fields))
        self.started.append(run_id)
        return run_id

    def wait(self, run_id: str) -> Status:
        status = self.engine.wait(run_id, PATIENCE_SECONDS)
        assert status.phase.is_terminal, self.text(run_id)
        return status

    def finish(self, run: str, **fields: Any) -> tuple[Status, str]:
        run_id = self.start(run, **fields)
        return self.wait(run_id), run_id

    def text(self, run_id: str) -> str:
        return "".join(line.text + "\n" for line in RunLogs(self.store.run_dir(run_id)).read())

    def sleeper(self, **fields: Any) -> str:
        """Starts a run of two nodes that sleep, and returns its id."""
        run_id = self.start("behaviours.py sleep 120", code="..", **fields)
        until(lambda: self.text(run_id).count("ready\n") == 2)
        return run_id

    def supervisor(self, run_id: str) -> int:
        return int((self.store.run_dir(run_id) / "supervisor.pid").read_text().split()[0])

    def nodes(self, run_id: str) -> list[int]:
        return [event.data["pid"] for event in self.store.events(run_id) if event.kind == "node"]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    home = tmp_path_factory.mktemp("home")
    house = House(home, OWN)
    yield house
    for run_id in house.started:
        house.engine.stop(run_id, now=True)
    for run_id in house.started:
        house.engine.wait(run_id, PATIENCE_SECONDS)
    house.store.close()
    WarmPool(home).stop()


# -- what is to be made -----------------------------------------------------------------------------------------------


def test_the_network_of_a_run_is_plain_data() -> None:
    network = netns.describe("digits-7f3k2", "/home/ada/.windlass", 2, "1gbit")
    assert network == netns.describe("digits-7f3k2", "/home/ada/.windlass", 2, "1gbit")
    assert Step.from_json(json.loads(json.dumps(network.to_json()))) == network
    assert [(node.host, node.address) for node in network.nodes] == [
        ("node-0", "10.77.0.1"),
        ("node-1", "10.77.0.2"),
    ]


def test_every_device_is_made_inside_a_namespace_of_the_run() -> None:
    network = netns.describe("digits-7f3k2", "/home", 3, "1gbit")
    own = set(netns._names(network))
    assert len(own) == 4
    for command in [*network.make, *network.remove]:
        if command[1] == "netns":
            assert command[2] in ("add", "del")
            assert command[3] in own
        else:
            assert command[:2] in (("ip", "-n"), ("tc", "-n"))
            assert command[2] in own


def test_device_names_are_valid_for_kernel() -> None:
    network = netns.describe("a" * 46, "/home", 999, "1gbit")
    words = {word for command in network.make for word in command if re.fullmatch(r"(node|br|eth)\d+", word)}
    assert max(map(len, words)) <= 15
    assert max(len(name) for name in netns._names(network)) <= 255


def test_same_run_id_in_another_home_has_another_network() -> None:
    one, other = (set(netns._names(netns.describe("case-0", home, 2, None))) for home in ("/a", "/b"))
    assert not one & other


def test_more_than_255_nodes_have_addresses() -> None:
    network = netns.describe("large", "/home", 600, None)
    assert len({node.address for node in network.nodes}) == 600
    assert netns.node_specs(network)[0].hosts["node-0"] == "10.77.0.1"


def test_each_attempt_has_another_rendezvous_port() -> None:
    assert len({netns.rendezvous_port(attempt) for attempt in range(1, 1001)}) == 1000


# -- refusals ---------------------------------------------------------------------------------------------------------


def blockers(tmp_path: Path, facts: dict[str, Any], **fields: Any) -> dict[str, str]:
    job = Job(name="net", run="allreduce.py", local={"netns": True}, **{"nodes": 2, **fields})
    known = dataclasses.replace(
        facts_of(job, tmp_path), missing_network_tools=frozenset(), missing_capabilities=frozenset()
    )
    made = plan(job, LocalTarget(name="local"), dataclasses.replace(known, **facts), "net-0")
    return {note.code: f"{note.message}: {note.fix}" for note in made.notes if note.blocks}


def test_missing_tools_are_named_with_what_to_install(tmp_path: Path) -> None:
    found = blockers(tmp_path, {"missing_network_tools": frozenset({"tc"})})
    assert "tc not found" in found["netns-tools"]
    assert "iproute2" in found["netns-tools"]


def test_missing_rights_are_named_with_how_to_get_them(tmp_path: Path) -> None:
    found = blockers(tmp_path, {"missing_capabilities": frozenset({"NET_ADMIN"})})
    assert "NET_ADMIN" in found["netns-rights"]
    assert "sudo" in found["netns-rights"]


def test_more_nodes_than_bridge_ports_are_refused(tmp_path: Path) -> None:
    assert list(blockers(tmp_path, {}, nodes=netns.MAX_NODES + 1)) == ["netns-nodes"]


def test_network_facts_are_not_read_for_jobs_without_networks(tmp_path: Path) -> None:
    job = Job(name="net", run="allreduce.py")
    assert facts_of(job, tmp_path).missing_capabilities == frozenset()
    assert not plan(job, LocalTarget(name="local"), facts_of(job, tmp_path), "net-0").every(NetworkStep)


def without_rights() -> None:
    """Drops capabilities in a child before its program starts, leaving those of root in a container without
    added ones.
    """
    pr_capbset_drop = 24
    libc = ctypes.CDLL(None)
    for bit in (12, 21):
        libc.prctl(pr_capbset_drop, bit, 0, 0, 0)


@needs_root
def test_process_without_capabilities_is_refused_before_anything_is_created(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    command = [str(Path(sys.executable).with_name("windlass")), "run", str(script), "--nodes", "2"]
    command += ["--set", "local.netns=true"]
    environ = {**os.environ, "WINDLASS_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=60, preexec_fn=without_rights, check=False
    )
    assert done.returncode == PlanError.exit_code
    assert "needs root (here without NET_ADMIN and SYS_ADMIN)" in done.stderr
    assert "sudo" in done.stderr
    assert not list((tmp_path / "home").glob("runs/*"))


@needs_root
def test_kernel_without_htb_is_reported_and_nothing_is_left(tmp_path: Path) -> None:
    network = netns.describe(f"{OWN}-no-shape", str(tmp_path), 2, "1gbit")
    make = tuple(tuple(word.replace("htb", "nosuchq") for word in command) for command in network.make)
    with pytest.raises(EngineError) as caught:
        netns.make(network.replace(make=make), tmp_path)
    assert "leave local.rate out" in caught.value.hint
    assert names(f"{OWN}-no-shape") == []


@needs_root
def test_a_node_that_cannot_enter_its_network_fails_the_run_at_once(house: House, tmp_path: Path) -> None:
    made = plan_of(house.home, f"{OWN}-no-way-in", "behaviours.py sleep 60", code="..")
    there, absent = made.nodes.networks
    networks = (there, absent.replace(namespace=str(tmp_path / "nowhere")))
    house.started.append(f"{OWN}-no-way-in")
    house.engine.submit(dataclasses.replace(made, nodes=made.nodes.replace(networks=networks)))
    status = house.wait(f"{OWN}-no-way-in")
    assert (status.phase, status.exit_code) == (Phase.FAILED, 127)
    assert "could not start" in cause_of(status).summary
    assert names(f"{OWN}-no-way-in") == []


# -- what a rank sees -------------------------------------------------------------------------------------------------


@needs_root
@pytest.mark.parametrize("start", ["warm", "cold"])
def test_each_node_has_its_own_host_name_and_address(house: House, start: str) -> None:
    trust(house.home, "json")
    status, run_id = house.finish("where_on_the_net.py", nodes=3, procs_per_node=2, start=start, warm=["json"])
    assert status.phase is Phase.SUCCEEDED, house.text(run_id)
    seen = {int(rank["RANK"]): rank for rank in map(json.loads, house.text(run_id).splitlines())}
    assert {event.data["start"] for event in house.store.events(run_id) if event.kind == "node"} == {start}, [
        event.data for event in house.store.events(run_id) if event.kind == "warning"
    ]
    assert sorted(seen) == list(range(6))
    for number, rank in seen.items():
        node = number // 2
        assert rank["NODE_RANK"] == str(node)
        assert rank["host"] == f"node-{node}"
        assert rank["address"] == f"10.77.0.{node + 1}"
        assert (rank["MASTER_ADDR"], rank["MASTER_PORT"]) == ("10.77.0.1", "29500")
        assert rank["GLOO_SOCKET_IFNAME"] == rank["NCCL_SOCKET_IFNAME"] == "eth0"
        assert rank["devices"] == ["eth0", "lo"]
        assert rank["loopback"] == "127.0.0.1"
        assert rank["by_name"] == {"localhost": "127.0.0.1", "node-0": "10.77.0.1", "node-1": "10.77.0.2"}
    namespaces = [{seen[rank]["namespace"] for rank in (2 * node, 2 * node + 1)} for node in range(3)]
    assert [len(found) for found in namespaces] == [1, 1, 1]
    assert len(set().union(*namespaces)) == 3


@pytest.mark.slow
@needs_root
def test_addresses_are_in_record_and_output_of_commands(house: House) -> None:
    _, run_id = house.finish("where_on_the_net.py", local={"rate": "1gbit"}, warm=["json"])
    told = [event.data for event in house.store.events(run_id) if event.kind == "network"]
    assert [(data["rate"], [node["address"] for node in data["nodes"]]) for data in told] == [
        ("1gbit", ["10.77.0.1", "10.77.0.2"])
    ]
    environ = {**os.environ, "WINDLASS_HOME": str(house.home)}
    for words in (["status", run_id], ["events", run_id], ["status", run_id, "-o", "json"]):
        command = [str(Path(sys.executable).with_name("windlass")), *words]
        shown = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=True).stdout
        assert "10.77.0.2" in shown


@needs_root
def test_fixed_port_may_be_in_use_on_host(house: House) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, run_id = house.finish("where_on_the_net.py", local={"port": port}, warm=["json"])
    assert status.phase is Phase.SUCCEEDED
    assert {json.loads(line)["MASTER_PORT"] for line in house.text(run_id).splitlines()} == {str(port)}


@pytest.mark.slow
@needs_root
@pytest.mark.parametrize("start", [pytest.param("warm", marks=pytest.mark.nightly), "cold"])
def test_concurrent_runs_have_same_addresses_but_are_isolated(house: House, start: str) -> None:
    runs = [house.start(f"allreduce.py {first} well", start=start) for first in (10, 100)]
    assert [house.wait(run_id).phase for run_id in runs] == [Phase.SUCCEEDED] * 2, [house.text(run) for run in runs]
    for run_id, total in zip(runs, (21, 201), strict=True):
        assert house.text(run_id).count(f"step 5 sum {total}\n") == 2


# -- the link ---------------------------------------------------------------------------------------------------------

LINK = """
import os, socket, time
rank = int(os.environ["RANK"])
address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    with socket.create_server((address, port)) as server:
        connection, _ = server.accept()
        start, received = time.perf_counter(), 0
        while piece := connection.recv(1 << 16):
            received += len(piece)
        print("seconds", time.perf_counter() - start, received, flush=True)
else:
    while True:
        try:
            connection = socket.create_connection((address, port))
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    connection.sendall(bytes(1_500_000))
    connection.close()
"""


def seconds_of_link(house: House, folder: Path, **local: str) -> float:
    (folder / "link.py").write_text(LINK)
    status, run_id = house.finish("link.py", code=str(folder), local=local, warm=["socket"])
    assert status.phase is Phase.SUCCEEDED, house.text(run_id)
    word, seconds, received = house.text(run_id).split()
    assert (word, received) == ("seconds", "1500000")
    return float(seconds)


@pytest.mark.slow
@needs_root
def test_rate_limits_the_link(house: House, tmp_path: Path) -> None:
    """12 Mbit at 10 Mbit/s take at least 1.2 s on any machine; without a limit, they take milliseconds."""
    assert seconds_of_link(house, tmp_path, rate="10mbit") > 1.0
    until(lambda: seconds_of_link(house, tmp_path) < 0.5)  # repeated because a busy machine may take longer


def can_reach(run_id: str, node: int, address: str) -> bool:
    """Whether a node can reach another: the kernel of a reachable node refuses connections to an unused port."""
    (inside,) = [name for name in names(run_id) if name.endswith(f"-node-{node}")]
    program = f"import socket; socket.create_connection(('{address}', 9), timeout=0.5)"
    done = subprocess.run(
        ["ip", "netns", "exec", inside, sys.executable, "-c", program],
        env={"PATH": netns.search_path(os.environ.get("PATH"))},
        capture_output=True,
        text=True,
        check=False,
    )
    return "ConnectionRefusedError" in done.stderr


@pytest.mark.slow
@needs_root
def test_a_node_can_be_cut_off_and_restored(house: House) -> None:
    run_id = house.sleeper()
    until(lambda: can_reach(run_id, 0, "10.77.0.2"))
    netns.cut(run_id, 1)
    assert not can_reach(run_id, 0, "10.77.0.2")
    assert not can_reach(run_id, 1, "10.77.0.1")
    netns.restore(run_id, 1)
    until(lambda: can_reach(run_id, 0, "10.77.0.2"))
    assert not can_reach(run_id, 0, "192.0.2.1")  # there is no route out
    with pytest.raises(EngineError):
        netns.cut(run_id, 7)
    house.engine.stop(run_id, now=True)
    house.wait(run_id)
    with pytest.raises(NoSuchRun):
        netns.cut(run_id, 1)


# -- nothing is left --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@needs_root
def test_no_network_is_left_after_success_failure_restart_or_stop(house: House) -> None:
    before = host_network()
    ended = [
        house.finish("behaviours.py leave 0", code="..", local={"rate": "1gbit"}),
        house.finish("behaviours.py one_leaves 1 3", code=".."),
        house.finish("behaviours.py fail_until 2", code="..", restarts=1),
    ]
    sleeper = house.sleeper()
    assert len(names(sleeper)) == 3
    house.engine.stop(sleeper)
    ended.append((house.wait(sleeper), sleeper))
    assert [status.phase for status, _ in ended] == [Phase.SUCCEEDED, Phase.FAILED, Phase.SUCCEEDED, Phase.STOPPED]
    assert [names(run_id) for _, run_id in ended] == [[]] * 4
    assert host_network() == before


@needs_root
def test_network_outlives_killed_supervisor_and_is_removed_at_end(house: House) -> None:
    run_id = house.sleeper()
    os.kill(house.supervisor(run_id), signal.SIGKILL)
    until(lambda: house.engine.status(run_id).phase is Phase.TRAINING)  # the record may lag behind the ranks
    assert len(names(run_id)) == 3
    until(lambda: can_reach(run_id, 0, "10.77.0.2"))
    house.engine.stop(run_id)
    assert house.wait(run_id).phase is Phase.STOPPED
    assert names(run_id) == []


@needs_root
def test_next_command_removes_network_after_all_processes_were_killed(house: House) -> None:
    before = host_network()
    run_id = house.sleeper(local={"rate": "100mbit"})
    for pid in (house.supervisor(run_id), *house.nodes(run_id)):
        machine.kill(pid)
    assert len(names(run_id)) == 3
    until(lambda: house.engine.status(run_id).phase.is_terminal)
    assert house.engine.status(run_id).phase is Phase.LOST
    assert names(run_id) == []
    assert host_network() == before


@needs_root
def test_network_is_created_once_and_again_if_incomplete(tmp_path: Path) -> None:
    network = netns.describe(f"{OWN}-twice", str(tmp_path), 2, "1gbit")
    try:
        assert netns.make(network, tmp_path)
        assert not netns.make(network, tmp_path)
        subprocess.run(["ip", "netns", "del", network.nodes[1].namespace], check=True)
        assert netns.make(network, tmp_path)
        assert len(names(f"{OWN}-twice")) == 3
    finally:
        assert netns.remove(network) == []
    assert netns.remove(network) == []
    assert names(f"{OWN}-twice") == []
