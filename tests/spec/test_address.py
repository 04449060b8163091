"""The address of a cluster read from a targets file equals that of the full models, or is None."""

from __future__ import annotations

import pytest

from windlass.errors import JobFileError
from windlass.spec.address import ClusterAddress, read_address
from windlass.spec.parse import parse_targets
from windlass.spec.targets import KubernetesTarget

LAB = "lab: {kind: kubernetes, context: lab-admin, namespace: team-a}"


@pytest.mark.parametrize(
    "text",
    [
        LAB,
        '{"lab": {"kind": "kubernetes", "context": "arn:aws:eks:eu-west-1:1:cluster/lab"}}',
        "# ours\nother: {kind: local}\nlab:\n  kind: kubernetes\n  context: 'the lab'\n  image: x:1\n\n",
    ],
)
def test_read_address_returns_the_address_of_the_target(text: str) -> None:
    found, target = read_address([(text, "targets.yaml")], "lab"), parse_targets(text)["lab"]
    assert isinstance(target, KubernetesTarget)
    assert found == ClusterAddress(target.name, target.context, target.namespace, target.kind)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "other: {kind: kubernetes, context: lab}",
        "lab: {kind: local}",
        "lab: {kind: nomad}",
        "lab: kubernetes",
        "lab: {kind: kubernetes}",
        "lab: {kind: kubernetes, context: 7}",
        "lab: {kind: kubernetes, context: ' lab'}",
        'lab: {kind: kubernetes, context: "a\\nb"}',
        "lab: {kind: kubernetes, context: lab, namespace: a/b}",
        "lab: {kind: kubernetes, context: lab, namespace: 7}",
        "lab: {kind: kubernetes, context: lab, name: other}",
        "lab: {kind: kubernetes, context: lab, context: other}",
        "lab: {kind: kubernetes, context: *lab}",
    ],
)
def test_uncertain_targets_are_left_to_the_models(text: str) -> None:
    assert read_address([(text, "targets.yaml")], "lab") is None


@pytest.mark.parametrize("name", ["local", "Lab", "a b"])
def test_invalid_cluster_names_are_left_to_the_models(name: str) -> None:
    assert read_address([(f"{name}: {{kind: kubernetes, context: lab}}", "targets.yaml")], name) is None


def test_first_file_that_defines_the_name_wins() -> None:
    other = "lab: {kind: kubernetes, context: other}"
    found = read_address([("", "here"), (LAB, "mine"), (other, "yours")], "lab")
    assert found == ClusterAddress("lab", "lab-admin", "team-a")
    assert read_address([("lab: {kind: local}", "here"), (LAB, "mine")], "lab") is None


def test_text_that_is_not_yaml_is_an_error_with_its_line() -> None:
    with pytest.raises(JobFileError, match=r"targets\.yaml:2"):
        read_address([("lab:\n\t- x", "targets.yaml")], "lab")
