"""What is to be expected: who waits in which order, what accounts hold, when a gang could start. Reads only; pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from phalanx.core.states import GangState
from phalanx.core.views import AccountView, StartView, WaitingView
from phalanx.policy import Path, policy_from_json, shown
from phalanx_control.scheduler.accounts import Accounts
from phalanx_control.scheduler.fit import find_place
from phalanx_control.scheduler.fleet import picture_of
from phalanx_control.scheduler.need import Need
from phalanx_control.scheduler.reserve import Reservation, reservation_for
from phalanx_control.scheduler.room import Rooms
from phalanx_control.scheduler.space import room_after
from phalanx_control.scheduler.turns import in_turn
from phalanx_control.scheduler.words import count_gpus, count_nodes
from phalanx_control.state import queries
from phalanx_control.state.amounts import asked_by
from phalanx_control.state.commands import Now
from phalanx_control.state.model import Owner, State

MOST_SHOWN = 1000
ESTIMATED = 20
"""For so many calls, those that stand first, it is said when they start at the latest."""
_SMALLER_TRIED = 64


def waiting(state: State, now: Now, *, limit: int) -> Iterator[WaitingView]:
    """Yields calls that wait, in the order in which they are served as far as can be told, at most ``limit``."""
    rooms = picture_of(state)
    accounts = Accounts(state, rooms, now.log_ms)
    for place, call in enumerate(islice(in_turn(state, accounts, per_line=limit), limit), start=1):
        function = state.functions[call.function_id]
        path = accounts.path(call.owner)
        need = Need(spec=function.spec, workspace=call.owner.workspace)
        known = reservation_for(state, need, rooms, now.log_ms) if place <= ESTIMATED else None
        accounts.expect(path, function.spec)
        yield WaitingView(
            place=place,
            call_id=call.id,
            function=queries.function_label(state, call.function_id),
            workspace=call.owner.workspace,
            user=call.owner.user,
            account=shown(path),
            gpus=function.spec.resources.gpus,
            priority=function.spec.priority,
            preemptible=function.spec.preemptible,
            submitted_ms=call.submitted_wall_ms,
            reason=call.reason,
            starts_by_ms=_wall(known.at_ms, now) if known is not None else 0,
        )


def accounts_of(state: State, now: Now, *, workspace: str = "") -> tuple[AccountView, ...]:
    """Returns the accounts that are named or hold something, outermost first; of one workspace, or of all for ""."""
    accounts = Accounts(state, picture_of(state), now.log_ms)
    mine = (path for path in accounts.known() if workspace in ("", path[0]))
    return tuple(_account(accounts, path) for path in mine)


def _account(accounts: Accounts, path: Path) -> AccountView:
    terms, held = accounts.policy.account(path), accounts.held(path)
    share, before = accounts.share(path)
    return AccountView(
        account=shown(path),
        weight=terms.weight,
        gpus=round(held.gpus, 3),
        guaranteed=terms.gpus,
        limit=terms.limit,
        share=round(share, 4),
        share_before=round(before, 4),
    )


def start_of(state: State, need: Need, owner: Owner, now: Now) -> StartView:
    """Returns when a gang of the owner's could start if it were asked for now, and what it would wait for."""
    rooms = picture_of(state)
    accounts = Accounts(state, rooms, now.log_ms)
    path = accounts.path(owner)
    ahead = sum(1 for _ in islice(in_turn(state, accounts, per_line=MOST_SHOWN), MOST_SHOWN))
    refused = _refusal(accounts, path, need)
    if refused:
        return StartView(sentence=refused, ahead=ahead)
    place = find_place(need, rooms)
    if place is not None:
        return StartView(now=True, at_ms=now.wall_ms, sentence=place.sentence, ahead=ahead)
    smaller = _largest_now(need, rooms)
    idle = {g.id: 1 for g in state.gangs.values() if g.state is GangState.READY and not g.calls}
    leaving = room_after(state, need, rooms, idle, barred=frozenset())
    if leaving is not None:
        count = len(leaving.gangs)
        gangs = f"{count} idle gang{'' if count == 1 else 's'} let go" if count else "gangs that end already are gone"
        return StartView(
            now=True, at_ms=now.wall_ms, sentence=f"as soon as {gangs} on {_names(leaving.nodes)}", ahead=ahead
        )
    found = reservation_for(state, need, rooms, now.log_ms)
    if found is None:
        return StartView(sentence="no set of nodes that take work could hold it", ahead=ahead, fits_now=smaller)
    at_ms = _wall(found.at_ms, now)
    return StartView(at_ms=at_ms, sentence=_sentence(state, found, rooms, owner), ahead=ahead, fits_now=smaller)


def _refusal(accounts: Accounts, path: Path, need: Need) -> str:
    asked = asked_by(need.spec)
    limited = accounts.limited(path, asked)
    return accounts.why_limited(limited, asked) if limited is not None else accounts.takes_guaranteed(path, need.spec)


def _sentence(state: State, found: Reservation, rooms: Rooms, owner: Owner) -> str:
    where = _names(found.nodes)
    if len(found.nodes) > 1 and found.area is not rooms.fabric.cell:
        where = f"{where} in {found.area.words}"
    if found.last is None:
        return f"on {where}"
    who = "a gang of another workspace"
    if found.last.owner.workspace == owner.workspace:
        who = f"{queries.function_label(state, found.last.function_id)} of {found.last.owner.user or 'nobody'}"
    if found.is_known:
        return f"on {where}, when {who} has ended at its time limit"
    return f"on {where}, when {who} has ended, which has no time limit"


def _largest_now(need: Need, rooms: Rooms) -> int:
    """Returns the most whole GPUs, fewer than it asks for, with which it would start now."""
    for gpus in range(need.gpus - 1, max(0, need.gpus - 1 - _SMALLER_TRIED), -1):
        spec = need.spec
        smaller = replace(need, spec=replace(spec, resources=replace(spec.resources, gpus=gpus, nodes=0)))
        if find_place(smaller, rooms) is not None:
            return gpus
    return 0


def _names(nodes: frozenset[str]) -> str:
    return ", ".join(sorted(nodes)) if len(nodes) <= 3 else count_nodes(len(nodes))


def _wall(at_ms: float, now: Now) -> int:
    return 0 if math.isinf(at_ms) else now.wall_ms + max(0, round(at_ms) - now.log_ms)


def policy_words(state: State) -> str:
    """Returns what the policy guarantees against what there is; "" where that is enough."""
    policy, total = policy_from_json(state.policy), picture_of(state).total
    if policy.guaranteed <= total.gpus:
        return ""
    return f"{count_gpus(policy.guaranteed)} are guaranteed, and nodes that take work have {total.gpus:g}"
