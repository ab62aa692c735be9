exec(open('/tmp/px/w/e1.py').read().split("sub('sdk")[0])
sub('sdk/phalanx/map_call.py',("from dataclasses import dataclass, field\n","from dataclasses import dataclass, field, replace\n"))
C='control_plane/phalanx_control/'
sub(C+'state/model.py',('SCHEMA_VERSION = 6','SCHEMA_VERSION = 7'),('''class Call(Record, frozen=True):
''','''class Delivery(Record, frozen=True):
    """How far the telling of a call's end has come. ``status``: what the receiver answered last; 0: nothing."""

    attempts: int = 0
    status: int = 0
    error: str = ""
    over: str = ""
    """Why no more is tried: delivered, refused or given up; empty: the next attempt is due at ``next_wall_ms``."""
    next_wall_ms: int = 0


class Call(Record, frozen=True):
'''),('''    """The call from inside which it was made, as its caller said."""


class KeyUse''','''    """The call from inside which it was made, as its caller said."""
    webhook: str = ""
    """The address that is told of its end. ``map_id``: what it is a part of, as its caller said."""
    map_id: str = ""
    delivery: Delivery | None = None
    """None: it has not ended, or nobody is told."""


class WebhookKey(Record, frozen=True):
    """Which of a workspace's secrets signs its webhooks. The secret itself is derived from the cell's, and not here."""

    version: int
    rotated_wall_ms: int


class KeyUse'''),('''    ended_line: Tree | None = None
    """Derived from ``ended``: terminal calls, the one that ended first leading."""
''','''    ended_line: Tree | None = None
    """Derived from ``ended``: terminal calls, the one that ended first leading."""
    webhook_keys: Map[str, WebhookKey] = Map()
    """By workspace; none: version 0."""
    untold: Tree | None = None
    """Derived from ``calls``: those whose end is to be told, by the wall time of the next attempt."""
'''),('"deadlines", "ended_line"})','"deadlines", "ended_line", "untold"})'),('_LATER = frozenset({"fabric", "keys"})','_LATER = frozenset({"fabric", "keys", "webhook_keys"})'),('''    "keys": KeyUse,
}''','''    "keys": KeyUse,
    "webhook_keys": WebhookKey,
}'''),('''    values["ended_line"] = build(''','''    untold = (call for call in values["calls"].values() if call.delivery is not None and not call.delivery.over)
    values["untold"] = build((call.delivery.next_wall_ms, call.id) for call in untold)
    values["ended_line"] = build('''))
sub(C+'state/events.py',('''class CallCancelled(Event''','''class WebhookTry(Record, frozen=True):
    """One attempt to tell a call's end; the fields are those of `Delivery`."""

    call_id: str
    status: int = 0
    error: str = ""
    over: str = ""
    next_wall_ms: int = 0


class WebhooksTried(Event, frozen=True, tag=True):
    tries: tuple[WebhookTry, ...]


class WebhookSecretRotated(Event, frozen=True, tag=True):
    """``version`` names the secret that signs from now on; the one before it does so for a day more."""

    workspace: str
    version: int
    wall_ms: int


class CallCancelled(Event'''),('''    | CallAccepted
''','''    | CallAccepted
    | WebhooksTried
    | WebhookSecretRotated
'''),('''    KeysForgotten: 5,
}''','''    KeysForgotten: 5,
    WebhooksTried: 7,
    WebhookSecretRotated: 7,
}'''),('''

def since(event: AnyEvent)''','''
WEBHOOK_SCHEMA = 7
"""Since when somebody may be told of the end of a call."""


def since(event: AnyEvent)'''),('''        if call.parent:
            return PARENT_SCHEMA''','''        if call.webhook:
            return WEBHOOK_SCHEMA
        if call.parent:
            return PARENT_SCHEMA'''),('''    if spec.streams:
        return STREAMS_SCHEMA''','''    if spec.webhook:
        return WEBHOOK_SCHEMA
    if spec.streams:
        return STREAMS_SCHEMA'''))
sub(C+'state/commands.py',('''@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveCalls:''','''@dataclass(frozen=True, slots=True, kw_only=True)
class NoteWebhooks:
    """What came of attempts to tell the ends of calls."""

    tries: tuple[WebhookTry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RotateWebhookSecret:
    owner: Owner


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveCalls:'''),('''    | ArchiveCalls
''','''    | NoteWebhooks
    | RotateWebhookSecret
    | ArchiveCalls
'''),('''from phalanx_control.state.model import SCHEMA''','''from phalanx_control.state.events import WebhookTry
from phalanx_control.state.model import SCHEMA'''))
sub(C+'state/apply_calls.py',('''    call = replace(call, state=to, ended_ms=log_ms, ended_wall_ms=wall_ms)
    return replace(
        state,
''','''    call = replace(call, state=to, ended_ms=log_ms, ended_wall_ms=wall_ms)
    if call.webhook:
        call = replace(call, delivery=Delivery(next_wall_ms=wall_ms))
        state = replace(state, untold=ordered.insert(state.untold, (wall_ms, call.id)))
    return replace(
        state,
'''),('''def _calls_archived(''','''def _webhooks_tried(state: State, event: events.WebhooksTried, _: int) -> State:
    for each in event.tries:
        call = state.calls[each.call_id]
        assert call.delivery is not None
        delivery = Delivery(
            attempts=call.delivery.attempts + 1,
            status=each.status,
            error=each.error,
            over=each.over,
            next_wall_ms=each.next_wall_ms,
        )
        line = ordered.remove(state.untold, (call.delivery.next_wall_ms, call.id))
        if not delivery.over:
            line = ordered.insert(line, (delivery.next_wall_ms, call.id))
        state = _put(replace(state, untold=line), replace(call, delivery=delivery))
    return state


def _webhook_secret_rotated(state: State, event: events.WebhookSecretRotated, _: int) -> State:
    key = WebhookKey(version=event.version, rotated_wall_ms=event.wall_ms)
    return replace(state, webhook_keys=state.webhook_keys.set(event.workspace, key))


def _calls_archived('''),('''        state = _leave_parent(state, calls[call_id])
''','''        state = _leave_parent(state, calls[call_id])
        delivery = calls[call_id].delivery
        if delivery is not None and not delivery.over:
            state = replace(state, untold=ordered.remove(state.untold, (delivery.next_wall_ms, call_id)))
'''),('''    events.CallCancelled: _call_cancelled,
''','''    events.CallCancelled: _call_cancelled,
    events.WebhooksTried: _webhooks_tried,
    events.WebhookSecretRotated: _webhook_secret_rotated,
'''),('from phalanx_control.state.model import Call, FunctionStats, State','from phalanx_control.state.model import Call, Delivery, FunctionStats, State, WebhookKey'))
sub(C+'lifecycle/clients.py',('''        key=terms.idempotency_key,
    )''','''        key=terms.idempotency_key,
        webhook=webhook,
        map_id=terms.map_id if webhook else "",
    )'''),('''    terms = command.terms
    return Call(''','''    terms = command.terms
    webhook = terms.webhook or function.spec.webhook
    return Call('''),('''    keys.check(terms.idempotency_key)
''','''    keys.check(terms.idempotency_key)
    webhooks.check(draft, terms)
'''),('import deadlines, gangs, keys','import deadlines, gangs, keys, webhooks'))
sub(C+'lifecycle/decide.py',('nodes, tick, tokens','nodes, tick, tokens, webhooks'),('''    commands.ArchiveCalls: filing''','''    commands.NoteWebhooks: webhooks.note,
    commands.RotateWebhookSecret: webhooks.rotate,
    commands.ArchiveCalls: filing'''))
sub(C+'lifecycle/filing.py',('''        if place < surplus or log_ms - ended_ms > keep.ms
    )''','''        if place < surplus or (log_ms - ended_ms > keep.ms and not _is_untold(state.calls[call_id]))
    )'''),('''def lines_to_file(''','''def _is_untold(call: Call) -> bool:
    """Somebody is still to be told of its end. Where there are too many of these, the oldest go nevertheless."""
    return call.delivery is not None and not call.delivery.over


def lines_to_file('''),('import LedgerLine, State','import Call, LedgerLine, State'),('''    """Returns the oldest ended calls that may go, at most 500."""
''','''    """Returns ended calls that may go, of the 500 oldest."""
'''))
open(C+'lifecycle/webhooks.py','w').write('''"""Telling the ends of calls: whose end is told, what came of each attempt, and which secret signs.

    ended ── tried: 2xx ── delivered
               │  410, or an address that must not be asked ── refused
               │  anything else ── tried again, later each time, for about a day ── given up
"""

from __future__ import annotations

from phalanx.core.errors import InvalidSpecError, VersionError
from phalanx.core.ids import id_raw
from phalanx.core.messages import CallTerms
from phalanx.core.webhooks import check_url
from phalanx_control.lifecycle.draft import Draft
from phalanx_control.state import events
from phalanx_control.state.commands import NoteWebhooks, RotateWebhookSecret

DELIVERED, REFUSED, GIVEN_UP = "delivered", "refused", "given up"
RETRY_AFTER_S = (5, 30, 120, 600, 1800, 3600, 7200, 14400, 28800, 28800)
"""From one attempt to the next: eleven attempts within about a day."""
MAX_ERROR_CHARS = 200


def check(draft: Draft, terms: CallTerms) -> None:
    """Raises InvalidSpecError for an address that no webhook can go to, VersionError where an older replica, which
    might lead next, would not tell it."""
    if not terms.webhook:
        return
    check_url(terms.webhook)
    if terms.map_id:
        _check_map(terms.map_id)
    _check_schema(draft)


def note(draft: Draft, command: NoteWebhooks) -> None:
    """Keeps what came of attempts, of calls that are still to be told."""
    tries = tuple(each for each in command.tries if _is_untold(draft, each.call_id))
    if tries:
        draft.add(events.WebhooksTried(tries=tries))


def rotate(draft: Draft, command: RotateWebhookSecret) -> None:
    """Lets a new secret sign the workspace's webhooks."""
    _check_schema(draft)
    workspace = command.owner.workspace
    known = draft.state.webhook_keys.get(workspace)
    version = known.version + 1 if known is not None else 1
    draft.add(events.WebhookSecretRotated(workspace=workspace, version=version, wall_ms=draft.now.wall_ms))


def _is_untold(draft: Draft, call_id: str) -> bool:
    call = draft.state.calls.get(call_id)
    return call is not None and call.delivery is not None and not call.delivery.over


def _check_schema(draft: Draft) -> None:
    if draft.now.schema < events.WEBHOOK_SCHEMA:
        raise VersionError("an older replica of this cell knows no webhooks", hint="upgrade all replicas first")


def _check_map(map_id: str) -> None:
    try:
        known = map_id.startswith("m-") and bool(id_raw(map_id))
    except ValueError:
        known = False
    if not known:
        raise InvalidSpecError(f"map id {map_id[:60]!r} is not one")
''')
sub(C+'service/permissions.py',('''    CONTROL + "CreateLoginLink"''','''    CONTROL + "GetWebhookSecret": Row(Need.ADMIN, to_leader=True),
    CONTROL + "CreateLoginLink"'''))
sub(C+'views.py',('''        idempotency_key=call.key,
    )''','''        idempotency_key=call.key,
        webhook=_webhook(call),
    )'''),('''def _stall(call''','''def _webhook(call: Call) -> str:
    """Whom the call's end is told, without the address's query, which may hold what is nobody else's business."""
    delivery = call.delivery
    if not call.webhook:
        return ""
    to = call.webhook.partition("?")[0]
    if delivery is None:
        return f"tells {to} when it has ended"
    tries = f"{delivery.attempts} attempt{'' if delivery.attempts == 1 else 's'}"
    last = delivery.error or (f"answered {delivery.status}" if delivery.status else "")
    if delivery.over:
        return f"{delivery.over} after {tries}: {to}, {last}"
    return f"waits to be told to {to}" + (f" again after {tries}, the last one: {last}" if delivery.attempts else "")


def _stall(call'''))
