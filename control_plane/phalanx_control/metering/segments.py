"""The ledger as segments: one GPU, one phase, one lease, with its price. The only place where time meets a price.

Durations are whole milliseconds, money is exact Decimal; nothing is rounded here. A lease keeps the price that was in
force when it was opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from phalanx.core.states import Phase
from phalanx_control.metering.book import PriceBook
from phalanx_control.state.model import LedgerLine, Owner, State

_MS = Decimal(1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """``ms`` of one GPU in one phase; ``share`` is the part of the GPU that was leased."""

    gang_id: str
    node_id: str
    gpu: str
    model: str
    sku: str
    phase: str
    function_id: str
    owner: Owner
    ms: int
    share: Decimal
    per_gpu_second: Decimal
    charged: bool
    credited: bool

    @property
    def gpu_ms(self) -> Decimal:
        """Milliseconds of whole GPUs."""
        return self.ms * self.share

    @property
    def list_money(self) -> Decimal:
        """What it costs at list price, charged or not, exact."""
        return self.gpu_ms * self.per_gpu_second / _MS

    @property
    def money(self) -> Decimal:
        """What is to be paid."""
        return self.list_money if self.charged and not self.credited else Decimal(0)

    @property
    def credit(self) -> Decimal:
        """What would have been to pay, had the lease not been lost to infrastructure."""
        return self.list_money if self.charged and self.credited else Decimal(0)


def segments(state: State, book: PriceBook) -> Iterator[Segment]:
    """Yields every segment of the ledger, lease by lease."""
    for key in sorted(state.ledger):
        yield from segments_of(state.ledger[key], book)


def segments_of(line: LedgerLine, book: PriceBook) -> Iterator[Segment]:
    """Yields the segments of one lease on one node. Counters without a GPU belong to CPU functions and cost nothing."""
    for name in sorted(line.counters):
        gpu, _, phase = name.rpartition("/")
        ms = line.counters[name]
        lost = min(ms, line.credited_ms) if phase == BUSY and not line.credited else 0
        if gpu and lost:
            yield segment(line, book, gpu=gpu, phase=phase, ms=lost, credited=True)
        if gpu and (ms > lost or not lost):
            yield segment(line, book, gpu=gpu, phase=phase, ms=ms - lost)


def segment(line: LedgerLine, book: PriceBook, *, gpu: str, phase: str, ms: int, credited: bool = False) -> Segment:
    """Returns ``ms`` of one GPU of a lease in one phase, priced."""
    model = line.gpus.get(gpu, "")
    price = book.price_of(model, line.opened_wall_ms)
    return Segment(
        gang_id=line.gang_id,
        node_id=line.node_id,
        gpu=gpu,
        model=model,
        sku=price.sku if price is not None else "",
        phase=phase,
        function_id=line.function_id,
        owner=line.owner,
        ms=ms,
        share=Decimal(str(line.share)),
        per_gpu_second=price.per_gpu_second if price is not None else Decimal(0),
        charged=phase in book.charged,
        credited=line.credited or credited,
    )


BUSY = Phase.BUSY.value
START_PHASES = frozenset({Phase.PREPARE.value, Phase.START.value, Phase.CONTEXT.value})
