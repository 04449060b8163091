"""Hosts of the emulation reach each other, and isolated hosts nothing else."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import textwrap
from pathlib import Path

import pytest
from tests.engines.sagemaker.twin.jobs import ML, ended, kill, manager_pid, output, request, says
from tests.helpers.ports import quiet_port

from windlass.engines import netns
from windlass.engines.sagemaker.service import Refused
from windlass.engines.sagemaker.twin.service import Twin

MAY = os.geteuid() == 0 and shutil.which("ip", path=netns.search_path(os.environ.get("PATH"))) is not None
needs_networks = pytest.mark.skipif(not MAY, reason="needs root and iproute2")


def networks(home: Path) -> list[str]:
    """Returns the network namespaces of jobs below a folder."""
    stems = [
        netns.describe(job.name, str(job.resolve()), 1, None).bridge for job in (home / "sagemaker-local").iterdir()
    ]
    return [one for one in stems if (netns.FOLDER / one).exists()]


@needs_networks
def test_isolated_hosts_reach_each_other_by_name_and_nothing_else(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        script = f"""getent hosts algo-1 algo-2 | wc -l; ls /sys/class/net | tr '\\n' ' '; echo
                     grep -o '"network_interface_name": "[^"]*"' {ML}/input/config/resourceconfig.json
                     if (: < /dev/tcp/127.0.0.1/{port}) 2> /dev/null; then echo reached; else echo alone; fi"""
        twin = Twin(home, os.environ)
        twin.create(request(home, "net", script, count=2, EnableNetworkIsolation=True))
        found = ended(twin, "net")
    assert found["TrainingJobStatus"] == "Completed", found
    for host in ("algo-1", "algo-2"):
        assert output(twin, "net", host) == ["2", "eth0 lo ", '"network_interface_name": "eth0"', "alone"]
    assert found["WindlassHosts"]["network"] == "isolated"
    assert networks(home) == []


@needs_networks
def test_the_network_of_a_killed_manager_is_removed(home: Path) -> None:
    twin = Twin(home, os.environ)
    twin.create(request(home, "lost", "echo up; while :; do sleep 0.1; done", EnableNetworkIsolation=True))
    says(twin, "lost", "up")
    assert len(networks(home)) == 1
    kill(manager_pid(home, "lost"))
    assert ended(twin, "lost")["TrainingJobStatus"] == "Failed"
    assert networks(home) == []


def test_unavailable_network_isolation_is_refused(home: Path) -> None:
    twin = Twin(home, os.environ, isolation="folders")
    with pytest.raises(Refused, match="need root and iproute2"):
        twin.create(request(home, "net", "true", EnableNetworkIsolation=True))
    assert not (home / "sagemaker-local").exists()


@pytest.mark.slow
def test_two_hosts_train_together_by_gloo(twin: Twin, home: Path) -> None:
    (home / "train.py").write_text(
        textwrap.dedent(
            """
        import json, os
        import torch, torch.distributed as dist
        ml = os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml")
        with open(ml + "/input/config/resourceconfig.json") as file:
            found = json.load(file)
        hosts = found["hosts"]
        rank = hosts.index(found["current_host"])
        os.environ["GLOO_SOCKET_IFNAME"] = found["network_interface_name"]
        dist.init_process_group("gloo", init_method=f"tcp://{hosts[0]}:PORT", rank=rank, world_size=len(hosts))
        total = torch.tensor([rank + 1.0])
        dist.all_reduce(total)
        print("sum", total.item(), flush=True)
        dist.destroy_process_group()
        """
        ).replace("PORT", str(quiet_port()))
    )
    twin.create(request(home, "gloo", f"exec {sys.executable} {home}/train.py", count=2))
    found = ended(twin, "gloo")
    assert found["TrainingJobStatus"] == "Completed", output(twin, "gloo")
    assert [line for line in output(twin, "gloo") if line.startswith("sum")] == ["sum 3.0", "sum 3.0"]
