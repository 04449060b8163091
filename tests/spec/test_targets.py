from __future__ import annotations

import pytest

from windlass.errors import JobFileError
from windlass.spec.parse import parse_targets
from windlass.spec.targets import KubernetesTarget, LocalTarget, SageMakerTarget


def test_each_kind_of_target_is_read_and_local_always_exists() -> None:
    assert parse_targets("""\
gpu-lab: {kind: kubernetes, context: lab, namespace: team-a}
aws: {kind: sagemaker, region: us-east-1, role: arn:aws:iam::123456789012:role/training, storage: s3://bucket/windlass}
""") == {
        "local": LocalTarget(name="local"),
        "gpu-lab": KubernetesTarget(name="gpu-lab", context="lab", namespace="team-a"),
        "aws": SageMakerTarget(
            name="aws",
            region="us-east-1",
            role="arn:aws:iam::123456789012:role/training",
            storage="s3://bucket/windlass",
        ),
    }


@pytest.mark.parametrize("text", ["", "# none yet\n", "{}"])
def test_empty_targets_file_defines_only_local(text: str) -> None:
    assert parse_targets(text) == {"local": LocalTarget(name="local")}


def test_local_can_be_given_an_environment() -> None:
    (local,) = parse_targets("local: {kind: local, env: {OMP_NUM_THREADS: 1}, python: .venv/bin/python}").values()
    assert local == LocalTarget(name="local", env={"OMP_NUM_THREADS": "1"}, python=".venv/bin/python")


def test_local_can_be_given_a_price() -> None:
    (local,) = parse_targets("local: {kind: local, price_per_hour: 1, currency: EUR}").values()
    assert local == LocalTarget(name="local", price_per_hour=1.0, currency="EUR")


@pytest.mark.parametrize("price", ["-1", ".inf", ".nan", "much"])
def test_invalid_price_is_refused(price: str) -> None:
    with pytest.raises(JobFileError, match=r"local\.price_per_hour"):
        parse_targets(f"local: {{kind: local, price_per_hour: {price}}}")


def test_currency_has_three_letters() -> None:
    with pytest.raises(JobFileError, match=r"local\.currency"):
        parse_targets("local: {kind: local, price_per_hour: 1, currency: dollars}")


def test_all_problems_of_a_targets_file_are_reported_at_once() -> None:
    with pytest.raises(JobFileError) as caught:
        parse_targets("""\
a: {kind: k8s}
b: {kind: kubernetes, contxt: x}
c: 1
local: {kind: sagemaker}
D: {kind: local, name: x}
e:
  kind: local
  kind: local
f: {region: us-east-1}
g: {kind: local, env: {MY_TOKEN: hunter2}}
""")
    assert [str(problem) for problem in caught.value.problems] == [
        "targets.yaml:1: a.kind: expected local, kubernetes, sagemaker or sagemaker-local, found 'k8s' "
        "(write for example a: {kind: kubernetes})",
        "targets.yaml:2: b.contxt: not a field (did you mean context?)",
        "targets.yaml:3: c: expected a mapping, found 1 (write for example c: {kind: kubernetes})",
        "targets.yaml:4: local.kind: expected local, found sagemaker "
        "(local is this machine; give the target another name)",
        "targets.yaml:5: D: 'D' is not a legal name: a name is at most 40 lower-case letters, digits and '-', "
        "and begins with a letter (try d)",
        "targets.yaml:5: D.name: not a field (the name is the key, D)",
        "targets.yaml:8: e.kind: given twice, first in line 7 (leave one out)",
        "targets.yaml:9: f.kind: required field missing (write for example f: {kind: kubernetes})",
        "targets.yaml:10: g.env.MY_TOKEN: looks like a secret, which a job file does not hold "
        "(use secrets: with a name that the target resolves)",
    ]


def test_a_kubernetes_target_needs_a_context() -> None:
    with pytest.raises(JobFileError, match="context: required field missing"):
        KubernetesTarget(name="lab")  # type: ignore[call-arg]


AWS = "kind: sagemaker, region: us-east-1, role: r, storage: s3://bucket/windlass"


@pytest.mark.parametrize("given", ["subnets: [subnet-1]", "security_groups: [sg-1]"])
def test_vpc_needs_subnets_and_security_groups(given: str) -> None:
    with pytest.raises(JobFileError, match="subnets and security_groups belong together"):
        parse_targets(f"aws: {{{AWS}, {given}}}")


def test_byte_limit_is_printed_as_a_size() -> None:
    with pytest.raises(JobFileError, match=r"aws\.volume: must be at least 1GiB, found 10"):
        parse_targets(f"aws: {{{AWS}, volume: 10}}")
