"""Creates, once, the initial state of every new cluster: its keys, and an etcd with the kinds of JobSet."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

from tests.cluster.bed import build, certificates, host, installing, operators, programs, provisioner, users
from tests.cluster.bed.api import Api
from tests.cluster.bed.layout import CODE, Layout
from tests.helpers.golang import CACHE, digest_of, locked

SOURCES = (
    "seed.py",
    "certificates.py",
    "programs.py",
    "provisioner.py",
    "users.py",
    "layout.py",
    "installing.py",
    "operators.py",
    "machines.py",
)


def home() -> Path:
    """Returns the folder of the seed for this version of the programs and of the modules that create it."""
    return build.home() / f"seed-{digest_of(*((CODE / name).read_bytes() for name in SOURCES))}"


def sow(layout: Layout) -> bool:
    """Copies the seed into a test cluster, and creates it first if it is missing; returns whether it existed."""
    with locked(CACHE / "seed.lock", "make what every cluster starts from"):
        found = home().is_dir()
        if not found:
            _make(layout)
    for part in ("pki", "etcd"):
        shutil.rmtree(layout.folder / part, ignore_errors=True)
        shutil.copytree(home() / part, layout.folder / part)
    return found


def _make(layout: Layout) -> None:
    """Runs etcd and the API server alone, so that the stored state contains no node and no controller."""
    certificates.make(layout.pki)
    programs.start(layout, "etcd", programs.etcd(layout))
    programs.start(layout, "kube-apiserver", programs.api_server(layout))
    client = users.api(layout)
    host.wait_for(client.is_ready, "the API server")
    _fill(client, layout)
    for name in ("kube-apiserver", "etcd"):
        programs.stop(layout, name, signal.SIGTERM)
    unfinished = home().with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    for part in ("pki", "etcd"):
        shutil.copytree(layout.folder / part, unfinished / part)
    for old in build.home().glob("seed-*"):
        if old != unfinished:
            shutil.rmtree(old)
    unfinished.rename(home())


def _fill(client: Api, layout: Layout) -> None:
    client.create("/apis/storage.k8s.io/v1/storageclasses", provisioner.STORAGE_CLASS)
    installing.announce(client, operators.JOBSET, layout)
    installing.define(client, operators.JOBSET, layout)
    installing.hook(client, operators.JOBSET, layout)
