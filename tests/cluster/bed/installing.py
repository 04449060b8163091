"""Tells an API server of an operator, and makes it forget the operator again; starts and stops it in a running bed.

What is told is the operator's own: definitions and webhooks from its manifests. It comes and goes with the operator,
rather than lie in every bed: a kind that is there and that no controller serves would be chosen by a program that asks
what the cluster has, and Kueue's webhooks without Kueue keep out every Job and Pod.
"""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Iterable, Iterator
from functools import partial

from tests.cluster.bed import api, build, host, programs, users
from tests.cluster.bed.api import Api, ApiError, Object
from tests.cluster.bed.host import BedError
from tests.cluster.bed.layout import API_ADDRESS, Layout
from tests.cluster.bed.operators import EVERY, Operator
from tests.helpers.golang import locked

UNKNOWN_RUNTIME = "unsupported runtime"
DEFINITION = "CustomResourceDefinition"
COLLECTIONS = {
    DEFINITION: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "MutatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
}
WEBHOOK_ADDRESS = API_ADDRESS
"""Endpoints may not lie in 127.0.0.0/8, so webhooks are reached on the other address of the loopback device."""
MADE = (
    "/api/v1/pods",
    "/api/v1/services",
    "/api/v1/configmaps",
    "/api/v1/secrets",
    "/api/v1/nodes",
    "/apis/batch/v1/jobs",
    "/apis/jobset.x-k8s.io/v1alpha2/jobsets",
)
"""What operators make for the objects of their kinds."""
START_SECONDS = 180.0
CLEAR_SECONDS = 240.0
"""The garbage collector looks for kinds that are new to it every 30 s, and pods may take their time to end."""


def start(layout: Layout, operator: Operator) -> None:
    """Have an operator run in a bed; returns when its kinds are served and its webhooks are asked."""
    build.build(operator.name)
    client = users.api(layout)
    with locked(layout.operators):
        _refuse_two_versions(layout, operator)
        announce(client, operator, layout)
        define(client, operator, layout)
        operator.write_settings(layout)
        environment = programs.operator_environment(layout, operator.namespace)
        programs.start(layout, operator.name, operator.argv(layout), environment)
        if operator.beside:
            helper = programs.helper(layout, operator.beside)
            programs.start(layout, operator.beside, helper, programs.helper_environment())
        host.wait_for(partial(_is_ready, layout, operator), f"{operator.name} to be ready", START_SECONDS)
        # Last: until the operator answers, its webhooks would keep out what they are asked about.
        hook(client, operator, layout)
        host.wait_for(lambda: _asks(client, operator) or not operator.refuses, f"the webhooks of {operator.name}")


def stop(layout: Layout, operator: Operator) -> None:
    """End an operator, and remove its webhooks, its kinds and all objects of them."""
    client = users.api(layout)
    with locked(layout.operators):
        running = [name for name in (operator.name, operator.beside) if name in host.order(layout, do="list")]
        for name in running:
            # One that was killed is needed once more: it may have to let its objects go.
            programs.start_again(layout, name)
        _clear(client, operator)
        for path, _ in _objects(operator, hooks=True):
            client.discard(path)
        host.wait_for(lambda: not _asks(client, operator), f"the webhooks of {operator.name} to be forgotten")
        for name in running:
            programs.stop(layout, name, signal.SIGKILL)
        if operator.leaves:
            operator.leaves(layout)
        client.discard(_lease(operator))
        withdraw(client, [definition for _, definition in _objects(operator, hooks=False)])


def withdraw(client: Api, definitions: Iterable[Object]) -> None:
    """Remove kinds, with all objects of them; returns when they are gone."""
    for definition in definitions:
        path = f"{COLLECTIONS[DEFINITION]}/{definition['metadata']['name']}"
        client.discard(path)
        host.wait_for(partial(api.calm, partial(_is_gone, client, path, definition)), f"{path} to go")


def _refuse_two_versions(layout: Layout, operator: Operator) -> None:
    running = {name for name, process in host.order(layout, do="list").items() if process}
    for other in EVERY:
        if other.kind == operator.kind and other.name != operator.name and other.name in running:
            raise BedError(f"bed: {operator.name}: {other.name} runs in this bed, and has the same kinds")


def announce(client: Api, operator: Operator, layout: Layout) -> None:
    """Make what a cluster has of an operator besides its kinds: a namespace, a Service, a certificate."""
    client.ensure("/api/v1/namespaces", {"metadata": {"name": operator.namespace}})
    if operator.service:
        _webhook_service(client, operator)
    if operator.secret:
        names = ("ca.crt", "ca.key", "tls.crt", "tls.key")
        data = {name: base64.b64encode((layout.pki / name).read_bytes()).decode() for name in names}
        secret = {"metadata": {"name": operator.secret}, "data": data}
        client.ensure(f"/api/v1/namespaces/{operator.namespace}/secrets", secret)


def define(client: Api, operator: Operator, layout: Layout) -> None:
    """Create an operator's kinds, and wait until they are served."""
    made = list(_objects(operator, hooks=False))
    for _, each in made:
        _create(client, operator, each, layout)
    await_established(client, [path for path, _ in made], operator.name)


def await_established(client: Api, paths: Iterable[str], whose: str) -> None:
    """Wait until definitions are served."""
    wanted = list(paths)
    host.wait_for(lambda: all(_is_established(client, path) for path in wanted), f"the kinds of {whose}")


def hook(client: Api, operator: Operator, layout: Layout) -> None:
    """Have the API server ask an operator."""
    for _, each in _objects(operator, hooks=True):
        _create(client, operator, each, layout)


def _objects(operator: Operator, hooks: bool) -> Iterator[tuple[str, Object]]:
    """An operator's definitions, or its webhooks: where each lies, and what it is."""
    for each in json.loads(build.manifests(operator.name).read_text()):
        if (each["kind"] != DEFINITION) is hooks:
            yield f"{COLLECTIONS[each['kind']]}/{each['metadata']['name']}", each


def manifests_of(operator: Operator, layout: Layout) -> Object:
    """All that is installed of an operator, as one list: definitions and webhooks that find it in this bed."""
    every = [each for hooks in (False, True) for _, each in _objects(operator, hooks)]
    for each in every:
        _point(operator, each, layout)
    return {"apiVersion": "v1", "kind": "List", "items": every}


def _create(client: Api, operator: Operator, each: Object, layout: Layout) -> None:
    """Create an object that finds the operator."""
    _point(operator, each, layout)
    client.ensure(COLLECTIONS[each["kind"]], each)


def _point(operator: Operator, each: Object, layout: Layout) -> None:
    """Wherever the API server is to call the operator, it finds it and trusts our authority."""
    called = [*each.get("webhooks", ()), each.get("spec", {}).get("conversion", {}).get("webhook")]
    for one in filter(None, called):
        one["clientConfig"]["caBundle"] = base64.b64encode((layout.pki / "ca.crt").read_bytes()).decode()
        one["clientConfig"]["service"]["namespace"] = operator.namespace


def _is_established(client: Api, path: str) -> bool:
    conditions = client.get(path).get("status", {}).get("conditions") or []
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


def _is_ready(layout: Layout, operator: Operator) -> bool:
    port, path = operator.health
    return api.answers(layout.address, port, path)


def _asks(client: Api, operator: Operator) -> bool:
    """Whether the API server asks an operator's webhooks, seen by what they keep out."""
    if operator.refuses is None:
        return False
    names = [hook["name"] for _, each in _objects(operator, hooks=True) for hook in each["webhooks"]]
    collection, bad = operator.refuses
    try:
        client.create(f"{collection}?dryRun=All", bad)
    except ApiError as problem:
        # Another's may be asked about the same kind: Kueue's are about those of all operators. A Trainer that has just
        # started refuses the kinds of runtimes that it does not know yet.
        return UNKNOWN_RUNTIME not in str(problem) and any(name in str(problem) for name in names)
    return False


def _clear(client: Api, operator: Operator) -> None:
    """Delete all objects of an operator's kinds, and wait until what was made for them is gone.

    The garbage collector keeps for ever what belongs to a kind that is no longer there.
    """
    definitions = [definition for _, definition in _objects(operator, hooks=False)]
    host.wait_for(
        lambda: api.calm(lambda: _delete(client, definitions)), f"the objects of {operator.name} to be deleted"
    )
    kinds = {definition["spec"]["names"]["kind"] for definition in definitions}
    host.wait_for(
        lambda: api.calm(lambda: not _owned(client, kinds)), f"what {operator.name} made to go", CLEAR_SECONDS
    )


def _delete(client: Api, definitions: list[Object]) -> bool:
    """Delete all objects of these kinds; a server that is told of a kind has to be asked again."""
    for definition in definitions:
        with api.suppressed(404):
            for each in client.get(_collection(definition))["items"]:
                client.discard(_path(definition, each))
    return True


def _owned(client: Api, kinds: set[str]) -> bool:
    """Whether anything belongs to an object of these kinds."""
    found = (each for collection in MADE for each in client.get(collection)["items"])
    return any(owner["kind"] in kinds for each in found for owner in each["metadata"].get("ownerReferences", ()))


def _is_gone(client: Api, path: str, definition: Object) -> bool:
    """Whether a definition has gone with its objects. Nothing holds these back: who would let them go runs no more."""
    with api.suppressed(404):
        client.get(path)
        _let_go(client, definition)
        return False
    return True


def _let_go(client: Api, definition: Object) -> None:
    """Take from the objects of a kind what they would wait for."""
    with api.suppressed(404):
        for each in client.get(_collection(definition))["items"]:
            client.patch(_path(definition, each), {"metadata": {"finalizers": None}})


def _path(definition: Object, each: Object) -> str:
    meta = each["metadata"]
    return f"{_collection(definition, meta.get('namespace', ''))}/{meta['name']}"


def _collection(definition: Object, namespace: str = "") -> str:
    """All objects of a kind, in the version that is stored: to read any other, the operator would be asked."""
    spec = definition["spec"]
    version = next(each["name"] for each in spec["versions"] if each["storage"])
    within = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/{spec['group']}/{version}{within}/{spec['names']['plural']}"


def _lease(operator: Operator) -> str:
    """By which an operator that was killed would keep its successor waiting for 15 s."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{operator.namespace}/leases/{operator.name}"


def _webhook_service(client: Api, operator: Operator) -> None:
    """A Service without selector whose one endpoint is the operator's process."""
    within, name = f"namespaces/{operator.namespace}", operator.service
    ports = [{"name": "webhook", "port": 443, "targetPort": operator.port}]
    client.ensure(f"/api/v1/{within}/services", {"metadata": {"name": name}, "spec": {"ports": ports}})
    endpoints = {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "ports": [{"name": "webhook", "port": operator.port}],
        "endpoints": [{"addresses": [WEBHOOK_ADDRESS]}],
    }
    client.ensure(f"/apis/discovery.k8s.io/v1/{within}/endpointslices", endpoints)
