"""What a map may spend: read from what users write, and never passed by more than calls turn out dearer."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import InvalidSpecError
from phalanx.core.views import CallView, CostView
from phalanx.spending import Limit, Spending, limit_of


def call(money: str, *, gpu_ms: int = 1000, price: str = "3.6", gpus: float = 1) -> CallView:
    cost = CostView(money=money, gpu_ms=gpu_ms, price_per_gpu_hour=price, currency="EUR")
    return CallView(gpus=gpus, cost=cost)


def spend(spending: Spending, money: str) -> None:
    spending.started()
    spending.ended(call(money))


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        pytest.param(2, Limit(Decimal(2)), id="whole"),
        pytest.param(0.1, Limit(Decimal("0.1")), id="float"),
        pytest.param("2.50", Limit(Decimal("2.50")), id="text"),
        pytest.param(Decimal("1e-3"), Limit(Decimal("0.001")), id="decimal"),
        pytest.param("600 gpu-s", Limit(Decimal(600), "gpu-s"), id="gpu-seconds"),
    ],
)
def test_a_limit_is_money_or_gpu_seconds(given: Any, limit: Limit) -> None:
    assert limit_of(given) == limit


@pytest.mark.parametrize("wrong", ["0", "-1", "nan", "inf", "ten", "10 dollars", "True", ""])
def test_a_wrong_limit_is_refused_with_the_forms_that_there_are(wrong: str) -> None:
    with pytest.raises(InvalidSpecError, match=r"give money, as 2.5 or '2.50', or GPU-seconds, as '600 gpu-s'"):
        limit_of(wrong)
    with pytest.raises(InvalidSpecError, match=r"max_cost=True"):
        limit_of(True)


def test_the_first_call_runs_alone() -> None:
    spending = Spending("1")
    assert spending.may_start()
    spending.started()
    assert not spending.may_start()


def test_calls_under_way_are_reckoned_as_dear_as_the_dearest_so_far() -> None:
    spending = Spending("1.00")
    spend(spending, "0.10")
    spend(spending, "0.30")
    spending.started()
    assert spending.may_start()
    spending.started()
    assert not spending.may_start()
    assert spending.words() == "0.40 of 1.00 EUR"


def test_a_call_whose_cost_is_unknown_counts_as_the_dearest() -> None:
    spending = Spending("1")
    spend(spending, "0.40")
    spending.started()
    spending.ended(None)
    assert spending.spent == Decimal("0.80")
    assert not spending.may_start()


def test_what_costs_nothing_cannot_be_limited_by_money() -> None:
    for free in (call("0", price="0"), call("0", gpu_ms=0, price="0", gpus=0)):
        spending = Spending("1")
        spending.started()
        spending.ended(free)
        with pytest.raises(InvalidSpecError, match=r"cost nothing, so nothing would ever stop them"):
            spending.may_start()


def test_without_a_price_gpu_seconds_are_counted() -> None:
    spending = Spending("2.5 gpu-s")
    spending.started()
    spending.ended(call("0", gpu_ms=1500, price="0"))
    assert not spending.may_start()
    assert spending.words() == "1.5 of 2.5 gpu-s"


@given(st.lists(st.integers(1, 100), min_size=1, max_size=60), st.integers(1, 8))
def test_the_limit_is_passed_by_no_more_than_calls_under_way_are_dearer_than_those_before(
    costs: list[int], window: int
) -> None:
    """Calls end in the order in which they began, ``window`` at a time."""
    spending = Spending("150")
    under_way: list[int] = []
    dearest, bound = 0, 0
    for cost in costs:
        while under_way and (len(under_way) == window or not spending.may_start()):
            ended = under_way.pop(0)
            spending.ended(call(str(ended)))
            dearest = max(dearest, ended)
        if not spending.may_start():
            break
        spending.started()
        under_way.append(cost)
        bound = sum(max(0, each - dearest) for each in under_way)
    for cost in under_way:
        spending.ended(call(str(cost)))
    assert spending.spent <= 150 + bound
