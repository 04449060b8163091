"""`cost` shows what a run has cost, and how to set the price of its target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Call
from tests.cli.test_json import hold
from tests.cli.test_views import plain
from tests.engines.kubernetes.planning.test_list_price import SPOT
from tests.engines.kubernetes.planning.test_plan import TARGET, planned, with_cluster
from tests.engines.kubernetes.running.test_provisioning import pool

from windlass.cli.cost import cost_lines
from windlass.cli.formatting import money
from windlass.plan.plan import NO_PLAN
from windlass.plan.price import Price as HourPrice
from windlass.pricing import refreshed
from windlass.pricing.price import Price, SpotRange
from windlass.pricing.refreshed import RegionPrices
from windlass.runs.events import entry_of
from windlass.runs.ledger import Cost, Ledger, cost_of
from windlass.runs.phase import Phase
from windlass.runs.record import Status, Times
from windlass.runs.store import Store
from windlass.runs.time_accounting import Spent
from windlass.views.cost import CostReport
from windlass.views.run import recorded_run

GPU_TARGET = TARGET.model_copy(update={"name": "gpus"})
PRICED = "local: {kind: local, price_per_hour: 36, currency: EUR}\n"  # one cent per second


def done(windlass: Call, ended: Callable[..., Status]) -> Status:
    windlass("run", "-q", "--set", "nodes=2", "--", "sleep", "0.3")
    return ended()


def test_a_run_is_priced_by_its_target(windlass: Call, ended: Callable[..., Status]) -> None:
    Path("targets.yaml").write_text(PRICED)
    status = done(windlass, ended)
    result = windlass("cost", "-o", "json")
    hold("cost", result.json)
    assert result.code == 0
    assert status.times.ended_at is not None
    held = result.json["ledger"]["wall_seconds"] - result.json["ledger"]["seconds"].get("queued", 0)
    assert result.json["cost"]["total"] == pytest.approx(held * 2 / 100, abs=1e-5)
    assert result.json["cost"]["source"] == "target local"
    assert "EUR" in windlass("cost").out
    assert "72 EUR an hour" in windlass("plan", "--nodes", "2", "--", "true").out


def test_cost_uses_the_price_at_the_time_of_the_run(windlass: Call, ended: Callable[..., Status]) -> None:
    Path("targets.yaml").write_text(PRICED)
    done(windlass, ended)
    before = windlass("cost", "-o", "json").json
    Path("targets.yaml").write_text(PRICED.replace("36", "99"))
    assert windlass("cost", "-o", "json").json == before


def test_run_older_than_its_price_uses_the_current_price(windlass: Call, ended: Callable[..., Status]) -> None:
    done(windlass, ended)
    Path("targets.yaml").write_text(PRICED)
    assert windlass("cost", "-o", "json").json["cost"]["source"] == "target local, priced after the run began"


def test_cost_without_a_price_explains_how_to_set_one(windlass: Call, ended: Callable[..., Status]) -> None:
    done(windlass, ended)
    result = windlass("cost")
    assert result.code == 0
    assert "local: {kind: local, price_per_hour: 0.526, currency: USD}" in result.out
    data = windlass("cost", "-o", "json").json
    hold("cost", data)
    assert data["cost"] is None


GPUS = "gpus: {kind: kubernetes, context: prod, currency: EUR, %s}\n"


def ran_on_cluster(home: Path, *pools: dict[str, Any], **fields: Any) -> str:
    """Records an ended run of two nodes on the target `gpus` that trained for an hour, and returns its id."""
    made = planned(with_cluster(node_pools=pools), GPU_TARGET, nodes=2, **fields)
    with Store(home) as store:
        writer = store.create(
            made.run_id,
            name=made.name,
            target=made.target,
            output_dir=made.output_dir,
            plan=made.to_text(),
            time=1000.0,
        )
        writer.note(entry_of("attempt", {"number": 1, "world_size": 2, "nodes": [[0], [1]]}), at=1000.0)
        writer.note(entry_of("end", {"phase": "succeeded", "exit_code": 0}), at=4600.0)
        writer.close()
    return made.run_id


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({}, "  price_per_hour: 5.672   for example, or prices: {g5.12xlarge: 5.672} for jobs that run on one"),
        ({"resources": {"instance": "p4d.24xlarge"}}, "  prices: {p4d.24xlarge: 5.672}   for example"),
    ],
)
def test_cluster_run_explains_how_to_price_its_target(
    fields: dict[str, Any], hint: str, windlass: Call, home: Path
) -> None:
    ran_on_cluster(home, **fields)
    said = windlass("cost")
    assert said.code == 0
    assert "gpus has no price. Add to gpus in targets.yaml what a node costs an hour" in said.out
    assert hint in said.out
    assert "kind: local" not in said.out


@pytest.mark.parametrize(
    ("fields", "target", "per_node"),
    [
        ({}, "price_per_hour: 3", 3.0),
        ({"resources": {"instance": "p4d.24xlarge"}}, "price_per_hour: 3, prices: {p4d.24xlarge: 32.5}", 32.5),
        ({"resources": {"instance": "p4d.24xlarge"}}, "price_per_hour: 3, prices: {g5.12xlarge: 5}", 3.0),
    ],
)
def test_price_set_later_applies_to_earlier_runs(
    fields: dict[str, Any], target: str, per_node: float, windlass: Call, home: Path
) -> None:
    ran_on_cluster(home, **fields)
    Path("targets.yaml").write_text(GPUS % target)
    found = windlass("cost", "-o", "json").json["cost"]
    assert (found["per_node_hour"], found["currency"], found["total"]) == (per_node, "EUR", 2 * per_node)
    assert found["source"] == "target gpus, priced after the run began"


def test_region_set_later_enables_list_prices(windlass: Call, home: Path) -> None:
    ran_on_cluster(home, resources={"instance": "p4d.24xlarge"})
    assert "region: us-east-1   for list prices" in windlass("cost").out
    Path("targets.yaml").write_text(GPUS % "region: us-east-1")
    found = windlass("cost", "-o", "json").json["cost"]
    assert (found["per_node_hour"], found["currency"]) == (21.957642, "USD")
    assert found["source"].startswith("list price of p4d.24xlarge in us-east-1, on demand, as of 2026-02-09")


def test_ledger_and_cost_count_spares_alike(windlass: Call, home: Path) -> None:
    run = ran_on_cluster(home, kubernetes={"spares": 1})
    held = windlass("cost", "-o", "json").json["ledger"]["node_seconds"]
    with Store(home) as store:
        shown = recorded_run(store.status(run), store, 0.0).ledger
    assert {str(spent): seconds for spent, seconds in shown.node_seconds.items()} == held
    assert sum(held.values()) == 3 * 3600.0


def test_spot_nodes_have_a_price_only_after_a_list_is_fetched(windlass: Call, home: Path) -> None:
    ran_on_cluster(home, pool("gpus", "p4d.24xlarge", requirements=SPOT), resources={"instance": "p4d.24xlarge"})
    Path("targets.yaml").write_text(GPUS % "region: us-east-1")
    assert windlass("cost", "-o", "json").json["cost"] is None
    assert "of spot instances, after: windlass prices update --region us-east-1" in windlass("cost").out
    low, high = (Price(usd, "hour", "a test", "2026-11-01", "us-east-1") for usd in (6.5, 9.25))
    spot = {"p4d.24xlarge": SpotRange(low, high, 7)}
    refreshed.write(home, RegionPrices("us-east-1", "2026-11-01", "", {}, spot), "")
    found = windlass("cost", "-o", "json").json["cost"]
    assert (found["per_node_hour"], found["source"].partition(" of ")[0]) == (9.25, "highest spot price")


def test_missing_run_exits_with_102(windlass: Call) -> None:
    assert windlass("cost", "nope").code == 102


def test_wasted_cost_is_shown_with_its_share() -> None:
    status = Status("d-1", "d", "aws", Phase.FAILED, Times(0.0, 0.0, ended_at=100.0), "/o")
    ledger = Ledger({Spent.TRAINING: 75.0, Spent.HUNG: 25.0}, {}, 100.0, 1, 0)
    cost = Cost(36.0, "USD", "target aws", {Spent.TRAINING: 0.75, Spent.HUNG: 0.25})
    text = "\n".join(cost_lines(CostReport(status.id, status.phase, ledger, cost), plain, NO_PLAN))
    assert "0.25 USD (25%) was spent on time that was redone, hung or idle" in text
    assert "1.00 USD" in text


def test_time_without_a_supervisor_is_not_priced_and_reported() -> None:
    status = Status("d-1", "d", "aws", Phase.TRAINING, Times(0.0, 0.0), "/o")
    ledger = Ledger({Spent.TRAINING: 100.0, Spent.UNOBSERVED: 3600.0}, {Spent.TRAINING: 100.0}, 3700.0, 1, 0)
    cost = cost_of(ledger, HourPrice(36.0, 36.0, "USD", "target aws"))
    assert cost is not None
    assert cost.total == pytest.approx(1.0)
    text = "\n".join(cost_lines(CostReport(status.id, status.phase, ledger, cost), plain, NO_PLAN))
    assert "1h00m without a supervisor are not priced: whether nodes were held is not known" in text


def test_amounts_have_the_digits_of_their_sum() -> None:
    assert money(0.0000123, "USD", 0.0027) == "0.0000 USD"
    assert money(0.00091, "USD", 0.0027) == "0.0009 USD"


@pytest.mark.parametrize(
    ("amount", "said"),
    [
        (0, "0.00 USD"),
        (12.3, "12.30 USD"),
        (0.5, "0.50 USD"),
        (0.000421, "0.00042 USD"),
        (1234567, "1,234,567.00 USD"),
        (1e-30, "0.000000000 USD"),
    ],
)
def test_money_is_rounded_to_significant_digits(amount: float, said: str) -> None:
    assert money(amount, "USD") == said
