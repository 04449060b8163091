"""Valid cluster files are parsed, and invalid ones are refused."""

from __future__ import annotations

import pytest

from windlass.errors import JobFileError
from windlass.spec.cluster import GIB
from windlass.spec.parse import parse_cluster

SHORT = "name: vision\nregion: us-west-2\n"
EXISTING = "{vpc: vpc-0a, subnets: [subnet-0a, subnet-0b]}"
"""An existing VPC."""


def problems(text: str) -> list[str]:
    with pytest.raises(JobFileError) as refused:
        parse_cluster(text)
    return [f"{one.where}: {one.field}: {one.message}" for one in refused.value.problems]


def test_cluster_file_may_have_two_lines() -> None:
    cluster = parse_cluster(SHORT)
    assert (cluster.kubernetes, cluster.gpus, cluster.storage.efs) == ("1.35", (), None)


def test_true_enables_a_section_with_defaults_and_false_disables_it() -> None:
    storage = parse_cluster(SHORT + "storage: {efs: true, fsx: false}\n").storage
    assert storage.efs is not None
    assert (storage.efs.throughput, storage.fsx) == ("elastic", None)


def test_all_problems_are_reported_together_with_their_lines() -> None:
    assert problems("name: V\nregion: us\nnetwrk: {}\ncomponents: [kueu]\n") == [
        "cluster.yaml:1: name: 'V' is not a legal name",
        "cluster.yaml:2: region: 'us' is not an AWS region",
        "cluster.yaml:3: netwrk: not a field",
        "cluster.yaml:4: components[0]: expected trainer, jobset, mpi-operator, kueue, nvidia-device-plugin, "
        "karpenter, aws-load-balancer-controller or metrics-server, found 'kueu'",
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("zones: [us-west-2a]", "expected two different zones"),
        ("zones: [us-west-2a, us-west-2a]", "expected two different zones"),
        ("zones: [us-east-1a, us-west-2a]", "us-east-1a is not in us-west-2"),
        ("network: {cidr: 10.40.0.0/24}", "has 256 addresses"),
        ("network: {cidr: 8.8.0.0/16}", "is not private"),
        ("network: {cidr: 10.40.0.1/16}", "is not a range of addresses"),
        ("network: {public_access: [0.0.0.0/0]}", "opens the API server to the Internet"),
        ("network: {vpc: vpc-0a}", "network.subnets: vpc and subnets belong together"),
        ("network: {subnets: [subnet-0a, subnet-0b]}", "network.subnets: vpc and subnets belong together"),
        ("network: {vpc: vpc-0a, subnets: [subnet-0a]}", "expected different subnets in two zones at least"),
        ("network: {vpc: vpc-0a, subnets: [subnet-0a, subnet-0a]}", "expected different subnets in two zones at least"),
        ("network: {vpc: main, subnets: [subnet-0a, subnet-0b]}", "network.vpc: 'main' is not the id of a VPC"),
        ("network: {vpc: vpc-0a, subnets: [a, b]}", "network.subnets[0]: 'a' is not the id of a subnet"),
        (f"network: {EXISTING[:-1]}, cidr: 10.1.0.0/16}}", "network.cidr: is for a new VPC, and vpc-0a has its own"),
        (f"network: {EXISTING[:-1]}, nat: one}}", "network.nat: is for a new VPC, and vpc-0a has its own"),
        (
            f"zones: [us-west-2a, us-west-2b]\nnetwork: {EXISTING}",
            "network: the subnets in vpc-0a are in zones of their own",
        ),
        ("network: {nat: two}", "network.nat: expected one, per-zone or none"),
        ("network: {proxy: proxy.example.com}", "network.proxy: 'proxy.example.com' is not the URL of a proxy"),
        ("network: {proxy: 'http://me:secret@proxy:3128'}", "proxy: text that looks like a secret is not the URL"),
        ("network: {no_proxy: [.example.com]}", "network.no_proxy: names exceptions from a proxy, and there is none"),
        ("network: {proxy: 'http://p:1', no_proxy: ['a,b']}", "'a,b' is not a host, a domain or a range"),
        ("access: {admins: ['*']}", "is not the ARN"),
        ("storage: {fsx: {size: 1300GiB}}", "expected 1200GiB or a multiple of 2400GiB"),
        ("storage: {fsx: {throughput: 250}}", "is for persistent-2"),
        ("gpus: [{name: a, instances: []}]", "is empty"),
        ("gpus: [{name: a, instances: [g5]}]", "is not an instance type"),
        ("gpus: [{name: a, instances: [g5.xlarge], min: 2}]", "is for node groups"),
        ("gpus: [{name: a, instances: [g5.xlarge], provision: node-group, min: 2, max: 1}]", "is below min"),
        ("gpus: [{name: a, instances: [g5.xlarge], capacity: capacity-block}]", "a: a capacity block needs provision:"),
        ("gpus: [{name: a, instances: [g5.xlarge], reservation: cr-0a}]", "belongs to capacity: capacity-block"),
        ("gpus: [{name: a, instances: [g5.xlarge], zone: us-east-1a}]", "is not in us-west-2"),
        ("gpus: [{name: a, instances: [g5.xlarge]}, {name: a, instances: [g5.xlarge]}]", "two pools are called a"),
        ("gpus: [{name: a, instances: [g5.xlarge]}]\ncomponents: [kueue]", "lacks karpenter"),
        ("system: {min: 3, max: 2}", "is below min"),
        ("budget: {limit: 0, email: a@b.c}", "must be at least 1"),
        ("log_days: 2", "log_days: expected 1, 3, 5, 7,"),
        ("kubernetes: 1.35", "found 1.35"),
        ("network: {public_access: [0.0.0.0/1, 128.0.0.0/1]}", "128.0.0.0/1 opens the API server"),
        ("network: {public_access: [10.0.0.0/8]}", "10.0.0.0/8 is private, and EKS takes public"),
        ("network: {cidr: 127.0.0.0/16}", "is not private"),
        ("network: {cidr: 169.254.0.0/16}", "is not private"),
        ("access: {admins: ['arn:aws:sts::123456789012:assumed-role/a/b']}", "is not the ARN of a role or user"),
        ("access: {admins: ['arn:aws:iam::123456789012:root']}", "is not the ARN of a role or user"),
        ("storage: {bucket: a..b}", "is not the name of a bucket"),
        ("storage: {bucket: 192.168.0.1}", "is not the name of a bucket"),
        ("iam: {path: team}", "is not a path of IAM"),
        ("iam: {path: /te am/}", "is not a path of IAM"),
        (f"iam: {{path: /{'x' * 511}/}}", "is not a path of IAM"),
        ("iam: {permissions_boundary: team-boundary}", "is not the ARN of a policy"),
        ("encryption: {logs: alias/company}", "is not the ARN of a KMS key"),
        (
            "encryption: {logs: 'arn:aws:kms:us-east-1:123456789012:key/1-a'}",
            "encryption: logs: arn:aws:kms:us-east-1:123456789012:key/1-a is not in us-west-2",
        ),
        (
            "storage: {fsx: true}\nencryption: {file_systems: 'arn:aws:kms:us-west-2:123456789012:key/1-a'}",
            "encryption: file_systems: no file system of this cluster uses a key of its own",
        ),
        ("addons: {coredns: latest}", "is not the version of an EKS add-on"),
        ("addons: {core-dns: v1.12.1-eksbuild.2}", "expected vpc-cni, kube-proxy"),
        ("addons: {aws-efs-csi-driver: v3.0.0-eksbuild.1}", "aws-efs-csi-driver is not installed, because storage has"),
        ("system: {ami: al2023@latest}", "is not an AMI"),
        ("system: {ami: team/images/gpu}", "is not an AMI"),
        ("repositories: [a//b]", "'a//b' is not the name of a repository"),
        ("repositories: [a/]", "'a/' is not the name of a repository"),
        ("repositories: [x]", "'x' is not the name of a repository"),
        ("namespace: kube-system", "is Kubernetes' own"),
        ("namespace: Training_1", "is not a namespace of Kubernetes"),
        ("tags: {'aws:x': a}", "is not the key of a tag"),
        ("tags: {'windlass.dev/cluster': other}", "is not the key of a tag"),
        ("tags: {team: 'a;b'}", "is not the value of a tag"),
        ("system: {min: 5}", "is below min, found 4 and min 5"),
        ("gpus: [{name: a, instances: [g5.xlarge], provision: node-group, min: 6}]", "is below min"),
        (
            "zones: [us-west-2a, us-west-2b]\ngpus: [{name: a, instances: [g5.xlarge], zone: us-west-2c}]",
            "a: us-west-2c is not one of zones",
        ),
    ],
)
def test_invalid_cluster_files_are_refused(line: str, said: str) -> None:
    found = problems(f"{SHORT}{line}\n")
    assert any(said in one for one in found), found


def test_error_for_an_unquoted_version_shows_how_to_quote_it() -> None:
    with pytest.raises(JobFileError) as refused:
        parse_cluster(f"{SHORT}kubernetes: 1.35\n")
    assert refused.value.problems[0].hint == 'write "1.35"'


def test_job_file_fields_are_not_suggested_for_cluster_files() -> None:
    with pytest.raises(JobFileError) as refused:
        parse_cluster(f"{SHORT}gpu: []\n")
    assert refused.value.problems[0].hint == "did you mean gpus?"


def test_each_purpose_without_an_existing_key_gets_a_new_one() -> None:
    assert parse_cluster(SHORT).new_keys == ("secrets", "logs", "registry", "bucket")
    keys = "encryption: {logs: 'arn:aws:kms:us-west-2:123456789012:key/1-a'}\n"
    cluster = parse_cluster(f"{SHORT}storage: {{efs: true}}\n{keys}")
    assert cluster.new_keys == ("secrets", "registry", "bucket", "file_systems")
    assert cluster.existing == {"arn:aws:kms:us-west-2:123456789012:key/1-a", "1-a"}


def test_sizes_are_bytes() -> None:
    [pool] = parse_cluster(SHORT + "gpus: [{name: a, instances: [g5.xlarge], disk: 500GiB}]\n").gpus
    assert pool.disk == 500 * GIB


def test_an_existing_vpc_has_no_nat_gateway_and_no_endpoint_of_windlass() -> None:
    for line in (EXISTING, f"{EXISTING[:-1]}, nat: none}}"):
        cluster = parse_cluster(f"{SHORT}network: {line}\n")
        assert (cluster.network.num_gateways(3), cluster.endpoint_services) == (0, ())


def test_a_new_vpc_without_nat_has_endpoints_of_the_services_in_use() -> None:
    least = parse_cluster(f"{SHORT}network: {{nat: none}}\ncomponents: []\n")
    assert least.endpoint_services == ("ec2", "ecr.api", "ecr.dkr", "eks", "eks-auth", "sts")
    every = parse_cluster(f"{SHORT}network: {{nat: none}}\nstorage: {{efs: true, fsx: true}}\n")
    added = {"sqs", "ssm", "elasticloadbalancing", "elasticfilesystem", "fsx"}
    assert set(every.endpoint_services) - set(least.endpoint_services) == added
    assert [
        parse_cluster(f"{SHORT}network: {{nat: {nat}}}\n").network.num_gateways(3)
        for nat in ("one", "per-zone", "none")
    ] == [1, 3, 0]
    assert parse_cluster(SHORT).endpoint_services == ()
