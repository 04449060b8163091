"""The programs of a control plane: their commands, and the files that they read."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from typing import Any, Final

from tests.cluster.bed import host, users
from tests.cluster.bed.build import program
from tests.cluster.bed.layout import ROOT, SERVICES, Layout
from tests.helpers.golang import CACHE

ETCD = "http://127.0.0.1:2379"
COREFILE = """.:53 {{
    bind {address}
    errors
    ready {address}:8181
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {kubeconfig}
        ttl 0
    }}
}}
"""
"""No cache: a name that was requested just before its pod appears would stay unknown for seconds."""
AUDIT: Final[Mapping[str, Any]] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
        {"level": "None"},
    ],
}
"""Audit policy that logs only requests of pods with a service account, which are mostly supervisors."""
FAST = ["--kube-api-qps=300", "--kube-api-burst=600", "--leader-elect=false"]
"""Higher rates: with the default of 20 requests a second, a Job of 512 pods takes 25 s to create them."""


def start(layout: Layout, name: str, argv: list[str], env: Mapping[str, str] | None = None) -> None:
    """Makes the supervisor run a program until it is stopped."""
    given = {"PATH": host.PATH, "HOME": str(layout.folder), "LANG": "C.UTF-8", **(env or {})}
    host.order(layout, do="start", name=name, argv=argv, env=given, log=str(layout.logs / f"{name}.log"))


def start_again(layout: Layout, name: str) -> None:
    """Starts a stopped program with its earlier command."""
    host.order(layout, do="start", name=name)


def stop(layout: Layout, name: str, number: int) -> None:
    """Stops a program with a signal, and waits until it has exited; it stays down until started again."""
    host.order(layout, do="stop", name=name, signal=number)
    host.wait_for(lambda: not host.order(layout, do="list")[name], f"{name} to end")


def write_files(layout: Layout) -> None:
    """Writes all files that the control plane reads, except the keys."""
    folder = layout.folder
    (folder / "tokens.csv").write_text(users.token_file())
    (folder / "tokens.csv").chmod(0o600)
    layout.kubeconfig.write_text(users.kubeconfig(layout))
    (folder / "audit-policy.json").write_text(json.dumps(AUDIT))
    (folder / "Corefile").write_text(COREFILE.format(address=layout.address, kubeconfig=layout.kubeconfig))


def etcd(layout: Layout) -> list[str]:
    return [
        program("server"),
        f"--data-dir={layout.folder / 'etcd'}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={ETCD}",
        f"--advertise-client-urls={ETCD}",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--logger=zap",
        "--log-level=warn",
    ]


def api_server(layout: Layout) -> list[str]:
    pki = layout.pki
    return [
        program("kube-apiserver"),
        f"--etcd-servers={ETCD}",
        "--bind-address=0.0.0.0",
        "--secure-port=443",
        f"--advertise-address={layout.address}",
        f"--tls-cert-file={pki / 'tls.crt'}",
        f"--tls-private-key-file={pki / 'tls.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--service-account-key-file={pki / 'sa.pub'}",
        f"--service-account-signing-key-file={pki / 'sa.key'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-cluster-ip-range={SERVICES}",
        "--authorization-mode=Node,RBAC",
        f"--token-auth-file={layout.folder / 'tokens.csv'}",
        "--allow-privileged=true",
        "--kubelet-preferred-address-types=InternalIP",
        # Without kube-proxy, webhooks are called at the endpoint addresses of their Services.
        "--enable-aggregator-routing=true",
        f"--audit-policy-file={layout.folder / 'audit-policy.json'}",
        f"--audit-log-path={layout.audit}",
        "--audit-log-maxsize=200",
        "--audit-log-maxbackup=1",
    ]


def controller_manager(layout: Layout) -> list[str]:
    return [
        program("kube-controller-manager"),
        f"--kubeconfig={layout.kubeconfig}",
        *FAST,
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={layout.pki / 'sa.key'}",
        f"--root-ca-file={layout.pki / 'ca.crt'}",
        # Detects a lost node after 10 s instead of 50.
        "--node-monitor-period=1s",
        "--node-monitor-grace-period=10s",
    ]


def scheduler(layout: Layout) -> list[str]:
    return [program("kube-scheduler"), f"--kubeconfig={layout.kubeconfig}", *FAST]


def coredns(layout: Layout) -> list[str]:
    return [program("coredns"), "-conf", str(layout.folder / "Corefile")]


def operator_environment(layout: Layout, namespace: str) -> dict[str, str]:
    """Returns the environment of an operator, which looks for its certificate in the folder for temporary files."""
    return {
        "SYSTEM_NAMESPACE": namespace,
        "SOLD_OUT": str(layout.sold_out),
        "KUBECONFIG": str(layout.kubeconfig),
        "KUBE_FEATURE_WatchListClient": "false",
        "TMPDIR": str(layout.folder / "tmp"),
    }


def helper(layout: Layout, name: str) -> list[str]:
    """Returns the command of a helper program: a module of this folder with the index of its test cluster."""
    return [sys.executable, "-m", f"tests.cluster.bed.{name}", str(layout.index)]


def helper_environment() -> dict[str, str]:
    """Returns an environment in which a helper finds the same test cluster, though its home differs."""
    return {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(CACHE.parent)}


def place_certificates(layout: Layout) -> None:
    target = layout.certificates
    target.mkdir(parents=True, exist_ok=True)
    for name in ("tls.crt", "tls.key"):
        shutil.copy(layout.pki / name, target)
