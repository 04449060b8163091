"""A namespace as a platform team sets it up: policies, tainted nodes, a quota, and a sidecar in every pod.

The policies are of both kinds: a webhook with a CA of its own, whose messages look like Kyverno's, and
ValidatingAdmissionPolicies. All of them hold in one namespace only; taints hold in the whole test cluster.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import functools
import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from tests.cluster.bed.cluster import Bed
from tests.cluster.objects import pod
from tests.helpers.until import until

Object = dict[str, Any]
ANNOTATION: Final = "company.example/cost-center"
LABEL: Final = "team"
PRIORITY: Final = "company-batch"
TAINT: Final = "dedicated=ml:NoSchedule"
QUOTA: Final = {"limits.cpu": "24", "limits.memory": "48Gi", "pods": "12"}
SIDECAR: Final = "mesh"
ADMISSION: Final = "admissionregistration.k8s.io/v1"
CONTAINERS: Final = "(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : []))"
POLICIES: Final = {
    "read-only-root": (
        f"{CONTAINERS}.all(c, has(c.securityContext) && has(c.securityContext.readOnlyRootFilesystem) && "
        "c.securityContext.readOnlyRootFilesystem)",
        "every container must set securityContext.readOnlyRootFilesystem: true",
    ),
    "priority": (
        f"has(object.spec.priorityClassName) && object.spec.priorityClassName == '{PRIORITY}'",
        f"pods of this namespace must set spec.priorityClassName: {PRIORITY}",
    ),
}
"""Expression and message of the ValidatingAdmissionPolicies, by name."""
WAIT_SECONDS: Final = 300.0
RUNS_ON: Final = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("mesh runs", flush=True)
while True:
    time.sleep(1)
"""


def sidecar(bed: Bed, *, is_native: bool) -> Object:
    """Returns the sidecar, which runs until its pod ends and satisfies the policies itself."""
    amounts = {"cpu": "100m", "memory": "64Mi"}
    return {
        "name": SIDECAR,
        "image": bed.image,
        "command": [bed.python, "-c", RUNS_ON],
        "resources": {"limits": amounts, "requests": amounts},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        **({"restartPolicy": "Always"} if is_native else {}),
    }


def injected(pod: Object, added: Object) -> list[Object]:
    """Returns the JSON patch that adds a sidecar to a pod."""
    where = "initContainers" if "restartPolicy" in added else "containers"
    if any(one["name"] == added["name"] for one in pod["spec"].get(where, ())):
        return []
    if where not in pod["spec"]:
        return [{"op": "add", "path": f"/spec/{where}", "value": [added]}]
    return [{"op": "add", "path": f"/spec/{where}/-", "value": added}]


def violations(pod: Object) -> str:
    """Returns the message about what a pod lacks, in the words of Kyverno; empty if it lacks nothing."""
    meta, lacks = pod["metadata"], {}
    if not meta.get("annotations", {}).get(ANNOTATION):
        path = f"/metadata/annotations/{ANNOTATION}/"
        lacks["require-cost-center"] = (
            f"the annotation {ANNOTATION} is required. rule cost-center failed at path {path}"
        )
    if not meta.get("labels", {}).get(LABEL):
        path = f"/metadata/labels/{LABEL}/"
        lacks["require-team"] = f"the label {LABEL} is required. rule team failed at path {path}"
    if not lacks:
        return ""
    rules = "\n".join(f"{name}:\n  check: 'validation error: {text}'" for name, text in lacks.items())
    who = f"Pod/{meta.get('namespace', '')}/{meta.get('name') or meta.get('generateName', '')}"
    return f"\n\nresource {who} was blocked due to the following policies \n\n{rules}\n"


class _Review(BaseHTTPRequestHandler):
    """Answers AdmissionReviews: `/validate` and `/mutate`."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        request = review["request"]
        answer: Object = {"uid": request["uid"], "allowed": True}
        added = self.server.added  # type: ignore[attr-defined]
        if self.path.startswith("/mutate"):
            patch = json.dumps(injected(request["object"], added)).encode()
            answer |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
        elif why := violations(request["object"]):
            answer |= {"allowed": False, "status": {"message": why, "code": 400}}
        body = json.dumps({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": answer}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        return


def _certificate(folder: Path, address: str) -> tuple[Path, str]:
    """Creates a CA and a certificate for an address; returns the file of certificate and key, and the CA as base64."""
    folder.mkdir()
    openssl = functools.partial(subprocess.run, cwd=folder, check=True, capture_output=True)
    (folder / "tls.ext").write_text(f"subjectAltName=IP:{address}\nextendedKeyUsage=serverAuth\n")
    new = ["-newkey", "rsa:2048", "-nodes", "-subj"]
    openssl(["openssl", "req", "-x509", *new, "/CN=company", "-days", "2", "-keyout", "ca.key", "-out", "ca.crt"])
    openssl(["openssl", "req", *new, "/CN=policies", "-keyout", "tls.key", "-out", "tls.csr"])
    signing = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "tls.ext"]
    openssl(["openssl", "x509", "-req", "-in", "tls.csr", *signing, "-out", "tls.crt"])
    (folder / "tls.pem").write_text((folder / "tls.key").read_text() + (folder / "tls.crt").read_text())
    return folder / "tls.pem", base64.b64encode((folder / "ca.crt").read_bytes()).decode()


@contextlib.contextmanager
def _served(folder: Path, address: str, added: Object | None) -> Iterator[tuple[str, str]]:
    """Serves the webhooks over TLS; yields their address and the CA."""
    pem, authority = _certificate(folder, address)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with ThreadingHTTPServer((address, 0), _Review) as server:
        server.added = added  # type: ignore[attr-defined]
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"https://{address}:{server.server_port}", authority
        finally:
            server.shutdown()
            thread.join()


def _webhook(kind: str, namespace: str, address: str, authority: str) -> Object:
    path = "validate" if kind == "Validating" else "mutate"
    hook = {
        "name": "pods.policies.company.example",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "timeoutSeconds": 30,
        "clientConfig": {"url": f"{address}/{path}", "caBundle": authority},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
    }
    return {
        "apiVersion": ADMISSION,
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": f"company-{namespace}"},
        "webhooks": [hook],
    }


def _policies(namespace: str) -> Iterator[Object]:
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    for name, (expression, message) in POLICIES.items():
        meta = {"name": f"{name}-{namespace}"}
        spec: Object = {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [pods]},
            "validations": [{"expression": expression, "message": message}],
        }
        bound: Object = {"policyName": meta["name"], "validationActions": ["Deny"], "matchResources": here}
        yield {"apiVersion": ADMISSION, "kind": "ValidatingAdmissionPolicy", "metadata": meta, "spec": spec}
        yield {"apiVersion": ADMISSION, "kind": "ValidatingAdmissionPolicyBinding", "metadata": meta, "spec": bound}


@contextlib.contextmanager
def company(bed: Bed, namespace: str, folder: Path, *, is_native: bool | None = None) -> Iterator[None]:
    """Makes a namespace of a test cluster a company's. With `is_native`, every pod gets a sidecar: a native one, or an
    ordinary container, which does not end with the pod's other containers.
    """
    added = None if is_native is None else sidecar(bed, is_native=is_native)
    with contextlib.ExitStack() as undone, _served(folder, bed.layout.outside, added) as (address, authority):
        kinds = ("Validating",) if added is None else ("Validating", "Mutating")
        objects = [_webhook(kind, namespace, address, authority) for kind in kinds]
        objects += [*_policies(namespace), _quota(), _priority_class()]
        for made in objects:
            if made["kind"] not in ("ResourceQuota", "PriorityClass"):
                words = (made["kind"], made["metadata"]["name"])
                undone.callback(bed.kubectl, "delete", *words, "--ignore-not-found", "--wait=false")
        bed.apply(*objects, namespace=namespace)
        undone.callback(bed.kubectl, "taint", "nodes", "--all", f"{TAINT.partition('=')[0]}-")
        bed.kubectl("taint", "nodes", "--all", "--overwrite", TAINT)
        _until_in_force(bed, namespace)
        yield


def _quota() -> Object:
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team"}, "spec": {"hard": QUOTA}}


def _priority_class() -> Object:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": PRIORITY},
        "value": 1000,
    }


def _until_in_force(bed: Bed, namespace: str) -> None:
    """Waits until the API server applies each ValidatingAdmissionPolicy, which it does with a delay."""
    allowed = pod(bed, "allowed", "pass", priorityClassName=PRIORITY)
    allowed["metadata"] |= {"annotations": {ANNOTATION: "1"}, "labels": {LABEL: "x"}}
    [container] = allowed["spec"]["containers"]
    container["securityContext"]["readOnlyRootFilesystem"] = True
    container["resources"] = {"limits": {"cpu": "1", "memory": "64Mi"}}
    writes, unimportant = copy.deepcopy(allowed), copy.deepcopy(allowed)
    del writes["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"]
    del unimportant["spec"]["priorityClassName"]

    def refusal(made: Object) -> str:
        try:
            bed.kubectl("create", "-n", namespace, "--dry-run=server", "-f", "-", stdin=json.dumps(made))
        except subprocess.CalledProcessError as refused:
            return str(refused.stderr)
        return ""

    for made, name in ((writes, "read-only-root"), (unimportant, "priority")):
        until(lambda: POLICIES[name][1] in refusal(made), lambda: f"{name}: {refusal(made)}", WAIT_SECONDS)  # noqa: B023
    assert refusal(allowed) == ""
