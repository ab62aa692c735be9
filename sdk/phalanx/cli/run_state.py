"""The run view's words: what a call is doing, from its views. Pure.

queued (3rd, no node has 8 free GPUs) → placing → starting 6/8 ranks → running step 40/100
"""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.cli import text
from phalanx.core.states import CallState
from phalanx.core.views import CallView, CostView

_WHY_CHARS = 100


@dataclass(frozen=True, slots=True)
class Stage:
    """What to show: ``state`` picks icon and colour; ``words`` say it; equal stages need no new line."""

    state: str
    words: str


def stage_of(view: CallView) -> Stage:
    """Returns the stage that a view is in."""
    state = CallState(view.state)
    if state in (CallState.ACCEPTED, CallState.QUEUED):
        return Stage(view.state, _queued(view))
    if state is CallState.ASSIGNED:
        return Stage(view.state, f"{_assigned(view)}{_attempt(view)}")
    if view.phase == "debug":
        return Stage(view.state, view.reason)
    if state is CallState.RUNNING:
        return Stage(view.state, f"running{_step(view)}{_attempt(view)}")
    if state.terminal:
        return Stage(view.state, _ended(view))
    return Stage(view.state, view.state)


def placement_line(view: CallView) -> str:
    """Returns where the ranks are and why there; empty while nothing is placed."""
    return f"placed on {view.placement}" if view.placement and view.gang_id else ""


def cost_line(cost: CostView) -> str:
    """Returns one line: GPU-seconds by phase, which of them are charged, and the money."""
    phases = ", ".join(
        f"{phase.phase} {phase.gpu_ms / 1000:.1f}{'' if phase.charged else ' (free)'}"
        for phase in cost.phases
        if phase.gpu_ms
    )
    price = f" at {text.money(cost.price_per_gpu_hour, cost.currency)}/GPU-h" if cost.price_per_gpu_hour != "0" else ""
    return f"cost {text.money(cost.money, cost.currency)} for {text.gpu_seconds(cost.gpu_ms)}{price} ({phases or '-'})"


def elapsed_ms(view: CallView, now_ms: int) -> int:
    """Returns milliseconds since the call was submitted, until it ended."""
    return max(0, (view.ended_ms or now_ms) - view.submitted_ms) if view.submitted_ms else 0


def _queued(view: CallView) -> str:
    place = text.ordinal(view.queue_position) if view.queue_position else ""
    inside = ", ".join(part for part in (place, view.reason) if part)
    return f"queued ({inside})" if inside else "queued"


def _assigned(view: CallView) -> str:
    if view.world_size and view.ready_ranks < view.world_size and view.phase in ("starting", "preparing", "reserved"):
        word = "placing" if view.phase == "reserved" else view.phase
        return f"{word} {view.ready_ranks}/{view.world_size} ranks"
    return "waiting for its gang" if view.phase in ("ready", "busy") else "placing"


def _step(view: CallView) -> str:
    return f" step {view.step}" if view.step else ""


def _attempt(view: CallView) -> str:
    """Says which attempt it is where that is not the first."""
    return f", attempt {view.attempt}" if view.attempt > 1 else ""


def _ended(view: CallView) -> str:
    took = text.duration(max(0, view.ended_ms - (view.started_ms or view.submitted_ms)))
    why = "" if view.state == CallState.SUCCEEDED else _why(view)
    return f"{view.state} after {took}{f': {why}' if why else ''}"


def _why(view: CallView) -> str:
    """One short line; the text of an exception stands behind its type."""
    said = view.reason or view.error.message
    kind = view.error.type_name.rpartition(".")[2]
    if kind and said == view.error.message and not said.startswith(kind):
        said = f"{kind}: {said}" if said else kind
    first = said.partition("\n")[0]
    return first if len(first) <= _WHY_CHARS else f"{first[: _WHY_CHARS - 1]}…"
