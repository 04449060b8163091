"""Starts a test cluster: environment, seed, control plane, nodes, and helper programs."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tests.cluster.bed import api, build, host, images, programs, seed, users
from tests.cluster.bed.host import BedError, wait_for
from tests.cluster.bed.layout import Layout
from tests.cluster.bed.node import Node
from tests.cluster.bed.operators import JOBSET

HEALTH = {"coredns": (8181, "/ready"), JOBSET.name: JOBSET.health}
"""Port and path of the health endpoint of each program."""
NEEDED = ("containerd", "ctr", "runc", "ip", "openssl", "nsenter", "unshare")


def wait_until_well(layout: Layout, name: str) -> None:
    """Waits until one of the programs of `HEALTH` reports success."""
    port, path = HEALTH[name]
    wait_for(partial(api.answers, layout.address, port, path), name)


def nodes(layout: Layout) -> tuple[Node, Node]:
    """Returns the two nodes: two are needed for spreading, drains and the loss of one."""
    return Node(layout, 1), Node(layout, 2)


def is_whole(layout: Layout) -> bool:
    """Returns whether `up` completed here, and the test cluster has not ended since."""
    return layout.ready.exists() and host.first_process(layout) != 0


def refuse_unfit() -> None:
    """Raises BedError with what this machine lacks."""
    if os.geteuid() != 0:
        raise BedError("bed: namespaces, links and containers are made by root; run it as root")
    missing = [name for name in NEEDED if not host.has(name)]
    if missing:
        raise BedError(f"bed: this machine lacks {', '.join(missing)}; on Debian: bash tools/apt.sh cluster")


def make(layout: Layout) -> None:
    """Creates everything; after a failure, remains and logs are kept for inspection."""
    refuse_unfit()
    if not build.is_built():
        raise BedError("bed: its programs are not built yet; `make cluster-up` builds them (about 10 minutes, once)")
    started = time.monotonic()
    host.remove(layout)
    host.open_shell(layout)
    programs.write_files(layout)
    seeded = seed.sow(layout)
    _start(layout)
    layout.ready.write_text(json.dumps({"seconds": round(time.monotonic() - started, 1), "from_seed": seeded}))


def _start(layout: Layout) -> None:
    pair = nodes(layout)
    programs.start(layout, "etcd", programs.etcd(layout))
    programs.start(layout, "kube-apiserver", programs.api_server(layout))
    for node in pair:
        node.prepare()
        node.start_containerd()
    programs.place_certificates(layout)
    images.write_archive(layout.images, build.program("pause"))
    with ThreadPoolExecutor() as pool:
        list(pool.map(Node.import_images, pair))
    wait_for(users.api(layout).is_ready, "the API server")
    _start_controllers(layout)
    for node in pair:
        node.start_kubelet()
    with ThreadPoolExecutor() as pool:
        list(pool.map(Node.settle, pair))
    _wait_for_helpers(layout)


def _start_controllers(layout: Layout) -> None:
    programs.start(layout, "kube-controller-manager", programs.controller_manager(layout))
    programs.start(layout, "kube-scheduler", programs.scheduler(layout))
    programs.start(layout, "coredns", programs.coredns(layout))
    JOBSET.write_settings(layout)
    programs.start(layout, JOBSET.name, JOBSET.argv(layout), programs.operator_environment(layout, JOBSET.namespace))
    programs.start(layout, "provisioner", programs.helper(layout, "provisioner"), programs.helper_environment())


def _wait_for_helpers(layout: Layout) -> None:
    """Waits until names resolve, JobSets are admitted, and pods have their service account."""
    for name in HEALTH:
        wait_until_well(layout, name)
    account = "/api/v1/namespaces/default/serviceaccounts/default"
    wait_for(lambda: api.calm(lambda: users.api(layout).get(account)), "the first service account")
