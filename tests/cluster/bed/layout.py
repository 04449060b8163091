"""Folders, addresses and names of a test cluster, by its index."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.helpers.golang import CACHE

CODE = Path(__file__).resolve().parent
ROOT = CODE.parents[2]

MOST_BEDS = 8
"""Maximum number of test clusters in parallel; the certificate contains the addresses of all."""
API_ADDRESS = "10.96.0.1"
"""ClusterIP of the Service `kubernetes`, an address of the cluster's loopback device, so that kube-proxy is not
needed."""
SERVICES = "10.96.0.0/24"


@dataclass(frozen=True)
class Layout:
    """Paths and addresses of test cluster number `index`."""

    index: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < MOST_BEDS:
            raise ValueError(f"bed {self.index}: beds are numbered 0 to {MOST_BEDS - 1}")

    @cached_property
    def folder(self) -> Path:
        """Folder of all files of this test cluster; removed by `down`."""
        return CACHE / "beds" / str(self.index)

    @property
    def lock(self) -> Path:
        return CACHE / "beds" / f"{self.index}.lock"

    @property
    def users(self) -> Path:
        """Lock file for users of the test cluster: shared or exclusive."""
        path = CACHE / "beds" / f"{self.index}.users"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def operators(self) -> Path:
        """Lock file for starting and stopping operators."""
        return CACHE / "beds" / f"{self.index}.operators.lock"

    def operator_users(self, name: str) -> Path:
        """Returns the lock file for users of an operator."""
        return CACHE / "beds" / f"{self.index}.{name}.users"

    @property
    def borrowed(self) -> Path:
        """Marker file of a test cluster that tests have started and will stop; `make cluster-up` removes it."""
        return self.folder / "borrowed"

    @property
    def control(self) -> Path:
        """Socket on which the first process of the test cluster receives orders."""
        return self.folder / "control.sock"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def audit(self) -> Path:
        """Audit log of requests from pods with a service account, one event per line."""
        return self.logs / "audit.jsonl"

    @property
    def pki(self) -> Path:
        return self.folder / "pki"

    @property
    def certificates(self) -> Path:
        """Folder of operators' certificates, in the folder for temporary files that their environment names."""
        return self.folder / "tmp" / "k8s-webhook-server" / "serving-certs"

    @property
    def images(self) -> Path:
        """Archive of the images that every containerd imports."""
        return self.folder / "images.tar"

    @property
    def sold_out(self) -> Path:
        """File with the names of instance types that Karpenter cannot launch now."""
        return self.folder / "sold-out"

    @property
    def volumes(self) -> Path:
        """Folder of the volumes of claims with the class `bed`, one subfolder each."""
        return self.folder / "volumes"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def ready(self) -> Path:
        """Marker file that `up` writes last; without it, the folder belongs to an interrupted `up`."""
        return self.folder / "ready.json"

    @property
    def link(self) -> str:
        """Network device through which this machine reaches the test cluster."""
        return f"wlbed{self.index}"

    @property
    def cgroup(self) -> str:
        return f"wlbed{self.index}"

    @property
    def outside(self) -> str:
        return f"10.200.{self.index}.1"

    @property
    def address(self) -> str:
        """Address of the control plane, the name server and the first node."""
        return f"10.200.{self.index}.2"

    @property
    def server(self) -> str:
        return f"https://{self.address}:443"

    @property
    def pods(self) -> str:
        return f"10.244.{self.index}.0/24"
