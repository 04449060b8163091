"""A cluster under test: a test cluster of this machine, which can be broken, or an existing one."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.cluster.bed import build, host, images, installing, making, operators, programs, users
from tests.cluster.bed.api import Api
from tests.cluster.bed.layout import Layout
from tests.cluster.bed.node import Node
from tests.helpers.golang import locked

API_SERVER = "kube-apiserver"
OURS = "windlass.test/namespace"
"""Label of the namespaces of tests, to find those of killed tests in an existing cluster."""


@dataclass(frozen=True)
class Cluster:
    """Any cluster, by a kubeconfig and one of its contexts."""

    kubeconfig: str
    """Value of KUBECONFIG: a path, or several separated by colons."""
    context: str
    image: str
    """Image with Python and torch that the cluster has or can pull."""
    python: str
    """Path or name of that image's interpreter."""
    program: str = "kubectl"

    def kubectl(self, *args: str, stdin: str | None = None, user: str | None = None) -> str:
        """Returns the output of kubectl. Raises CalledProcessError, with kubectl's `stderr`, if it fails.

        After a failed wait, notes on the error describe the pods, events and logs of the namespace.
        """
        context = users.context(user) if user else self.context
        done = self._call(context, *args, stdin=stdin)
        if done.returncode:
            error = subprocess.CalledProcessError(done.returncode, done.args, done.stdout, done.stderr)
            error.add_note(done.stderr.strip())
            if "wait" in args and "-n" in args:
                self._describe(error, context, args[args.index("-n") + 1])
            raise error
        return done.stdout

    def _call(self, context: str, *args: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [self.program, f"--context={context}", *args]
        env = {**os.environ, "KUBECONFIG": self.kubeconfig}
        return subprocess.run(command, env=env, input=stdin, capture_output=True, text=True, check=False)

    def _describe(self, error: Exception, context: str, namespace: str) -> None:
        """Adds the state of a namespace to an error."""
        of = ("-n", namespace)
        error.add_note(self._call(context, "get", "pods,jobs", *of, "-o", "wide").stdout)
        error.add_note(self._call(context, "get", "events", *of, "--sort-by=.lastTimestamp").stdout)
        for pod in self._call(context, "get", "pods", *of, "-o", "name").stdout.split():
            error.add_note(f"{pod}: {self._call(context, 'logs', *of, pod, '--tail=20').stdout}")

    @contextmanager
    def namespace(self, prefix: str = "test") -> Iterator[str]:
        """Creates a namespace under pod security `restricted`, which is deleted after use, without waiting."""
        name = f"wl-{prefix}-{secrets.token_hex(4)}"
        labels = {"pod-security.kubernetes.io/enforce": "restricted", OURS: "yes"}
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        self.kubectl("create", "-f", "-", stdin=json.dumps(body))
        try:
            # Without the account, a pod created directly would be refused.
            self.kubectl("wait", "--for=create", "serviceaccount/default", "-n", name, "--timeout=600s")
            yield name
        finally:
            self.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")

    def apply(self, *objects: object, namespace: str) -> None:
        """Creates or changes objects."""
        document = {"apiVersion": "v1", "kind": "List", "items": objects}
        self.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(document))


@dataclass(frozen=True)
class Bed(Cluster):
    """Test cluster in Linux namespaces of this machine; all parts can be stopped, killed and started again."""

    index: int = 0

    @classmethod
    def up(cls, index: int = 0) -> Bed:
        """Returns the running test cluster of this index, which is started if necessary. Needs root. Raises
        BedError.
        """
        layout = Layout(index)
        with locked(layout.lock, f"bring up cluster {index}"):
            if not making.is_whole(layout):
                making.make(layout)
        return cls.at(index)

    @classmethod
    def at(cls, index: int = 0) -> Bed:
        """Returns the test cluster of this index, whether it runs or not."""
        layout = Layout(index)
        context = users.context(users.ADMIN)
        return cls(str(layout.kubeconfig), context, images.BASE, images.PYTHON, build.program("kubectl"), index)

    @property
    def layout(self) -> Layout:
        return Layout(self.index)

    @property
    def nodes(self) -> tuple[Node, Node]:
        return making.nodes(self.layout)

    @property
    def api(self) -> Api:
        return users.api(self.layout)

    def is_up(self) -> bool:
        return making.is_whole(self.layout)

    def made(self) -> dict[str, Any]:
        """How the test cluster was started: `seconds`, and whether it was started `from_seed`."""
        found: dict[str, Any] = json.loads(self.layout.ready.read_text())
        return found

    def down(self) -> None:
        """Stops and removes all of the test cluster; it may be missing or incomplete."""
        with locked(self.layout.lock, f"end cluster {self.index}"):
            host.remove(self.layout)

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def stop_node(self, name: str) -> None:
        """Freezes a kubelet: its pods keep running, and after 10 s the cluster considers the node lost."""
        self.node(name).signal_kubelet(signal.SIGSTOP)

    def continue_node(self, name: str) -> None:
        self.node(name).signal_kubelet(signal.SIGCONT)

    def kill_node(self, name: str) -> None:
        """Kills a node like a power failure: its pods end without a report."""
        self.node(name).kill()

    def start_node(self, name: str) -> None:
        """Restarts a killed node with its GPUs; returns when it is ready."""
        self.node(name).start()
        self.node(name).settle()

    def wait_for_node(self, name: str, *, ready: bool, seconds: float = host.PATIENCE_SECONDS) -> None:
        """Waits until the cluster reports a node as ready, or as not ready."""
        self.node(name).wait_until(ready, seconds)

    def cut_network(self, name: str) -> None:
        """Disconnects the network of a node's pods: packets to them are lost. Pods of one node still reach each
        other.
        """
        self.node(name).set_network("down")

    def mend_network(self, name: str) -> None:
        self.node(name).set_network("up")

    def stop_program(self, name: str) -> None:
        """Kills a program, such as `coredns` or `jobset`, with SIGKILL; it stays down until started again."""
        programs.stop(self.layout, name, signal.SIGKILL)

    def start_program(self, name: str) -> None:
        """Starts a stopped program; returns when its health endpoint, if any, reports success."""
        programs.start_again(self.layout, name)
        if name in making.HEALTH:
            making.wait_until_well(self.layout, name)

    def start_operator(self, name: str) -> None:
        """Starts one of `operators.ON_DEMAND`; returns when its kinds can be used."""
        installing.start(self.layout, operators.ON_DEMAND[name])

    def stop_operator(self, name: str) -> None:
        """Stops an operator, and removes its webhooks, its kinds and all their objects."""
        installing.stop(self.layout, operators.ON_DEMAND[name])

    def sell_out(self, *instance_types: str) -> None:
        """Makes the cloud of `karpenter` refuse instances of these types, and of no others."""
        self.layout.sold_out.write_text(" ".join(instance_types))

    def freeze(self, name: str) -> None:
        """Freezes a program: it keeps its connections and answers nothing."""
        host.order(self.layout, do="signal", name=name, signal=signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        host.order(self.layout, do="signal", name=name, signal=signal.SIGCONT)

    def kill_api_server(self) -> None:
        """Kills the API server with SIGKILL; it stays down until started again."""
        self.stop_program(API_SERVER)

    def start_api_server(self) -> None:
        """Starts the API server and waits until it is ready."""
        self.start_program(API_SERVER)
        host.wait_for(self.api.is_ready, "the API server")

    def restart_api_server(self) -> None:
        self.kill_api_server()
        self.start_api_server()

    def refuse_accounts(self) -> None:
        """Makes the API server refuse the tokens of all service accounts, as if its signing key had changed."""
        self._know_accounts_by("tls.key")

    def accept_accounts(self) -> None:
        self._know_accounts_by("sa.key")

    def _know_accounts_by(self, key: str) -> None:
        """Restarts the API server with this public key to verify tokens."""
        pki = self.layout.pki
        self.kill_api_server()
        host.run("openssl", "rsa", "-in", str(pki / key), "-pubout", "-out", str(pki / "sa.pub"))
        self.start_api_server()
