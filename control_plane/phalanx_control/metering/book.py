"""The price book: what a GPU-second of each model costs, from when, and which phases of a lease are charged.

Made from a plain dict by a pure function; whoever starts the program reads the file. Money is Decimal, from strings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, cast

from phalanx.core.errors import PhalanxError
from phalanx.core.played import PLAYED, is_played
from phalanx.core.states import Phase


class PriceBookError(PhalanxError, ValueError):
    """The price book cannot be used; the message names the entry and the field."""

    code = "PRICE-BOOK"


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Applies to GPU models with ``gpu`` in their name, whatever the case, from ``effective_from_wall_ms`` on."""

    sku: str
    gpu: str
    effective_from_wall_ms: int
    per_gpu_second: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceBook:
    currency: str
    prices: tuple[Price, ...]
    charged: frozenset[str]
    """Phases that are charged."""

    def price_of(self, model: str, wall_ms: int) -> Price | None:
        """Returns the price in force at ``wall_ms`` under the first word that fits ``model``, or None.

        What is played costs nothing in any book.
        """
        if is_played(model):
            return _PLAYED
        in_force = [p for p in self.prices if p.effective_from_wall_ms <= wall_ms]
        word = next((p.gpu for p in in_force if p.gpu.lower() in model.lower()), None)
        same = [p for p in in_force if p.gpu == word]
        return max(same, key=lambda p: p.effective_from_wall_ms, default=None)


_PLAYED = Price(sku="gpu.played", gpu=PLAYED, effective_from_wall_ms=0, per_gpu_second=Decimal(0))


def load_book(data: Mapping[str, Any]) -> PriceBook:
    """Reads a price book from parsed TOML or JSON. Raises PriceBookError naming the entry, the value and the rule."""
    unknown = sorted(set(data) - {"currency", "charged", "price"})
    if unknown:
        raise PriceBookError(f"price book: unknown key {unknown[0]!r}; use currency, charged and price")
    currency = data.get("currency", "USD")
    if not isinstance(currency, str) or len(currency) != 3 or not currency.isupper():
        raise PriceBookError(f"price book: currency {currency!r}: use three capital letters, such as 'USD'")
    entries = data.get("price", ())
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise PriceBookError("price book: price must be a list of entries")
    prices = tuple(_price(i, entry) for i, entry in enumerate(cast("Sequence[Any]", entries), start=1))
    _refuse_twice(prices)
    return PriceBook(currency=currency, prices=prices, charged=_charged(data.get("charged", {})))


def _charged(data: Any) -> frozenset[str]:
    if not isinstance(data, Mapping):
        raise PriceBookError("price book: charged must map phases to true or false")
    charged = cast("Mapping[str, Any]", data)
    for phase, value in charged.items():
        if phase not in set(Phase):
            raise PriceBookError(f"price book: charged.{phase}: no such phase; use one of {', '.join(Phase)}")
        if not isinstance(value, bool):
            raise PriceBookError(f"price book: charged.{phase} is {value!r}: use true or false")
    return frozenset(phase for phase, value in charged.items() if value)


def _price(number: int, entry: Any) -> Price:
    where = f"price book: price {number}"
    if not isinstance(entry, Mapping):
        raise PriceBookError(f"{where} is not a table")
    fields = cast("Mapping[str, Any]", entry)
    unknown = sorted(set(fields) - {"sku", "gpu", "effective_from", "per_gpu_second"})
    if unknown:
        raise PriceBookError(f"{where}: unknown key {unknown[0]!r}")
    return Price(
        sku=_text(where, fields, "sku", empty=False),
        gpu=_text(where, fields, "gpu", empty=True),
        effective_from_wall_ms=_wall_ms(where, fields.get("effective_from")),
        per_gpu_second=_money(where, fields.get("per_gpu_second")),
    )


def _text(where: str, fields: Mapping[str, Any], name: str, *, empty: bool) -> str:
    value = fields.get(name, "" if empty else None)
    if not isinstance(value, str) or not (value or empty):
        raise PriceBookError(f"{where}: {name} is {value!r}: use a text")
    return value


def _money(where: str, value: Any) -> Decimal:
    if not isinstance(value, str):
        raise PriceBookError(f'{where}: per_gpu_second is {value!r}: write it in quotes, such as "0.0011", to be exact')
    try:
        price = Decimal(value)
    except InvalidOperation:
        raise PriceBookError(f"{where}: per_gpu_second {value!r} is not a decimal number") from None
    if not price.is_finite() or price < 0:
        raise PriceBookError(f"{where}: per_gpu_second {value!r}: use a number that is not negative")
    return price


def _wall_ms(where: str, value: Any) -> int:
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise PriceBookError(f"{where}: effective_from is {value!r}: use a UTC time such as 2025-01-01T00:00:00Z")
    since_epoch = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since_epoch.days * 86_400 + since_epoch.seconds) * 1000 + since_epoch.microseconds // 1000


def _refuse_twice(prices: tuple[Price, ...]) -> None:
    seen: set[tuple[str, int]] = set()
    for price in prices:
        key = (price.gpu.lower(), price.effective_from_wall_ms)
        if key in seen:
            raise PriceBookError(f"price book: two prices for gpu {price.gpu!r} from the same time")
        seen.add(key)
