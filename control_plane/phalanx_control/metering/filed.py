"""Lines of the ledger that leave the state, as sums: exact, per month, price and everything that bills are asked by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal

from msgspec.structs import replace

from phalanx_control.metering.book import PriceBook
from phalanx_control.metering.segments import Segment, segments_of
from phalanx_control.state.model import FiledSum, LedgerLine, Owner, State


def sums_of(lines: Iterable[LedgerLine], month: str, book: PriceBook) -> tuple[FiledSum, ...]:
    """Returns what the lines add up to, at the prices in force when their leases began."""
    sums: dict[str, FiledSum] = {}
    for line in lines:
        for one in segments_of(line, book):
            new = _sum(one, month)
            known = sums.get(new.key)
            sums[new.key] = new if known is None else replace(known, ms=known.ms + new.ms)
    return tuple(sums[key] for key in sorted(sums))


def _sum(one: Segment, month: str) -> FiledSum:
    return FiledSum(
        month=month,
        workspace=one.owner.workspace,
        user=one.owner.user,
        function_id=one.function_id,
        node_id=one.node_id,
        model=one.model,
        sku=one.sku,
        phase=one.phase,
        share=str(one.share),
        per_gpu_second=str(one.per_gpu_second),
        credited=one.credited,
        ms=one.ms,
    )


def filed_segments(state: State, book: PriceBook) -> Iterator[Segment]:
    """Yields the sums as segments of no lease and no GPU in particular. Which phases are charged is the book's word."""
    for key in sorted(state.filed):
        each = state.filed[key]
        yield Segment(
            gang_id="",
            node_id=each.node_id,
            gpu="",
            model=each.model,
            sku=each.sku,
            phase=each.phase,
            function_id=each.function_id,
            owner=Owner(workspace=each.workspace, user=each.user),
            ms=each.ms,
            share=Decimal(each.share),
            per_gpu_second=Decimal(each.per_gpu_second),
            charged=each.phase in book.charged,
            credited=each.credited,
        )
