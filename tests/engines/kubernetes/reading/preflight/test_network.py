"""Measurements of two pods are converted to a verdict that names the failing part."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest

from windlass.engines.checks import Check
from windlass.engines.kubernetes.access import probe_pods
from windlass.engines.kubernetes.objects import labels
from windlass.engines.kubernetes.reading.preflight.network import Findings, checks, objects
from windlass.spec.targets import KubernetesTarget
from windlass.worker import process

TARGET = KubernetesTarget(name="lab", context="lab", namespace="team-a", image="localhost/base:1")
KNOWN = {"a-1.a": {"address": "10.0.0.2", "seconds": 0.1}, "a-1.a.x.svc.k": {"address": "10.0.0.2", "seconds": 0.2}}
UNKNOWN = {"a-1.a": {"error": "Name or service not known"}, "a-1.a.x.svc.k": {"error": "Name or service not known"}}
OPEN = {"29500": "", "29400": "", "any": ""}
CLOSED = {"29500": "no answer in 5 s", "29400": "no answer in 5 s"}
FAST = {"latency_seconds": 0.0001, "bytes_per_second": 1e9}
SUMMED = {"right": True, "bytes_per_second": 8e7}
GOOD: dict[str, Any] = {
    "nodes": ["n1", "n2"],
    "names": [KNOWN, KNOWN],
    "reach": [OPEN, OPEN],
    "speed": [FAST, FAST],
    "reduce": [SUMMED, SUMMED],
}


def found(**fields: Any) -> dict[str, Check]:
    return {check.name: check for check in checks(Findings(**{**GOOD, **fields}))}


def test_healthy_network_is_reported_with_measurements() -> None:
    seen = found()
    assert {check.level for check in seen.values()} == {"ok"}
    assert seen["bandwidth"].found == "1,000 MB/s there, 1,000 MB/s back, over one connection"
    assert Findings(**GOOD).figures() == {
        "nodes": ["n1", "n2"],
        "latency_seconds": 0.0001,
        "bytes_per_second": [1e9, 1e9],
        "all_reduce_bytes_per_second": 8e7,
    }


def test_dns_is_the_cause_if_addresses_respond() -> None:
    seen = found(names=[UNKNOWN, UNKNOWN], reach=[], by_address=[OPEN, OPEN], speed=[], reduce=[])
    assert seen["network"].found.startswith("ranks cannot meet: names: 4 of 4 are not known: a-1.a: Name or service")
    assert "so it is DNS" in seen["network"].fix


def test_network_is_the_cause_if_addresses_do_not_respond() -> None:
    seen = found(names=[KNOWN, UNKNOWN], reach=[], by_address=[CLOSED, CLOSED], speed=[], reduce=[])
    assert seen["network"].found == "ranks cannot meet: ports: from n1 to n2, port 29500: no answer in 5 s"
    assert "NetworkPolicy" in seen["network"].fix


@pytest.mark.parametrize(
    ("fields", "name", "level", "word"),
    [
        ({"reach": [OPEN, {**OPEN, "any": "no answer in 5 s"}]}, "ports", "fail", "from n2 to n1, port any"),
        ({"nodes": ["n1", "n1"]}, "pods", "warn", "both are on n1"),
        ({"speed": [{"error": "timed out"}, FAST]}, "bandwidth", "fail", "does not arrive"),
        ({"speed": [{**FAST, "latency_seconds": 0.02}, FAST]}, "latency", "warn", "20.00 ms"),
        ({"speed": [FAST, {**FAST, "bytes_per_second": 1e6}]}, "bandwidth", "warn", "1 MB/s back"),
        ({"reduce": [{"error": "connectFullMesh failed"}, SUMMED]}, "all-reduce", "fail", "connectFullMesh"),
        ({"reduce": [{**SUMMED, "right": False}, SUMMED]}, "all-reduce", "fail", "wrong"),
        ({"failed": "its pods do not run: ErrImagePull"}, "pods", "fail", "ErrImagePull"),
    ],
)
def test_each_part_that_fails_is_named_in_the_verdict(fields: Any, name: str, level: str, word: str) -> None:
    seen = found(**fields)
    assert seen[name].level == seen["network"].level == level
    assert word in seen[name].found
    assert seen[name].found in seen["network"].found


def test_image_without_torch_is_no_failure() -> None:
    assert found(reduce=[{"missing": "torch"}] * 2)["network"].level == "ok"


def test_one_delete_removes_test_objects_and_deadline_ends_them() -> None:
    first, service, job = objects(TARGET, "windlass-net-1")
    assert first["kind"] == "ConfigMap"
    assert {one["metadata"]["labels"][labels.HELPER] for one in (first, service, job)} == {"windlass-net-1"}
    assert (job["spec"]["activeDeadlineSeconds"], job["spec"]["ttlSecondsAfterFinished"]) == (600, 60)
    assert job["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"] is True


def test_objects_of_a_dead_process_are_leftovers() -> None:
    boot, now = process.boot_id(), time.time()
    mine = probe_pods.made_by(60)[probe_pods.MADE_BY]
    assert not probe_pods.is_left(mine, boot, now)
    assert probe_pods.is_left(mine, boot, now + 61)
    dead = json.dumps({**json.loads(mine), "ticks": 1})
    assert os.getpid() == json.loads(dead)["pid"]
    assert probe_pods.is_left(dead, boot, now)
    assert not probe_pods.is_left(dead, "another machine", now)
    assert probe_pods.is_left("", boot, now)
