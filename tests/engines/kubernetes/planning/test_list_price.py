"""Plans for a cluster without configured prices show list prices if the target names its region."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.engines.kubernetes.planning.test_plan import CLUSTER, FACTS, TARGET, planned
from tests.engines.kubernetes.running.test_provisioning import pool

from windlass.cli.plantext import plan_lines
from windlass.engines.kubernetes.planning.facts import read_facts
from windlass.plan.plan import Plan
from windlass.pricing import refreshed
from windlass.pricing.price import Price, SpotRange
from windlass.pricing.refreshed import RegionPrices
from windlass.pricing.table import embedded
from windlass.spec.job import Job

REGION = "us-east-1"
SPOT = [{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}]
JOB = {"nodes": 2, "resources": {"instance": "g5.12xlarge", "gpus": 4}, "procs_per_node": 1}


def made(*pools: dict[str, Any], facts: Any = FACTS, target: dict[str, Any] | None = None, **fields: Any) -> Plan:
    chosen = TARGET.model_copy(update={"region": REGION, **(target or {})})
    seen = replace(facts, prices=embedded(), cluster=replace(CLUSTER, node_pools=pools))
    return planned(seen, chosen, **{**JOB, **fields})


def test_a_job_with_an_instance_type_has_its_list_price_with_the_date() -> None:
    plan = made()
    assert plan.price is not None
    assert plan.price.to_json() == {
        "per_hour": 11.344,
        "per_node_hour": 5.672,
        "currency": "USD",
        "source": "list price of g5.12xlarge in us-east-1, on demand, as of 2026-02-09",
    }
    shown = "\n".join(plan_lines(plan, lambda text, *_, **__: text))
    assert "11.344 USD an hour (list price of g5.12xlarge in us-east-1, on demand, as of 2026-02-09)" in shown


def test_instance_type_from_the_node_pool_has_a_price() -> None:
    plan = made(pool("gpus", "g5.12xlarge"), resources={"gpus": 4})
    assert plan.price is not None
    assert plan.price.per_node_hour == 5.672
    assert made(resources={"gpus": 4}).price is None


@pytest.mark.parametrize(
    ("target", "per_node", "currency"),
    [
        ({"prices": {"g5.12xlarge": 4.5}, "currency": "EUR"}, 4.5, "EUR"),
        ({"price_per_hour": 3.0}, 3.0, "USD"),
        ({"prices": {"p5.48xlarge": 50.0}, "currency": "EUR"}, 5.672, "USD"),
    ],
)
def test_prices_of_the_target_precede_list_prices(target: dict[str, Any], per_node: float, currency: str) -> None:
    plan = made(target=target)
    assert plan.price is not None
    assert (plan.price.per_node_hour, plan.price.currency) == (per_node, currency)


def test_price_is_unknown_without_a_region_or_a_list_price() -> None:
    assert made(target={"region": None}).price is None
    assert made(target={"region": "eu-central-1"}).price is None
    assert made(resources={"instance": "p6-b300.48xlarge", "gpus": 8}).price is None


def test_spot_nodes_have_no_on_demand_price(tmp_path: Path) -> None:
    spot = pool("gpus", "g5.12xlarge", requirements=SPOT)
    assert made(spot).price is None
    ends = [Price(usd, "hour", "a test", "2026-11-01", REGION) for usd in (1.9, 2.6)]
    refreshed.write(
        tmp_path, RegionPrices(REGION, "2026-11-01", "", {}, {"g5.12xlarge": SpotRange(ends[0], ends[1], 7)}), ""
    )
    chosen = TARGET.model_copy(update={"region": REGION})
    facts = replace(FACTS, prices=refreshed.load(tmp_path), cluster=replace(CLUSTER, node_pools=(spot,)))
    plan = planned(facts, chosen, **JOB)
    assert plan.price is not None
    assert plan.price.per_node_hour == 2.6
    assert plan.price.source == "highest spot price of g5.12xlarge in us-east-1 in 7 days, as of 2026-11-01"


def test_list_prices_are_read_only_if_the_target_names_its_region(tmp_path: Path) -> None:
    # nothing answers at this address, so other facts stay unknown
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}
    context = {"name": "lab", "context": {"cluster": "c", "user": "u"}}
    users = [{"name": "u", "user": {}}]
    config = {"apiVersion": "v1", "kind": "Config", "clusters": [cluster], "contexts": [context], "users": users}
    (tmp_path / "config").write_text(json.dumps(config))
    environ = {"WINDLASS_HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "config"), "HOME": str(tmp_path)}
    job = Job(name="digits", run="train.py")
    fetched = {"ec2.g5.12xlarge": Price(7.0, "hour", "", "2030-01-01", REGION)}
    refreshed.write(tmp_path, RegionPrices(REGION, "2030-01-01", "a test", fetched), "")

    def prices(region: str | None) -> Any:
        target = TARGET.model_copy(update={"region": region, "context": "lab"})
        return read_facts(job, target, base=tmp_path, environ=environ).prices

    assert prices(None) is None
    assert prices(REGION).on_demand("g5.12xlarge", REGION).amount_usd == 7.0
