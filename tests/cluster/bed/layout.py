"""Turns the number of a bed into its folders, addresses and names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.helpers.golang import CACHE

CODE = Path(__file__).resolve().parent
ROOT = CODE.parents[2]

MOST_BEDS = 8
"""Beds that may run side by side; the certificate names the addresses of all of them."""
API_ADDRESS = "10.96.0.1"
"""ClusterIP of the Service `kubernetes`; it lies on the loopback device of the bed, so no kube-proxy is needed."""
SERVICES = "10.96.0.0/24"


@dataclass(frozen=True)
class Layout:
    """Where bed number `index` lies, on disk and in the network."""

    index: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < MOST_BEDS:
            raise ValueError(f"bed {self.index}: beds are numbered 0 to {MOST_BEDS - 1}")

    @cached_property
    def folder(self) -> Path:
        """All that this bed writes; removed by `down`."""
        return CACHE / "beds" / str(self.index)

    @property
    def lock(self) -> Path:
        return CACHE / "beds" / f"{self.index}.lock"

    @property
    def users(self) -> Path:
        """Locked by each who uses the bed: shared with others, or alone."""
        path = CACHE / "beds" / f"{self.index}.users"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def operators(self) -> Path:
        """Locked by who starts or stops an operator."""
        return CACHE / "beds" / f"{self.index}.operators.lock"

    def operator_users(self, name: str) -> Path:
        """Locked by each who uses the operator of this name."""
        return CACHE / "beds" / f"{self.index}.{name}.users"

    @property
    def borrowed(self) -> Path:
        """Is there while the bed belongs to tests, and goes with them; `make cluster-up` takes it away."""
        return self.folder / "borrowed"

    @property
    def control(self) -> Path:
        """The socket on which the first process of the bed takes orders."""
        return self.folder / "control.sock"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def audit(self) -> Path:
        """What pods with a service account have asked of the API server, an event a line."""
        return self.logs / "audit.jsonl"

    @property
    def pki(self) -> Path:
        return self.folder / "pki"

    @property
    def certificates(self) -> Path:
        """Where operators look for theirs: below the folder for temporary files that their environment names."""
        return self.folder / "tmp" / "k8s-webhook-server" / "serving-certs"

    @property
    def images(self) -> Path:
        """What every containerd is given."""
        return self.folder / "images.tar"

    @property
    def sold_out(self) -> Path:
        """Names of the instance types that Karpenter cannot have just now."""
        return self.folder / "sold-out"

    @property
    def volumes(self) -> Path:
        """What claims of the class `bed` are made of, a folder each."""
        return self.folder / "volumes"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def ready(self) -> Path:
        """Written last by `up`: without it, what lies here is the rest of an `up` that was killed."""
        return self.folder / "ready.json"

    @property
    def link(self) -> str:
        """The device through which this machine reaches the bed."""
        return f"wlbed{self.index}"

    @property
    def cgroup(self) -> str:
        return f"wlbed{self.index}"

    @property
    def outside(self) -> str:
        return f"10.200.{self.index}.1"

    @property
    def address(self) -> str:
        """Of the control plane, the name server and the first node."""
        return f"10.200.{self.index}.2"

    @property
    def server(self) -> str:
        return f"https://{self.address}:443"

    @property
    def pods(self) -> str:
        return f"10.244.{self.index}.0/24"
