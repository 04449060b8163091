"""Makes, once, what every new cluster starts from: its keys, and an etcd that knows the operators' kinds."""

from __future__ import annotations

import base64
import json
import shutil
import signal
from pathlib import Path

from tests.cluster.bed import build, certificates, host, programs, provisioner, users
from tests.cluster.bed.api import Api, ApiError, Object
from tests.cluster.bed.layout import CACHE, CODE, Layout, digest_of

SOURCES = ("seed.py", "certificates.py", "programs.py", "provisioner.py", "users.py", "layout.py")
COLLECTIONS = {
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "MutatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
}


def home() -> Path:
    """The seed of this version of the programs and of the modules that make it."""
    return build.home() / f"seed-{digest_of(*((CODE / name).read_bytes() for name in SOURCES))}"


def sow(layout: Layout) -> bool:
    """Copy the seed into a bed, making it first where there is none; says whether it was there."""
    with build.locked(CACHE / "seed.lock"):
        found = home().is_dir()
        if not found:
            _make(layout)
    for part in ("pki", "etcd"):
        shutil.rmtree(layout.folder / part, ignore_errors=True)
        shutil.copytree(home() / part, layout.folder / part)
    return found


def _make(layout: Layout) -> None:
    """Run etcd and the API server alone: no node and no controller has ever been seen by what is kept."""
    certificates.make(layout.pki)
    programs.start(layout, "etcd", programs.etcd(layout))
    programs.start(layout, "kube-apiserver", programs.api_server(layout))
    client = users.api(layout)
    host.wait_for(client.is_ready, "the API server")
    _fill(client, (layout.pki / "ca.crt").read_bytes())
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


def _fill(client: Api, authority: bytes) -> None:
    client.create("/apis/storage.k8s.io/v1/storageclasses", provisioner.STORAGE_CLASS)
    for namespace, service, port in programs.WEBHOOKS:
        _webhook_service(client, namespace, service, port)
    definitions = []
    for operator in build.INSTALLS:
        for each in json.loads(build.manifests(operator).read_text()):
            _trust(each, base64.b64encode(authority).decode())
            client.create(COLLECTIONS[each["kind"]], each)
            if each["kind"] == "CustomResourceDefinition":
                definitions.append(f"{COLLECTIONS[each['kind']]}/{each['metadata']['name']}")
    host.wait_for(lambda: all(_established(client, path) for path in definitions), "the operators' kinds")


def _established(client: Api, path: str) -> bool:
    conditions = client.get(path).get("status", {}).get("conditions") or []
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


def _trust(each: Object, authority: str) -> None:
    """Have the API server trust our authority wherever it calls an operator."""
    for webhook in each.get("webhooks", ()):
        webhook["clientConfig"]["caBundle"] = authority
    conversion = each.get("spec", {}).get("conversion", {}).get("webhook")
    if conversion:
        conversion["clientConfig"]["caBundle"] = authority


def _webhook_service(client: Api, namespace: str, service: str, port: int) -> None:
    """A Service without selector whose one endpoint is the operator's process."""
    try:
        client.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    except ApiError as problem:
        if problem.code != 409:
            raise
    ports = [{"name": "webhook", "port": 443, "targetPort": port}]
    client.create(f"/api/v1/namespaces/{namespace}/services", {"metadata": {"name": service}, "spec": {"ports": ports}})
    endpoints = {
        "metadata": {"name": service, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "ports": [{"name": "webhook", "port": port}],
        "endpoints": [{"addresses": [programs.WEBHOOK_ADDRESS]}],
    }
    client.create(f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices", endpoints)
