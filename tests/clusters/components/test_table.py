"""The component table: order, sources, selection, and chart values."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from windlass.clusters.components.component import Chart, Component, Generated, Manifests
from windlass.clusters.components.table import COMPONENTS, default, ordered
from windlass.clusters.components.values import ClusterValues, GpuPool
from windlass.errors import UsageError

VALUES = ClusterValues(
    "lab",
    "eu-west-1",
    "vpc-1",
    "team",
    endpoint="https://e",
    queue_name="lab-events",
    has_load_balancer_controller=True,
    pools=(GpuPool("a", ("g5.xlarge", "g5.2xlarge")),),
    tags={"windlass.dev/cluster": "lab"},
)
BY_NAME = {one.name: one for one in COMPONENTS}


def names(*asked: str) -> list[str]:
    return [one.name for one in ordered(asked)]


def test_every_component_is_pinned_and_has_readiness_checks() -> None:
    for one in COMPONENTS:
        if isinstance(one.source, Generated):
            continue
        assert re.fullmatch(r"\d+\.\d+\.\d+", one.version)
        assert one.ready, one.name
        if isinstance(one.source, Chart):
            assert one.source.version == one.version
            assert one.source.repository.startswith(("oci://", "https://"))
        else:
            assert isinstance(one.source, Manifests)
            assert f"/v{one.version}/" in one.source.url


def test_requirements_are_installed_before_a_component() -> None:
    assert names("trainer") == ["jobset", "trainer"]
    assert names("node-pools") == ["karpenter", "node-pools"]
    assert names("kueue") == ["kueue"], "Kueue queues what there is"
    assert names("kueue", "mpi-operator", "trainer") == ["jobset", "trainer", "mpi-operator", "kueue"]
    everything = names(*(one.name for one in reversed(COMPONENTS)))
    assert sorted(everything) == sorted(BY_NAME)
    for at, name in enumerate(everything):
        assert {*BY_NAME[name].needs, *BY_NAME[name].after} <= set(everything[:at])


def test_an_unknown_name_and_a_cycle_are_refused() -> None:
    with pytest.raises(UsageError, match="karpentr is no component") as caught:
        ordered(["karpentr"])
    assert caught.value.hint == "did you mean karpenter?"
    one = replace(BY_NAME["jobset"], needs=("trainer",))
    with pytest.raises(UsageError, match="jobset → trainer → jobset"):
        ordered(["jobset"], (one, BY_NAME["trainer"]))


def test_components_follow_from_the_terraform_outputs() -> None:
    assert set(default(VALUES)) == set(BY_NAME)
    bare = ClusterValues("lab", "eu-west-1", "vpc-1", "team")
    assert set(BY_NAME) - set(default(bare)) == {"karpenter", "node-pools", "aws-load-balancer-controller"}


def values_of(name: str) -> dict[str, Any]:
    component: Component = BY_NAME[name]
    return dict(component.values(VALUES))


def test_charts_are_configured_with_the_outputs_of_the_cluster() -> None:
    karpenter = values_of("karpenter")
    assert karpenter["settings"] == {
        "clusterName": "lab",
        "clusterEndpoint": "https://e",
        "interruptionQueue": "lab-events",
    }
    assert karpenter["serviceAccount"] == {"name": "karpenter"}
    balancers = values_of("aws-load-balancer-controller")
    assert (balancers["clusterName"], balancers["region"], balancers["vpcId"]) == ("lab", "eu-west-1", "vpc-1")
    assert balancers["defaultTags"] == {
        "windlass.dev/cluster": "lab",
        "windlass.dev/managed-by": "aws-load-balancer-controller",
    }
    assert values_of("trainer")["jobset"] == {"install": False}
    terms = values_of("nvidia-device-plugin")["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    assert terms[0]["matchExpressions"] == [
        {"key": "windlass.dev/pool", "operator": "Exists"},
        {"key": "windlass.dev/pool", "operator": "NotIn", "values": ["system"]},
    ]
    for name in ("jobset", "kueue"):
        assert f"'registry.k8s.io/{name}/{name}', 'tag': 'v{BY_NAME[name].version}'" in str(values_of(name))


def test_in_an_isolated_network_controllers_call_only_services_with_endpoints() -> None:
    isolated = replace(VALUES, is_isolated=True)
    assert dict(BY_NAME["karpenter"].values(isolated))["settings"]["isolatedVPC"] is True
    balancers = dict(BY_NAME["aws-load-balancer-controller"].values(isolated))
    assert (balancers["enableWaf"], balancers["enableWafv2"], balancers["enableShield"]) == (False, False, False)
    assert "enableWaf" not in values_of("aws-load-balancer-controller")


def test_controllers_that_call_aws_get_the_proxy() -> None:
    values = replace(VALUES, proxy={"HTTPS_PROXY": "http://p:3128", "NO_PROXY": ".svc"})
    env = dict(BY_NAME["karpenter"].values(values))["controller"]["env"]
    assert {one["name"]: one["value"] for one in env} == {"AWS_REGION": "eu-west-1", **values.proxy}
    assert dict(BY_NAME["aws-load-balancer-controller"].values(values))["env"] == values.proxy


def value_at(values: dict[str, Any], key: str) -> Any:
    for name in key.split("."):
        values = values[name]
    return values


def test_each_image_is_pulled_from_the_mirror_under_its_whole_name() -> None:
    mirrored, charts = replace(VALUES, image_mirror="r.example.com/m"), 0
    for one in COMPONENTS:
        assert bool(one.image) is not isinstance(one.source, Generated), one.name
        assert one.helm_values(VALUES) == one.values(VALUES), "without a mirror the chart's image is used"
        if isinstance(one.source, Chart):
            found = value_at(one.helm_values(mirrored), one.image_key)
            assert f"r.example.com/m/{one.image}".startswith(found)
            assert found.endswith("/ghcr.io" if one.name == "trainer" else one.image)
            charts += 1
    assert charts == 7
    kueue = BY_NAME["kueue"].helm_values(mirrored)["controllerManager"]["manager"]["image"]
    assert kueue["tag"] == f"v{BY_NAME['kueue'].version}", "other values of the image stay"


def test_the_image_of_a_manifest_is_pulled_from_the_mirror() -> None:
    def deployment(image: str) -> dict[str, Any]:
        return {"kind": "Deployment", "spec": {"template": {"spec": {"containers": [{"image": image}]}}}}

    def image(found: Any) -> str:
        return str(found["spec"]["template"]["spec"]["containers"][0]["image"])

    operator, mirrored = BY_NAME["mpi-operator"], replace(VALUES, image_mirror="r.example.com")
    for name in ("mpioperator/mpi-operator:0.8.0", "docker.io/mpioperator/mpi-operator:0.8.0"):
        found = operator.mirrored(deployment(name), mirrored)
        assert image(found) == "r.example.com/docker.io/mpioperator/mpi-operator:0.8.0"
    assert image(operator.mirrored(deployment("other:1"), mirrored)) == "other:1"
    assert (
        image(operator.mirrored(deployment("mpioperator/mpi-operator:0.8.0"), VALUES))
        == "mpioperator/mpi-operator:0.8.0"
    )
