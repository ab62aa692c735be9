"""What things cost: a call, a function, a user, a phase. Sums of segments, rounded once per line, half to even.

A total is the sum of its rounded lines, so that what is printed adds up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from decimal import ROUND_HALF_EVEN, Decimal
from itertools import chain

from phalanx.core.states import CallState, Cause, Phase
from phalanx.core.views import CostView, PhaseCost
from phalanx_control.metering.book import PriceBook
from phalanx_control.metering.filed import filed_segments
from phalanx_control.metering.segments import BUSY, START_PHASES, Segment, segment, segments, segments_of
from phalanx_control.state import queries
from phalanx_control.state.model import Call, LedgerLine, State

_CENT = Decimal("0.000001")
_PHASES = tuple(Phase)
_SECONDS_PER_HOUR = 3600
_FAILED = (CallState.FAILED, CallState.TIMED_OUT)
TOTAL = "total"


def cost_of_call(state: State, call: Call, book: PriceBook, *, paused_ms: int = 0) -> CostView:
    """Returns what a call costs so far: the start of gangs made for it, and the busy time of all its attempts on every
    GPU of their gangs.

    And the time for which its ranks waited for people, at breakpoints or held after its failure. A warm gang's idle
    time belongs to the function, not to a call. A gang runs one call at a time, so busy time is not shared.
    ``paused_ms``: how long one that runs has waited for people so far.
    """
    busy = busy_ms(state, call, paused_ms=paused_ms)
    found = chain(_call_segments(state, call, book, busy), _debug_segments(state, call, book, paused_ms))
    return _view(call.id, found, book)


def _call_segments(state: State, call: Call, book: PriceBook, busy: int) -> Iterator[Segment]:
    for gang_id in call.made_gangs:
        for line in _lines_of(state, gang_id):
            yield from (s for s in segments_of(line, book) if s.phase in START_PHASES)
    for spent in call.spent:
        for line in _lines_of(state, spent.gang_id):
            yield from _busy_segments(line, book, spent.busy_ms, credited=spent.credited)
    lost = call.error is not None and call.state in _FAILED and call.error.cause is Cause.INFRASTRUCTURE
    for line in _lines_of(state, call.gang_id):
        yield from _busy_segments(line, book, busy, credited=lost)


def _debug_segments(state: State, call: Call, book: PriceBook, paused_ms: int) -> Iterator[Segment]:
    held = call.state in _FAILED and state.functions[call.function_id].spec.limits.hold_on_failure_s > 0
    for line in _lines_of(state, call.gang_id):
        for gpu in sorted(line.gpus):
            counted = line.counters.get(f"{gpu}/{Phase.DEBUG.value}", 0)
            ms = paused_ms if call.state is CallState.RUNNING else call.debug_ms
            ms = max(ms, counted) if held else min(ms, counted) if line.closed_wall_ms else ms
            if ms:
                yield segment(line, book, gpu=gpu, phase=Phase.DEBUG.value, ms=ms)


def _lines_of(state: State, gang_id: str) -> Iterator[LedgerLine]:
    return (state.ledger[f"{gang_id}/{node_id}"] for node_id in state.lease_nodes.get(gang_id, ()))


def _busy_segments(line: LedgerLine, book: PriceBook, busy: int, *, credited: bool) -> Iterator[Segment]:
    for gpu in sorted(line.gpus):
        ms = busy
        if line.closed_wall_ms:
            ms = min(ms, line.counters.get(f"{gpu}/{BUSY}", 0))
        yield segment(line, book, gpu=gpu, phase=BUSY, ms=ms, credited=credited)


def busy_ms(state: State, call: Call, *, paused_ms: int = 0) -> int:
    """Returns how long the call ran, or has run by the last entry of the log but for the ``paused_ms`` of its gang."""
    if call.state is CallState.RUNNING or (call.state is CallState.CANCELLING and call.started_ms):
        return max(0, state.log_ms - call.started_ms - paused_ms)
    return call.busy_ms


def cost_by(state: State, group_by: str, book: PriceBook, *, workspace: str = "") -> tuple[CostView, ...]:
    """Returns one line per function, user, node, phase or workspace, the dearest first, and the total last; for "" that
    alone.

    ``workspace`` limits it to one tenant. Raises ValueError for another ``group_by``.
    """
    if group_by and group_by not in _KEYS:
        raise ValueError(f"group_by={group_by!r}: use one of {', '.join(_KEYS)}")
    every = chain(segments(state, book), filed_segments(state, book))
    mine = [s for s in every if workspace in ("", s.owner.workspace)]
    groups: dict[str, list[Segment]] = {}
    for one in mine if group_by else ():
        groups.setdefault(_KEYS[group_by](state, one), []).append(one)
    lines = [_view(subject, found, book) for subject, found in groups.items()]
    lines.sort(key=lambda line: (-Decimal(line.money), line.subject))
    return (*lines, _sum(lines, mine, book)) if group_by else (_view(TOTAL, mine, book),)


_KEYS: dict[str, Callable[[State, Segment], str]] = {
    "function": lambda state, s: queries.function_label(state, s.function_id),
    "user": lambda _state, s: s.owner.user,
    "workspace": lambda _state, s: s.owner.workspace,
    "node": lambda _state, s: s.node_id,
    "phase": lambda _state, s: s.phase,
}


def _view(subject: str, found: Iterable[Segment], book: PriceBook) -> CostView:
    known = list(found)
    phases = tuple(_phase_cost(phase, known, book) for phase in _phases_in(known))
    return CostView(
        subject=subject,
        phases=phases,
        gpu_ms=sum(p.gpu_ms for p in phases),
        money=_text(sum((Decimal(p.money) for p in phases), Decimal(0))),
        credit=money_text(sum((s.credit for s in known), Decimal(0))),
        currency=book.currency,
        price_per_gpu_hour=_hourly(known),
    )


def _phases_in(known: list[Segment]) -> list[str]:
    there = {s.phase for s in known}
    return [phase.value for phase in _PHASES if phase.value in there]


def _phase_cost(phase: str, known: list[Segment], book: PriceBook) -> PhaseCost:
    mine = [s for s in known if s.phase == phase]
    return PhaseCost(
        phase=phase,
        gpu_ms=int(sum((s.gpu_ms for s in mine), Decimal(0)).to_integral_value(ROUND_HALF_EVEN)),
        charged=phase in book.charged,
        money=money_text(sum((s.money for s in mine), Decimal(0))),
    )


def _sum(lines: list[CostView], known: list[Segment], book: PriceBook) -> CostView:
    return CostView(
        subject=TOTAL,
        phases=tuple(_sum_phase(phase, lines, book) for phase in _phases_in(known)),
        gpu_ms=sum(line.gpu_ms for line in lines),
        money=_text(sum((Decimal(line.money) for line in lines), Decimal(0))),
        credit=_text(sum((Decimal(line.credit) for line in lines), Decimal(0))),
        currency=book.currency,
        price_per_gpu_hour=_hourly(known),
    )


def _sum_phase(phase: str, lines: list[CostView], book: PriceBook) -> PhaseCost:
    mine = [p for line in lines for p in line.phases if p.phase == phase]
    return PhaseCost(
        phase=phase,
        gpu_ms=sum(p.gpu_ms for p in mine),
        charged=phase in book.charged,
        money=_text(sum((Decimal(p.money) for p in mine), Decimal(0))),
    )


def _hourly(known: list[Segment]) -> str:
    """The list price, the highest where several GPU models were used."""
    return _text(max((s.per_gpu_second for s in known), default=Decimal(0)) * _SECONDS_PER_HOUR)


def money_text(amount: Decimal) -> str:
    """Writes an exact amount as a line of a bill: six decimals, rounded half to even, no exponent."""
    return _text(amount.quantize(_CENT, ROUND_HALF_EVEN))


def _text(amount: Decimal) -> str:
    return format(amount.normalize() if amount else Decimal(0), "f")
