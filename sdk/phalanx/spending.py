"""How much a map has spent and whether it may start another call: ``max_cost``. No I/O.

A call is started only while what was spent, and what those under way would spend if each cost as much as the dearest
so far, leaves room for one more such call. So the limit is passed by what calls turn out to be dearer than every call
before them, and by no more; the first call runs alone, since nothing is known before it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from phalanx.core.errors import InvalidSpecError
from phalanx.core.views import CallView

GPU_SECONDS = "gpu-s"

MaxCost = float | str | Decimal
"""Money in the price book's currency, or GPU-seconds as text: ``"600 gpu-s"``."""


@dataclass(frozen=True, slots=True)
class Limit:
    """``unit`` is "" for money, whatever the currency."""

    amount: Decimal
    unit: str = ""


def limit_of(max_cost: MaxCost) -> Limit:
    """Reads ``max_cost``. Raises InvalidSpecError."""
    number, _, unit = str(max_cost).strip().partition(" ")
    try:
        amount = Decimal(number)
    except InvalidOperation:
        amount = Decimal(-1)
    if isinstance(max_cost, bool) or not amount.is_finite() or amount <= 0 or unit.strip() not in ("", GPU_SECONDS):
        raise InvalidSpecError(
            f"max_cost={max_cost!r}: give money, as 2.5 or '2.50', or GPU-seconds, as '600 {GPU_SECONDS}'"
        )
    return Limit(amount, unit.strip())


class Spending:
    """Thread-safe."""

    def __init__(self, max_cost: MaxCost) -> None:
        self.limit = limit_of(max_cost)
        self._lock = threading.Lock()
        self._spent = Decimal(0)
        self._dearest: Decimal | None = None
        self._open = 0
        self._currency = ""
        self._unpriced = False

    @property
    def spent(self) -> Decimal:
        return self._spent

    def may_start(self) -> bool:
        """Says whether there is room for one more call. Raises InvalidSpecError where calls turn out to be free."""
        with self._lock:
            if self._unpriced:
                raise InvalidSpecError(
                    f"max_cost={self.limit.amount}: these calls cost nothing, so nothing would ever stop them",
                    hint=f"where GPUs have no price, limit their use: '600 {GPU_SECONDS}'; CPU functions are free",
                )
            if self._dearest is None:
                return not self._open
            return self._spent + (self._open + 1) * self._dearest <= self.limit.amount

    def started(self) -> None:
        with self._lock:
            self._open += 1

    def ended(self, call: CallView | None) -> None:
        """Counts a call that ended. None: what it cost could not be found out; it counts as the dearest did."""
        with self._lock:
            self._open -= 1
            if call is None:
                self._spent += self._dearest or 0
                return
            amount = self._amount(call)
            self._spent += amount
            self._dearest = max(self._dearest or amount, amount)
            self._currency = call.cost.currency
            self._unpriced = self._unpriced or _has_no_price(call, self.limit)

    def words(self) -> str:
        """Returns what was spent of what, for people."""
        unit = self.limit.unit or self._currency
        return f"{self._spent:f} of {self.limit.amount:f} {unit}".rstrip()

    def _amount(self, call: CallView) -> Decimal:
        return Decimal(call.cost.gpu_ms) / 1000 if self.limit.unit else Decimal(call.cost.money)


def _has_no_price(call: CallView, limit: Limit) -> bool:
    """A call that was short may cost nothing; one that uses no GPU, or one without a price, always does."""
    free = call.cost.gpu_ms and not limit.unit and not Decimal(call.cost.price_per_gpu_hour)
    return bool(free) or not call.gpus
