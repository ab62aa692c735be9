"""gpuctl explain: why a call or gang stands where it stands, and what its ranks got of the topology."""

from __future__ import annotations

from typing import Any

import click

from phalanx.cli.equipment_text import equipment_of, explanation
from phalanx.cli.options import Command, Session
from phalanx.cli.target import full_id
from phalanx.client import Client
from phalanx.core.errors import InvalidSpecError, NotFoundError
from phalanx.core.played import is_played
from phalanx.core.states import CallState
from phalanx.core.views import CallView, GangExplanation


def explain(session: Session, what: str) -> None:
    """Shows a call with its gang, or a gang. Of what has ended, what is still known."""
    screen = session.screen()
    client = session.client()
    call = client.get_call(full_id(client, what)) if not what.startswith("g-") else None
    gang_id = _full_gang_id(client, what) if call is None else call.gang_id
    gang = _gang(client, gang_id, forgiving=call is not None) if gang_id else None
    if screen.look.json:
        screen.emit({"call": _call_facts(call), **_gang_facts(gang)})
        return
    if call is not None:
        for name, value in of_call(call):
            screen.data(f"{name:<6} {value}")
    if gang is not None:
        for name, value in _of_gang(gang):
            screen.data(f"{name:<6} {value}")
        for line in explanation(gang, _played(client, gang)):
            screen.data(line)
    elif call is not None:
        screen.data(f"gang   {_no_gang(call)}")


def _full_gang_id(client: Client, text: str) -> str:
    """Completes the first letters of a living gang's id, as `full_id` does those of calls."""
    found = [gang.gang_id for gang in client.list_gangs() if gang.gang_id.startswith(text.rstrip("…"))]
    if len(found) > 1:
        raise InvalidSpecError(f"{text!r} begins the ids of {len(found)} gangs: {', '.join(found[:4])}")
    return found[0] if found else text


def _gang(client: Client, gang_id: str, *, forgiving: bool) -> GangExplanation | None:
    try:
        return client.explain_gang(gang_id)
    except NotFoundError:
        if not forgiving:
            raise
        return None


def _played(client: Client, found: GangExplanation) -> frozenset[str]:
    """Returns which nodes of a gang are played; they say nothing of ranks."""
    if all(member.equipment for member in found.members):
        return frozenset()
    return frozenset(
        node.node_id for node in client.list_nodes() if any(is_played(gpu.info.model) for gpu in node.gpus)
    )


def of_call(call: CallView) -> list[tuple[str, str]]:
    """Returns what is known of the call itself, by name."""
    state = CallState(call.state)
    rows = [("call", f"{call.call_id}  {call.state}  {call.function}")]
    if call.error and state.terminal:
        rows.append(("error", _error(call)))
    elif call.reason:
        rows.append(("waits" if state is CallState.QUEUED and not call.gang_id else "reason", call.reason))
    rows += [(f"try {each.attempt}", str(each)) for each in call.earlier]
    if call.webhook:
        rows.append(("tells", call.webhook))
    return rows


def _error(call: CallView) -> str:
    """The error with its type, and the rank that it comes from, where that is known."""
    error = call.error
    who = f"rank {error.rank}{f' on {error.node_id}' if error.node_id else ''}: " if error.rank >= 0 else ""
    said = f"{error.type_name}: {error.message}" if error.type_name else error.message or error.cause.value
    return f"{who}{said}".partition("\n")[0]


def _of_gang(found: GangExplanation) -> list[tuple[str, str]]:
    gang = found.gang
    size = f"{gang.world_size} rank{'s' if gang.world_size != 1 else ''} on {', '.join(gang.nodes)}"
    rows = [("gang", f"{gang.gang_id}  {gang.state}  {size}")]
    rows.append(("why", gang.placement or "why it stood there is not known any more"))
    return rows


def _no_gang(call: CallView) -> str:
    if call.gang_id:
        return f"{call.gang_id}  is not known any more" + (f"; it stood so: {call.placement}" if call.placement else "")
    if CallState(call.state).terminal:
        return "none: the call ended before one was started for it"
    return "none yet: what a gang gets is decided when it starts"


def _call_facts(call: CallView | None) -> dict[str, Any] | None:
    if call is None:
        return None
    names = ("call_id", "function", "state", "reason", "placement", "gang_id", "attempt", "queue_position", "webhook")
    return {**{name: getattr(call, name) for name in names}, "earlier": call.earlier}


def _gang_facts(found: GangExplanation | None) -> dict[str, Any]:
    """The text that travels is JSON itself: it is shown as what it says."""
    if found is None:
        return {"gang": None, "members": []}
    members = [
        {
            "node_id": each.node_id,
            "first_rank": each.first_rank,
            "ranks": each.ranks,
            "gpus": each.gpus,
            "equipment": equipment_of(each),
        }
        for each in found.members
    ]
    return {"gang": found.gang, "members": members}


command = Command(
    "explain",
    callback=explain,
    help="Why a call or gang stands where it stands, or waits, and what its ranks got: GPUs, processors, memory, "
    "network ports and each variable with its reason.",
    params=[click.Argument(["what"], metavar="CALL|GANG")],
    examples=("gpuctl explain c-0d5t…", "gpuctl explain g-0d5t… --json"),
)
