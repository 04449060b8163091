"""Installs and removes the definitions and webhooks of operators, and starts and stops operators in a running cluster.

Definitions and webhooks come from the operator's own manifests. They are installed only while the operator runs: a kind
without a controller would be chosen by programs that check which kinds exist, and Kueue's webhooks without Kueue refuse
every Job and Pod.
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
"""Webhooks use the second loopback address, since endpoints may not be in 127.0.0.0/8."""
MADE = (
    "/api/v1/pods",
    "/api/v1/services",
    "/api/v1/configmaps",
    "/api/v1/secrets",
    "/api/v1/nodes",
    "/apis/batch/v1/jobs",
    "/apis/jobset.x-k8s.io/v1alpha2/jobsets",
)
"""Collections of objects that operators create for objects of their kinds."""
START_SECONDS = 180.0
CLEAR_SECONDS = 240.0
"""Time limit in seconds: the garbage collector looks for new kinds every 30 s, and pods may end slowly."""


def start(layout: Layout, operator: Operator) -> None:
    """Starts an operator; returns when its kinds are served and its webhooks are called."""
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
        # Installed last: until the operator answers, its webhooks would refuse all objects they apply to.
        hook(client, operator, layout)
        host.wait_for(lambda: _asks(client, operator) or not operator.refuses, f"the webhooks of {operator.name}")


def stop(layout: Layout, operator: Operator) -> None:
    """Stops an operator, and removes its webhooks, its kinds and all their objects."""
    client = users.api(layout)
    with locked(layout.operators):
        running = [name for name in (operator.name, operator.beside) if name in host.order(layout, do="list")]
        for name in running:
            # A killed operator is started again, since it may have to remove finalizers.
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
    """Removes kinds with all their objects; returns when they are deleted."""
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
    """Creates an operator's namespace, Service and certificate."""
    client.ensure("/api/v1/namespaces", {"metadata": {"name": operator.namespace}})
    if operator.service:
        _webhook_service(client, operator)
    if operator.secret:
        names = ("ca.crt", "ca.key", "tls.crt", "tls.key")
        data = {name: base64.b64encode((layout.pki / name).read_bytes()).decode() for name in names}
        secret = {"metadata": {"name": operator.secret}, "data": data}
        client.ensure(f"/api/v1/namespaces/{operator.namespace}/secrets", secret)


def define(client: Api, operator: Operator, layout: Layout) -> None:
    """Creates an operator's kinds, and waits until they are served."""
    made = list(_objects(operator, hooks=False))
    for _, each in made:
        _create(client, operator, each, layout)
    await_established(client, [path for path, _ in made], operator.name)


def await_established(client: Api, paths: Iterable[str], whose: str) -> None:
    """Waits until definitions are served."""
    wanted = list(paths)
    host.wait_for(lambda: all(_is_established(client, path) for path in wanted), f"the kinds of {whose}")


def hook(client: Api, operator: Operator, layout: Layout) -> None:
    """Installs an operator's webhooks."""
    for _, each in _objects(operator, hooks=True):
        _create(client, operator, each, layout)


def _objects(operator: Operator, hooks: bool) -> Iterator[tuple[str, Object]]:
    """Yields an operator's definitions, or its webhooks, each with its collection."""
    for each in json.loads(build.manifests(operator.name).read_text()):
        if (each["kind"] != DEFINITION) is hooks:
            yield f"{COLLECTIONS[each['kind']]}/{each['metadata']['name']}", each


def manifests_of(operator: Operator, layout: Layout) -> Object:
    """Returns the installed objects of an operator as one list: definitions and webhooks with the addresses of this
    cluster.
    """
    every = [each for hooks in (False, True) for _, each in _objects(operator, hooks)]
    for each in every:
        _point(operator, each, layout)
    return {"apiVersion": "v1", "kind": "List", "items": every}


def _create(client: Api, operator: Operator, each: Object, layout: Layout) -> None:
    """Creates an object with the operator's address."""
    _point(operator, each, layout)
    client.ensure(COLLECTIONS[each["kind"]], each)


def _point(operator: Operator, each: Object, layout: Layout) -> None:
    """Sets the operator's address and our CA wherever the API server calls the operator."""
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
    """Returns whether the API server calls an operator's webhooks, by an object that they refuse."""
    if operator.refuses is None:
        return False
    names = [hook["name"] for _, each in _objects(operator, hooks=True) for hook in each["webhooks"]]
    collection, bad = operator.refuses
    try:
        client.create(f"{collection}?dryRun=All", bad)
    except ApiError as problem:
        # Another operator's webhook may refuse the object too: Kueue's apply to the kinds of all operators. A Trainer
        # that has just started refuses kinds of runtimes that it does not know yet.
        return UNKNOWN_RUNTIME not in str(problem) and any(name in str(problem) for name in names)
    return False


def _clear(client: Api, operator: Operator) -> None:
    """Deletes all objects of an operator's kinds, and waits until the objects created for them are deleted.

    The garbage collector never deletes objects whose owner has a kind that no longer exists.
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
    """Deletes all objects of these kinds; a server that has just received a definition must be asked again."""
    for definition in definitions:
        with api.suppressed(404):
            for each in client.get(_collection(definition))["items"]:
                client.discard(_path(definition, each))
    return True


def _owned(client: Api, kinds: set[str]) -> bool:
    """Returns whether any object is owned by an object of these kinds."""
    found = (each for collection in MADE for each in client.get(collection)["items"])
    return any(owner["kind"] in kinds for each in found for owner in each["metadata"].get("ownerReferences", ()))


def _is_gone(client: Api, path: str, definition: Object) -> bool:
    """Returns whether a definition is deleted with its objects; removes finalizers, since their controller no longer
    runs.
    """
    with api.suppressed(404):
        client.get(path)
        _let_go(client, definition)
        return False
    return True


def _let_go(client: Api, definition: Object) -> None:
    """Removes the finalizers of a kind's objects."""
    with api.suppressed(404):
        for each in client.get(_collection(definition))["items"]:
            client.patch(_path(definition, each), {"metadata": {"finalizers": None}})


def _path(definition: Object, each: Object) -> str:
    meta = each["metadata"]
    return f"{_collection(definition, meta.get('namespace', ''))}/{meta['name']}"


def _collection(definition: Object, namespace: str = "") -> str:
    """Returns the path of a kind's objects in the stored version: other versions would need the operator's
    conversion.
    """
    spec = definition["spec"]
    version = next(each["name"] for each in spec["versions"] if each["storage"])
    within = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/{spec['group']}/{version}{within}/{spec['names']['plural']}"


def _lease(operator: Operator) -> str:
    """Returns the path of an operator's Lease; the Lease of a killed operator would delay its successor by 15 s."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{operator.namespace}/leases/{operator.name}"


def _webhook_service(client: Api, operator: Operator) -> None:
    """Creates a Service without selector, whose only endpoint is the operator's process."""
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
