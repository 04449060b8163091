"""Runs the real AWS Load Balancer Controller for a test cluster, with an emulated AWS.

The controller runs outside the test cluster's namespaces, where the emulator listens, and accesses the API server at
the cluster's address. Its webhooks are not installed: they default and validate, which the tests' objects do not need.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.bed import api, build, host, installing
from tests.cluster.bed.cluster import Bed
from tests.fakeaws.emulator import Emulator
from tests.helpers.ports import quiet_port

NAME = "aws-load-balancer-controller"
CLUSTER = "lab"
LOAD_BALANCER_CLASS = "service.k8s.aws/nlb"
SERVICES = (
    "EC2",
    "Elastic Load Balancing v2",
    "ACM",
    "WAFV2",
    "WAF Regional",
    "Shield",
    "STS",
    "RGT",
    "Global Accelerator",
)
SUBNETS = {"us-east-1a": "10.0.1.0/24", "us-east-1b": "10.0.2.0/24"}
TAGS = {
    f"kubernetes.io/cluster/{CLUSTER}": "shared",
    "kubernetes.io/role/internal-elb": "1",
    "kubernetes.io/role/elb": "1",
}


class Controller:
    """The controller of one test cluster; `kill` and `start` may be called repeatedly."""

    def __init__(self, bed: Bed, aws: Emulator, folder: Path) -> None:
        self.log = folder / "controller.log"
        self._bed, self._aws, self._folder = bed, aws, folder
        self._process: subprocess.Popen[bytes] | None = None
        self.vpc_id = _network(aws)

    def start(self) -> None:
        """Starts the controller, and waits until it is ready."""
        health = quiet_port()
        argv = [
            build.BALANCER.program(NAME),
            f"--kubeconfig={self._bed.kubeconfig}",
            f"--cluster-name={CLUSTER}",
            f"--aws-region={self._aws.region}",
            f"--aws-vpc-id={self.vpc_id}",
            f"--aws-api-endpoints={','.join(f'{name}={self._aws.url}' for name in SERVICES)}",
            f"--webhook-cert-dir={_certificates(self._bed, self._folder)}",
            f"--webhook-bind-port={quiet_port()}",
            f"--metrics-bind-addr=127.0.0.1:{quiet_port()}",
            f"--health-probe-bind-addr=127.0.0.1:{health}",
            "--enable-leader-election=false",
            "--log-level=debug",
            "--aws-max-retries=2",
            "--enable-shield=false",
            "--enable-waf=false",
            "--enable-wafv2=false",
            "--feature-gates=NLBGatewayAPI=false,ALBGatewayAPI=false",
        ]
        environ = {**os.environ, **self._aws.environ, "AWS_EC2_METADATA_DISABLED": "true"}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(argv, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        host.wait_for(lambda: api.answers("127.0.0.1", health, "/readyz"), f"{NAME}: {self.log}")

    def kill(self) -> None:
        """Kills the controller with SIGKILL."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


@contextmanager
def controlled(bed: Bed, aws: Emulator, folder: Path) -> Iterator[Controller]:
    """Runs the controller, with its kinds, and nodes that look like instances."""
    build.build_cluster_tools()
    definitions = json.loads(build.manifests(NAME).read_text())
    collection = installing.COLLECTIONS[installing.DEFINITION]
    for each in definitions:
        bed.api.ensure(collection, each)
    installing.await_established(bed.api, [f"{collection}/{each['metadata']['name']}" for each in definitions], NAME)
    _name_instances(bed)
    controller = Controller(bed, aws, folder)
    try:
        controller.start()
        yield controller
    finally:
        controller.kill()
        installing.withdraw(bed.api, definitions)


def service(name: str, **more: Mapping[str, object]) -> dict[str, object]:
    """Returns a Service for which the controller creates a network load balancer."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, **more},
        "spec": {
            "type": "LoadBalancer",
            "loadBalancerClass": LOAD_BALANCER_CLASS,
            "selector": {"app": name},
            "loadBalancerSourceRanges": ["10.0.0.0/8"],
            "ports": [{"port": 80, "targetPort": 8080}],
        },
    }


def _network(aws: Emulator) -> str:
    """Creates a VPC with tagged subnets, like Terraform; returns its id."""
    ec2 = aws.client("ec2")
    vpc = str(ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"])
    tags = [{"Key": name, "Value": value} for name, value in TAGS.items()]
    for zone, block in SUBNETS.items():
        made = ec2.create_subnet(VpcId=vpc, CidrBlock=block, AvailabilityZone=zone)
        ec2.create_tags(Resources=[made["Subnet"]["SubnetId"]], Tags=tags)
    return vpc


def _name_instances(bed: Bed) -> None:
    """Gives the nodes provider ids of instances, without which a node cannot be registered with a target group."""
    for number, node in enumerate(bed.nodes, 1):
        found = bed.api.get(f"/api/v1/nodes/{node.name}")
        if not found["spec"].get("providerID"):
            wanted = f"aws:///us-east-1a/i-{number:017x}"
            bed.api.patch(f"/api/v1/nodes/{node.name}", {"spec": {"providerID": wanted}})


def _certificates(bed: Bed, folder: Path) -> Path:
    """Copies the test cluster's certificate to the folder in which the controller looks for its own."""
    wanted = folder / "webhook"
    wanted.mkdir(exist_ok=True)
    for name in ("tls.crt", "tls.key"):
        (wanted / name).write_bytes((bed.layout.pki / name).read_bytes())
    return wanted
