"""`windlass doctor --on TARGET` checks with real pods: a healthy namespace, refusals, and a missing image.

S3 and STS are emulated (with identity policies enforced); API server, kubelets, volumes and pods are real.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import WINDLASS, Call, Result, home, windlass
from tests.cli.test_json import hold
from tests.cluster.bed.cluster import Bed
from tests.cluster.objects import claim
from tests.cluster.proxy import relay
from tests.fakeaws.emulator import ACCOUNT, Emulator, emulated_aws
from tests.helpers.until import until

__all__ = ["home", "windlass"]

BUCKET = "runs"
WAIT_SECONDS = 600.0
RUN = f"arn:aws:iam::{ACCOUNT}:role/runs"
ALL = {"s3:ListBucket", "s3:PutObject", "s3:GetObject", "s3:DeleteObject"}


@dataclass(frozen=True)
class Account:
    """Emulated AWS account that pods can access, with a bucket."""

    aws: Emulator
    url: str

    def role(self, name: str, *actions: str) -> dict[str, str]:
        """Returns the variables of a new role with these permissions on the bucket, as set by IRSA.

        STS is emulated: any file of the pod serves as a token.
        """
        iam = self.aws.client("iam")
        anyone = {"Effect": "Allow", "Principal": "*", "Action": "sts:AssumeRoleWithWebIdentity"}
        trust = json.dumps({"Version": "2012-10-17", "Statement": [anyone]})
        arn = iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust)["Role"]["Arn"]
        where = [f"arn:aws:s3:::{BUCKET}", f"arn:aws:s3:::{BUCKET}/*"]
        allowed = [{"Effect": "Allow", "Action": list(actions), "Resource": where}]
        policy = json.dumps({"Version": "2012-10-17", "Statement": allowed})
        iam.put_role_policy(RoleName=name, PolicyName="p", PolicyDocument=policy)
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": "us-east-1",
            "AWS_ROLE_ARN": arn,
            "AWS_WEB_IDENTITY_TOKEN_FILE": "/etc/hostname",
            "AWS_ROLE_SESSION_NAME": "pod",
        }


@pytest.fixture(scope="module")
def account(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    with emulated_aws(tmp_path_factory.mktemp("aws"), auth=True) as aws:
        aws.client("s3").create_bucket(Bucket=BUCKET)
        port = int(aws.url.rpartition(":")[2])
        with relay(bed.layout.outside, port) as outside:
            yield Account(aws, f"http://{bed.layout.outside}:{outside}")


@pytest.fixture(autouse=True)
def kubeconfig(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", bed.kubeconfig)


def target(bed: Bed, namespace: str, **fields: Any) -> None:
    found = {
        "kind": "kubernetes",
        "context": bed.context,
        "namespace": namespace,
        "image": bed.image,
        "python": bed.python,
        **fields,
    }
    Path("targets.yaml").write_text(json.dumps({"bed": found}))


def checks(result: Result) -> dict[str, dict[str, str]]:
    assert result.out, result.err
    hold("doctor", result.json)
    return {one["name"]: one for one in result.json["checks"]}


def helpers(bed: Bed, namespace: str) -> str:
    return bed.kubectl("get", "pods,jobs", "-n", namespace, "-l", "windlass.dev/helper", "-o", "name")


def test_healthy_namespace_passes_emulated(bed: Bed, namespace: str, windlass: Call, account: Account) -> None:
    bed.apply(claim("efs"), namespace=namespace)
    target(bed, namespace, storage=f"s3://{BUCKET}/windlass/", env=account.role("runs", *ALL))
    result = windlass("doctor", "--on", "bed", "-o", "json")
    found = checks(result)
    assert {name for name, one in found.items() if one["level"] == "fail"} == set(), result.out
    assert (result.code, result.json["ok"]) == (0, True)
    assert found["claim efs"]["found"].startswith("a pod can write, read and delete in it")
    assert found["s3"]["found"].startswith("a pod can list, write, read, delete in s3://runs/windlass/doctor/")
    assert found["pod role"]["found"].startswith(f"arn:aws:sts::{ACCOUNT}:assumed-role/runs/pod")
    assert found["nodes"]["found"] == "2 of 2 are ready"
    assert bed.image in found["image pull"]["found"]
    assert "Contents" not in account.aws.client("s3").list_objects_v2(Bucket=BUCKET), "the object is deleted"
    until(lambda: not helpers(bed, namespace), "the helpers' end", WAIT_SECONDS)


def test_refusals_are_reported_with_a_fix_emulated(bed: Bed, namespace: str, windlass: Call, account: Account) -> None:
    bed.apply(claim("shared"), namespace=namespace)
    bed.kubectl("wait", "-n", namespace, "pvc/shared", "--for=jsonpath={.status.phase}=Bound", "--timeout=600s")
    volume = bed.kubectl("get", "pvc", "shared", "-n", namespace, "-o", "jsonpath={.spec.volumeName}")
    (bed.layout.volumes / volume).chmod(0o555)
    target(
        bed,
        namespace,
        storage=f"s3://{BUCKET}/windlass/",
        data={"claim": "shared"},
        env=account.role("reader", "s3:ListBucket", "s3:GetObject"),
    )
    result = windlass("doctor", "--on", "bed", "--pod-role", RUN)
    assert result.code == 1
    lines = {
        line.split()[1]: (line, result.out.splitlines()[number + 1])
        for number, line in enumerate(result.out.splitlines())
        if line.startswith("fail")
    }
    assert set(lines) == {"claim", "s3", "pod"}, result.out
    assert f"assumed-role/reader/pod, expected a session of {RUN}" in lines["pod"][0]
    assert "write: Permission denied; the folder is of 0:0, mode 0o555" in lines["claim"][0]
    assert "access point" in lines["claim"][1]
    assert "write: s3://runs/windlass/doctor/" in lines["s3"][0]
    assert "AccessDenied" in lines["s3"][0]
    assert "list passed" in lines["s3"][0]
    statement = {"Effect": "Allow", "Action": ["s3:PutObject"], "Resource": "arn:aws:s3:::runs/windlass/*"}
    assert json.dumps([statement]) in lines["s3"][1]
    assert result.out.splitlines()[-1] == "3 failures, 1 warning"  # there is no default storage class


CLUSTER = """
name: vision
region: us-east-1
gpus: [{name: a10g, instances: [g5.12xlarge]}]
components: [jobset, karpenter]
"""


def own_cluster(bed: Bed, namespace: str, home: Path, account: Account) -> None:
    """Creates the folder of a cluster like `up`, with the test cluster as its API server."""
    folder = home / "clusters" / "vision"
    folder.mkdir(parents=True)
    env = account.role("vision-run", *ALL)
    outputs = {
        "name": "vision", "region": "us-east-1", "account_id": ACCOUNT, "endpoint": "", "certificate_authority": "",
        "arn": f"arn:aws:eks:us-east-1:{ACCOUNT}:cluster/vision", "kubernetes_version": "1.35", "vpc_id": "vpc-1",
        "private_subnet_ids": [], "zones": [], "node_security_group_id": "sg-1", "bucket": BUCKET, "repositories": {},
        "namespace": namespace, "run_role_arn": env["AWS_ROLE_ARN"], "node_role_arn": "", "efs_id": "fs-1",
    }  # fmt: skip
    config = json.loads(bed.kubectl("config", "view", "--raw", "-o", "json"))
    [chosen] = [one["context"] for one in config["contexts"] if one["name"] == bed.context]
    config["contexts"] = [{"name": "vision", "context": chosen}]
    own = {
        "kind": "kubernetes",
        "context": "vision",
        "kubeconfig": str(folder / "kubeconfig"),
        "namespace": namespace,
        "image": bed.image,
        "python": bed.python,
        "storage": f"s3://{BUCKET}/windlass/",
        "env": env,
    }
    files = {
        "cluster.yaml": CLUSTER,
        "outputs.json": json.dumps(outputs),
        "kubeconfig": json.dumps(config),
        "targets.yaml": json.dumps({"vision": own}),
    }
    for name, text in files.items():
        (folder / name).write_text(text)


def test_own_cluster_is_compared_with_its_file_emulated(
    bed: Bed, namespace: str, windlass: Call, home: Path, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_cluster(bed, namespace, home, account)
    for name, value in account.aws.environ.items():
        monkeypatch.setenv(name, value)
    found = checks(windlass("doctor", "--on", "vision", "-o", "json"))
    assert found["offer a10g"]["level"] == "ok"
    assert found["jobset"]["found"] == "one that was not installed by Windlass is healthy"
    assert found["karpenter"]["found"].startswith("not installed; version ")
    assert found["karpenter"]["fix"] == "windlass cluster up vision"
    assert found["pool a10g"]["level"] == "fail"
    assert found["pod role"]["level"] == "ok", found["pod role"]
    assert found["claim efs"]["found"] == f"there is none in namespace {namespace}"


def test_missing_image_is_reported_and_its_pod_removed(bed: Bed, namespace: str, windlass: Call) -> None:
    """The job in the working folder names the missing image; the target's image exists."""
    target(bed, namespace)
    Path("job.yaml").write_text('{"name": "job", "command": ["true"], "image": "localhost/no-such-image:1"}')
    result = windlass("doctor", "--on", "bed", "-o", "json")
    hold("doctor", result.json)
    pulls = {one["level"]: one["found"] for one in result.json["checks"] if one["name"] == "image pull"}
    assert result.code == 1
    assert pulls["ok"].startswith(bed.image)
    assert pulls["fail"].startswith("localhost/no-such-image:1 cannot be pulled: ")
    until(lambda: not helpers(bed, namespace), "the helpers' end", WAIT_SECONDS)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly), signal.SIGKILL]
)
def test_interrupted_doctor_cleans_up_and_the_next_one_cleans_up_after_a_kill(
    bed: Bed, namespace: str, windlass: Call, number: signal.Signals
) -> None:
    pending = {**claim("efs"), "spec": {**claim("efs")["spec"], "storageClassName": "none"}}
    bed.apply(pending, namespace=namespace)
    target(bed, namespace)
    command = subprocess.Popen(
        [*WINDLASS, "doctor", "--on", "bed"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert command.stderr is not None
    assert next(line for line in command.stderr if "mounting efs" in line)
    until(lambda: "job" in helpers(bed, namespace), "a pod for the claim", WAIT_SECONDS)
    command.send_signal(number)
    command.communicate(timeout=WAIT_SECONDS)
    if number == signal.SIGKILL:
        assert helpers(bed, namespace)
        windlass("check", "--on", "bed")
    until(lambda: not helpers(bed, namespace), "the helpers' end", WAIT_SECONDS)
