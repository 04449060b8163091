"""One node of a test cluster: containerd and kubelet, with a separate bridge, pod network and cgroup."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.bed import host, images, programs, users
from tests.cluster.bed.api import Object, calm
from tests.cluster.bed.build import program
from tests.cluster.bed.layout import Layout

GPU = "nvidia.com/gpu"
GPUS_PER_NODE = 2
"""Nominal number of GPUs: pods are scheduled by it, and no device exists."""
LABELS = {
    "node1": {
        "node.kubernetes.io/instance-type": "g4dn.xlarge",
        "topology.kubernetes.io/zone": "bed-a",
        "nvidia.com/gpu.product": "Tesla-T4",
    },
    "node2": {
        "node.kubernetes.io/instance-type": "g5.xlarge",
        "topology.kubernetes.io/zone": "bed-b",
        "nvidia.com/gpu.product": "NVIDIA-A10G",
    },
}
REGION = {"topology.kubernetes.io/region": "bed"}
CONTAINERD = """version = 2
root = "{folder}/containerd/root"
state = "{folder}/containerd/state"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.opt",
]
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    base_runtime_spec = "{folder}/runtime.json"
"""


@dataclass(frozen=True)
class Node:
    """Node `number` of a test cluster: the first two are permanent, others are machines that Karpenter has
    requested.
    """

    layout: Layout
    number: int
    called: str = ""
    """Name in the cluster, if it differs from `place`."""

    @property
    def name(self) -> str:
        return self.called or self.place

    @property
    def place(self) -> str:
        """Name of the node's files, programs and pod network."""
        return f"node{self.number}"

    @property
    def folder(self) -> Path:
        return self.layout.folder / self.place

    @property
    def socket(self) -> Path:
        return self.folder / "c.sock"

    @property
    def cgroup(self) -> str:
        return f"{self.layout.cgroup}/{self.place}"

    @property
    def address(self) -> str:
        """Address of the node; all but the first's are on the loopback device, since the nodes share one network
        namespace.
        """
        return self.layout.address if self.number == 1 else f"10.200.{self.layout.index}.{self.number + 4}"

    @property
    def pods(self) -> str:
        """Address range of the node's pods: half of the pod network for each of the first two nodes."""
        if self.number > 2:
            return f"10.245.{self.layout.index}.{(self.number - 3) * 16}/28"
        return f"10.244.{self.layout.index}.{(self.number - 1) * 128}/25"

    @property
    def bridge(self) -> str:
        return f"cni{self.number}"

    @property
    def services(self) -> tuple[str, str]:
        """Names of the two programs in the supervisor."""
        return f"containerd-{self.place}", f"kubelet-{self.place}"

    def prepare(self) -> None:
        """Writes the files of both programs and creates the node's cgroup."""
        for folder in ("cni", "kubelet", "pod-logs", "plugins"):
            (self.folder / folder).mkdir(parents=True, exist_ok=True)
        text = CONTAINERD.format(folder=self.folder, socket=self.socket, pause=images.PAUSE)
        (self.folder / "containerd.toml").write_text(text)
        (self.folder / "runtime.json").write_text(json.dumps(images.runtime_spec()))
        (self.folder / "cni" / "10-bridge.conflist").write_text(json.dumps(self._network()))
        (self.folder / "resolv.conf").write_text(f"nameserver {self.layout.address}\n")
        (self.folder / "kubelet.json").write_text(json.dumps(self._kubelet()))
        host.make_cgroup(self.cgroup)

    def start_containerd(self) -> None:
        argv = ["/usr/bin/containerd", "--config", str(self.folder / "containerd.toml")]
        programs.start(self.layout, self.services[0], argv)

    def import_images(self) -> None:
        """Imports the images into containerd, as soon as it answers."""
        archive = str(self.layout.images)
        client = ["/usr/bin/ctr", "-a", str(self.socket), "-n", "k8s.io"]

        def imported() -> bool:
            if not self.socket.exists():
                return False
            with contextlib.suppress(host.BedError):
                host.inside(self.layout, *client, "images", "import", "--all-platforms", archive)
                return True
            return False

        host.wait_for(imported, f"the containerd of {self.name}")

    def start_kubelet(self) -> None:
        labels = ",".join(f"{key}={value}" for key, value in {**LABELS.get(self.place, {}), **REGION}.items())
        argv = [
            program("kubelet"),
            f"--config={self.folder / 'kubelet.json'}",
            f"--kubeconfig={self.layout.kubeconfig}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
            f"--node-labels={labels}",
            f"--root-dir={self.folder / 'kubelet'}",
            f"--cert-dir={self.folder / 'kubelet' / 'pki'}",
        ]
        programs.start(self.layout, self.services[1], argv)

    def start(self) -> None:
        """Starts both programs, unless they run."""
        self.set_network("up")
        self.start_containerd()
        host.wait_for(self.socket.exists, f"the containerd of {self.name}")
        self.start_kubelet()

    def kill(self) -> None:
        """Ends kubelet, containerd and all pods at once and without reports, like a power failure.

        The network is disconnected first; otherwise the kernel would close the pods' connections, which their peers
        would notice.
        """
        self.set_network("down")
        for service in reversed(self.services):
            programs.stop(self.layout, service, signal.SIGKILL)
        for pid in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        host.thaw(self.cgroup)
        self.socket.unlink(missing_ok=True)

    def add(self, gpus: int) -> None:
        """Starts the machine of a node that already exists in the cluster."""
        host.inside(self.layout, "/sbin/ip", "address", "replace", f"{self.address}/32", "dev", "lo")
        self.prepare()
        self.start_containerd()
        self.import_images()
        self.start_kubelet()
        self.settle(gpus)

    def remove(self) -> None:
        """Stops a machine and removes all its state, so that the next one of this number starts clean."""
        if not self.folder.exists():
            return
        known = host.order(self.layout, do="list")
        if all(service in known for service in self.services):
            self.kill()
        mounts = f"grep -o ' {self.folder}/[^ ]*' /proc/mounts | sort -r | xargs -r umount -l"
        host.inside(self.layout, "/bin/sh", "-c", f"{mounts}; ip link delete {self.bridge} || true")
        shutil.rmtree(self.folder, ignore_errors=True)

    def set_network(self, state: str) -> None:
        """Sets the bridge of the node's pods `up` or `down`; the bridge does not exist before the first pod."""
        if self.bridge in host.inside(self.layout, "/bin/ls", "/proc/sys/net/ipv4/conf").split():
            host.inside(self.layout, "/sbin/ip", "link", "set", self.bridge, state)

    def signal_kubelet(self, number: int) -> None:
        host.order(self.layout, do="signal", name=self.services[1], signal=number)

    def settle(self, gpus: int = GPUS_PER_NODE) -> None:
        """Waits until the node has registered, and sets its GPUs."""
        self.wait_until(ready=True)
        host.wait_for(lambda: calm(lambda: self._has_gpus(gpus)), f"the GPUs of {self.name}")

    def wait_until(self, ready: bool, seconds: float = host.PATIENCE_SECONDS) -> None:
        """Waits until the cluster reports the node as ready, or as not ready."""
        host.wait_for(lambda: calm(lambda: self._is_ready() is ready), f"{self.name} to be ready: {ready}", seconds)

    def _is_ready(self) -> bool:
        conditions = self._object()["status"].get("conditions", ())
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def _has_gpus(self, number: int) -> bool:
        """Sets the GPUs, which a restarted kubelet forgets, until they are allocatable; returns whether they are."""
        count = {GPU: str(number)}
        if self._object()["status"]["allocatable"].get(GPU, "0") == count[GPU]:
            return True
        body = {"status": {"capacity": count, "allocatable": count}}
        users.api(self.layout).patch(f"/api/v1/nodes/{self.name}/status", body)
        return False

    def _object(self) -> Object:
        return users.api(self.layout).get(f"/api/v1/nodes/{self.name}")

    def _processes(self) -> set[int]:
        """Returns the host's ids of the processes of the node's pods and their shims."""
        found: set[int] = set()
        for folder in host.cgroup_folders(self.cgroup):
            with contextlib.suppress(OSError):
                found.update(int(line) for line in (folder / "cgroup.procs").read_text().split())
        return {*found, *host.processes_naming(str(self.socket))}

    def _network(self) -> dict[str, Any]:
        bridge = {
            "type": "bridge",
            "bridge": self.bridge,
            "isDefaultGateway": True,
            "ipMasq": False,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "dataDir": str(self.folder / "addresses"),
                "ranges": [[{"subnet": self.pods}]],
            },
        }
        return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}

    def _kubelet(self) -> dict[str, Any]:
        scarce = {"memory.available": "1%", "nodefs.available": "1%", "imagefs.available": "1%"}
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "address": self.address, "port": 10249 + self.number, "healthzPort": 0, "readOnlyPort": 0,
            "cgroupDriver": "cgroupfs", "cgroupRoot": f"/{self.cgroup}", "failCgroupV1": False,
            "failSwapOn": False, "oomScoreAdj": 0, "makeIPTablesUtilChains": False,
            "clusterDNS": [self.layout.address], "clusterDomain": "cluster.local",
            "resolvConf": str(self.folder / "resolv.conf"),
            "podLogsDir": str(self.folder / "pod-logs"), "volumePluginDir": str(self.folder / "plugins"),
            "serializeImagePulls": False, "registryPullQPS": 0, "eventRecordQPS": 0,
            "nodeLeaseDurationSeconds": 8, "nodeStatusUpdateFrequency": "2s",
            # A full disk of the machine must not evict pods or delete images that cannot be pulled again.
            "evictionHard": scarce, "imageGCHighThresholdPercent": 100,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
        }  # fmt: skip
