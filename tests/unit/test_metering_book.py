"""The price book: what is read, and what is refused with which words."""

from __future__ import annotations

import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import phalanx_control
from phalanx_control.metering.book import PriceBookError, load_book

PRICE = {"sku": "h", "gpu": "H100", "effective_from": "2024-01-01T00:00:00Z", "per_gpu_second": "0.001"}
JAN_2024_MS = 1_704_067_200_000


def test_the_book_that_ships_prices_simulated_gpus_too() -> None:
    path = Path(phalanx_control.__file__).parent / "data" / "price_book.toml"
    book = load_book(tomllib.loads(path.read_text()))
    price = book.price_of("Simulated GPU", JAN_2024_MS * 2)
    assert price is not None
    assert (price.sku, book.currency) == ("gpu.simulated", "USD")
    assert "busy" in book.charged
    assert "prepare" not in book.charged
    for model, sku in (("NVIDIA L40S", "gpu.l40s"), ("NVIDIA H100 80GB HBM3", "gpu.h100"), ("AMD MI300", "gpu.other")):
        found = book.price_of(model, JAN_2024_MS * 2)
        assert found is not None
        assert found.sku == sku


def test_the_latest_price_in_force_applies() -> None:
    later = {**PRICE, "effective_from": "2025-01-01T00:00:00+00:00", "per_gpu_second": "0.002"}
    book = load_book({"price": [later, PRICE]})
    assert book.price_of("nvidia h100", JAN_2024_MS - 1) is None
    for wall_ms, price in ((JAN_2024_MS, "0.001"), (JAN_2024_MS + 400 * 86_400_000, "0.002")):
        found = book.price_of("nvidia h100", wall_ms)
        assert found is not None
        assert found.per_gpu_second == Decimal(price)
    assert book.price_of("A100", JAN_2024_MS) is None


def test_a_toml_time_is_a_time() -> None:
    book = load_book(tomllib.loads('[[price]]\nsku="x"\neffective_from=2024-01-01T00:00:00Z\nper_gpu_second="1"'))
    assert book.prices[0].effective_from_wall_ms == JAN_2024_MS


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"prices": []}, "unknown key 'prices'"),
        ({"currency": "usd"}, "three capital letters"),
        ({"currency": 5}, "currency 5"),
        ({"price": "x"}, "must be a list"),
        ({"price": 5}, "must be a list"),
        ({"price": ["x"]}, "price 1 is not a table"),
        ({"price": [{**PRICE, "colour": 1}]}, "price 1: unknown key 'colour'"),
        ({"price": [{**PRICE, "sku": ""}]}, "price 1: sku is ''"),
        ({"price": [PRICE, {**PRICE, "gpu": 5}]}, "price 2: gpu is 5"),
        ({"price": [{**PRICE, "per_gpu_second": 0.001}]}, "write it in quotes"),
        ({"price": [{**PRICE, "per_gpu_second": "much"}]}, "not a decimal number"),
        ({"price": [{**PRICE, "per_gpu_second": "-1"}]}, "not negative"),
        ({"price": [{**PRICE, "per_gpu_second": "NaN"}]}, "not negative"),
        ({"price": [{**PRICE, "effective_from": "soon"}]}, "effective_from is 'soon'"),
        ({"price": [{**PRICE, "effective_from": "2024-01-01T00:00:00"}]}, "use a UTC time"),
        ({"price": [PRICE, PRICE]}, "two prices for gpu 'H100'"),
        ({"charged": 1}, "charged must map"),
        ({"charged": {"lunch": True}}, "charged.lunch: no such phase"),
        ({"charged": {"busy": "yes"}}, "charged.busy is 'yes'"),
    ],
)
def test_what_is_wrong_is_named(data: dict[str, Any], words: str) -> None:
    with pytest.raises(PriceBookError) as caught:
        load_book(data)
    assert words in str(caught.value)
