"""Telling the ends of calls: whose end is told, what came of each attempt, and which secret signs.

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
from phalanx_control.state import events, schemas
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
    """Lets a new secret sign the workspace's webhooks. Asked again, it changes nothing: only the newest two sign."""
    _check_schema(draft)
    workspace = command.owner.workspace
    known = draft.state.webhook_keys.get(workspace)
    version = known.version if known is not None else 0
    if version == command.from_version:
        rotated = events.WebhookSecretRotated(workspace=workspace, version=version + 1, wall_ms=draft.now.wall_ms)
        draft.add(rotated)


def _is_untold(draft: Draft, call_id: str) -> bool:
    call = draft.state.calls.get(call_id)
    return call is not None and call.delivery is not None and not call.delivery.over


def _check_schema(draft: Draft) -> None:
    if draft.now.schema < schemas.WEBHOOK_SCHEMA:
        raise VersionError("an older replica of this cell knows no webhooks", hint="upgrade all replicas first")


def _check_map(map_id: str) -> None:
    try:
        known = map_id.startswith("m-") and bool(id_raw(map_id))
    except ValueError:
        known = False
    if not known:
        raise InvalidSpecError(f"map id {map_id[:60]!r} is not one")
