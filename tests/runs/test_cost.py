"""Prices of ledgers and plans follow the allocated nodes."""

from __future__ import annotations

import pytest

from windlass.plan.price import price
from windlass.runs.ledger import Ledger, cost_of
from windlass.runs.time_accounting import Spent
from windlass.views.serialise import to_json


def ledger() -> Ledger:
    """Returns the ledger of a run with two nodes for an hour that ended a day ago."""
    seconds = {Spent.TRAINING: 2700.0, Spent.REDONE: 600.0, Spent.HUNG: 300.0, Spent.IDLE: 86_400.0}
    held = {Spent.TRAINING: 5400.0, Spent.REDONE: 1200.0, Spent.HUNG: 600.0}
    return Ledger(seconds, held, 90_000.0, 2, 40)


def test_what_was_spent_is_the_price_of_the_nodes_that_were_held() -> None:
    cost = cost_of(ledger(), price(0.5, "USD", 2, "target local"))
    assert cost is not None
    assert cost.total == pytest.approx(1.0)
    assert cost.spent[Spent.TRAINING] == pytest.approx(0.75)
    assert cost.wasted == pytest.approx(0.25)
    assert Spent.IDLE not in cost.spent


def test_json_of_cost_has_all_fields() -> None:
    cost = cost_of(ledger(), price(0.5, "USD", 2, "target local"))
    assert cost is not None
    data = to_json(cost)
    assert data.pop("spent") == pytest.approx({"training": 0.75, "redone": 1 / 6, "hung": 1 / 12})
    assert data == {"per_node_hour": 0.5, "currency": "USD", "source": "target local", "total": 1.0, "wasted": 0.25}


def test_without_a_price_there_is_no_cost() -> None:
    assert price(None, "USD", 2, "target local") is None
    assert cost_of(ledger(), None) is None


def test_the_price_of_a_plan_is_that_of_all_its_nodes() -> None:
    found = price(0.526, "USD", 3, "target local")
    assert found is not None
    assert found.to_json() == {
        "per_hour": 1.578,
        "per_node_hour": 0.526,
        "currency": "USD",
        "source": "target local",
    }


def test_free_node_costs_nothing() -> None:
    cost = cost_of(ledger(), price(0.0, "USD", 3, "target local"))
    assert cost is not None
    assert cost.total == 0
